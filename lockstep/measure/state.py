"""What a case may leave behind in its process, for the next case to be measured in.

The state is read before each case and after its teardown. What can be put back is; the rest is
reported. Either way the case that left it is named, not the one that follows.
"""

import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import distributed

from lockstep.vocabulary.system.files import MIB

# Of less, the allocators of Python and of the C library keep as much for themselves.
LEAK_BYTES = 256 * MIB
# Of a core; what takes less changes no median, as in `result.QUOTA_SHARE`.
BUSY_CORES = 0.01
# Threads of a DataLoader whose workers persist: they wait until a step asks for a batch.
IDLE = ("QueueFeederThread", "_pin_memory_loop")
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "barrier", "all_gather_into_tensor",
    "reduce_scatter_tensor", "all_gather_object", "init_process_group", "destroy_process_group",
)  # fmt: skip


@dataclass(frozen=True)
class LeftBehind:
    """One difference between the state before a case and that after it.

    Attributes:
        kind: What differs: a key of `_facts`, or `memory_bytes`.
        is_restored: Whether the next case finds it as it was.
    """

    kind: str
    before: Any
    after: Any
    is_restored: bool


@dataclass(frozen=True)
class _Fact:
    """One part of the state: how it is read, and how it is put back, where it can be."""

    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


def _facts() -> dict[str, _Fact]:
    facts = {
        "default_dtype": _Fact(torch.get_default_dtype, torch.set_default_dtype),
        "num_threads": _Fact(torch.get_num_threads, torch.set_num_threads),
        "anomaly_mode": _Fact(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "grad_mode": _Fact(torch.is_grad_enabled, torch.set_grad_enabled),
        "default_device": _Fact(torch.get_default_device, torch.set_default_device),
        "deterministic": _Fact(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
        ),
        "matmul_precision": _Fact(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        ),
        "collector": _Fact(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "folder": _Fact(os.getcwd, os.chdir),
        "environment": _Fact(_environment, _put_environment),
        "collectives": _Fact(_collectives, _put_collectives),
        "process_group": _Fact(distributed.is_initialized),
        "python_threads": _Fact(_threads),
    }
    for device in ("cpu", "cuda"):
        facts[f"autocast_{device}"] = _Fact(
            partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)
        )
    if hasattr(os, "sched_getaffinity"):
        facts["affinity"] = _Fact(lambda: sorted(os.sched_getaffinity(0)), _put_affinity)
    return facts


def _collectives() -> dict[str, Any]:
    return {name: getattr(distributed, name) for name in COLLECTIVES}


def _put_collectives(functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        setattr(distributed, name, function)


def _environment() -> dict[str, str]:
    own = "PYTEST_CURRENT_TEST"  # which pytest sets in each phase of a case
    return {name: value for name, value in os.environ.items() if name != own}


def _put_environment(variables: dict[str, str]) -> None:
    for name in _environment().keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return sorted(name for name in names if not any(idle in name for idle in IDLE))


def _put_affinity(cores: list[int]) -> None:
    for thread in psutil.Process().threads():
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(thread.id, cores)


def _memory_bytes() -> int | None:
    """Return the bytes that this process holds, on its GPU and resident on its host.

    None where it cannot be read: a case may have left no file descriptor.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    on_gpu = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
    try:
        return int(psutil.Process().memory_info().rss) + on_gpu
    except OSError:
        return None


@dataclass(frozen=True)
class Busy:
    """A thread or process that an earlier case left, and that worked while this one ran.

    Attributes:
        case: The case that left it.
        what: Its name.
        cores: Processor time it took over the time of this case.
    """

    case: str
    what: str
    cores: float


def _workers() -> dict[tuple[str, int], tuple[str, float]]:
    """Return the name and processor seconds of each Python thread and child of this process."""
    process, found = psutil.Process(), dict[tuple[str, int], tuple[str, float]]()
    with contextlib.suppress(psutil.Error, OSError):
        taken = {one.id: one.user_time + one.system_time for one in process.threads()}
        for thread in threading.enumerate():
            number = thread.native_id or 0
            is_own = thread is threading.main_thread() or thread.name.startswith("lockstep")
            if number in taken and not is_own:
                found["thread", number] = (thread.name, taken[number])
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                spent = child.cpu_times()
                found["process", child.pid] = (child.name(), spent.user + spent.system)
    return found


class Beside:
    """What cases of this process leave running beside those that follow."""

    def __init__(self) -> None:
        self._left_by: dict[tuple[str, int], str] = {}
        self._at_start = _workers()
        self._begun_s = time.monotonic()

    def begin(self) -> None:
        """Note what runs as a case begins."""
        self._at_start, self._begun_s = _workers(), time.monotonic()

    def end(self, case: str) -> list[Busy]:
        """Return what earlier cases left and worked beside this one; note what this one leaves."""
        now, elapsed_s = _workers(), time.monotonic() - self._begun_s
        busy = []
        for key, (name, spent_s) in now.items():
            left_by = self._left_by.setdefault(key, "" if key in self._at_start else case)
            cores = (spent_s - self._at_start.get(key, ("", spent_s))[1]) / elapsed_s
            if left_by not in ("", case) and cores > BUSY_CORES:
                busy.append(Busy(left_by, f"{key[0]} {name}", round(cores, 2)))
        self._left_by = {key: self._left_by[key] for key in now}
        return busy


class State:
    """The state before a case.

    Args:
        is_first: Whether it is the process's first case, which holds what it imports.
    """

    def __init__(self, is_first: bool) -> None:
        self._facts = _facts()
        if is_first:  # what is imported may set variables
            del self._facts["environment"]
        self._before = {name: fact.read() for name, fact in self._facts.items()}
        self._memory_bytes = None if is_first else _memory_bytes()

    def left_behind(self) -> list[LeftBehind]:
        """Put back what can be, and return all that differs, as values that JSON knows."""
        return [*self._differences(), *self._leak()]

    def _differences(self) -> Iterator[LeftBehind]:
        for name, fact in self._facts.items():
            before, after = self._before[name], fact.read()
            if after == before or (name == "python_threads" and not _more(before, after)):
                continue
            if fact.write:
                fact.write(before)
            yield LeftBehind(name, _plain(before, after), _plain(after, before), bool(fact.write))

    def _leak(self) -> Iterator[LeftBehind]:
        before, after = self._memory_bytes, _memory_bytes()
        if before is not None and after is not None and after - before > LEAK_BYTES:
            yield LeftBehind("memory_bytes", before, after, is_restored=False)


def _more(before: list[str], after: list[str]) -> list[str]:
    return [name for name in after if name not in before]


def _plain(value: Any, other: Any) -> Any:
    """Return a value as JSON knows it; of the collectives, those that differ by their modules."""
    if isinstance(value, dict):
        return {
            name: one if isinstance(one, str) else str(getattr(one, "__module__", None))
            for name, one in value.items()
            if one != other.get(name)
        }
    return value if isinstance(value, (bool, int, list)) else str(value)
