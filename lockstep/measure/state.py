"""What a case may leave behind in its process, for the next case to be measured in.

The state is read before each case and after its teardown. What can be put back is; the rest is
reported, of the case that left it and of each one that runs under it.
"""

import contextlib
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import isroutine
from typing import Any

import psutil
import torch
from torch import distributed

from lockstep.core.files import MIB
from lockstep.core.processes import steers_torch

# Of less, the allocators of Python and of the C library keep as much for themselves.
LEAK_BYTES = 256 * MIB
# Of a core; what takes less changes no median, as in `harness.QUOTA_SHARE`.
BUSY_CORES = 0.01
# Threads of a DataLoader whose workers persist: they wait until a step asks for a batch.
IDLE = ("QueueFeederThread", "_pin_memory_loop")
# What is left idle costs the next case nothing, and a lost group is built again before it.
HARMLESS = ("python_threads", "process_group")
# Set by pytest in each phase of a case, and by torch when it first compiles.
NOT_OF_CASES = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
# Of torch.backends: which kernels convolutions and products of matrices take.
SWITCHES = (
    *("cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32"),
    *("mkldnn.enabled", "fp32_precision", "cuda.matmul.fp32_precision", "cudnn.fp32_precision"),
    *("cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "mkldnn.fp32_precision"),
    *("mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision"),
)
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "barrier", "all_gather_into_tensor",
    "reduce_scatter_tensor", "all_gather_object", "init_process_group", "destroy_process_group",
)  # fmt: skip


@dataclass(frozen=True)
class LeftBehind:
    """One difference between the state before a case and that after it.

    Attributes:
        kind: What differs: a key of `_facts` or of `_memory`.
        is_restored: Whether the next case finds it as it was.
    """

    kind: str
    before: Any
    after: Any
    is_restored: bool


@dataclass(frozen=True)
class _Fact:
    """One part of the state: how it is read, and how it is put back, where it can be.

    What every case may use, such as random numbers, is put back in silence.
    """

    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None
    is_silent: bool = False


def _facts() -> dict[str, _Fact]:
    facts = {
        "default_dtype": _Fact(torch.get_default_dtype, torch.set_default_dtype),
        "num_threads": _Fact(torch.get_num_threads, torch.set_num_threads),
        "anomaly_mode": _Fact(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "grad_mode": _Fact(torch.is_grad_enabled, torch.set_grad_enabled),
        "default_device": _Fact(torch.get_default_device, torch.set_default_device),
        "deterministic": _Fact(
            torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
        ),
        "backends": _Fact(_backends, _put_backends),
        "flush_denormal": _Fact(_flushes_denormal, torch.set_flush_denormal),
        "collector": _Fact(lambda: [gc.isenabled(), *gc.get_threshold()], _put_collector),
        "folder": _Fact(_folder, os.chdir),
        "priority": _Fact(
            lambda: os.getpriority(os.PRIO_PROCESS, 0),
            lambda nice: os.setpriority(os.PRIO_PROCESS, 0, nice),
        ),
        "signals": _Fact(_signals, _put_signals),
        "profiler": _Fact(sys.getprofile, sys.setprofile),
        "tracer": _Fact(sys.gettrace, sys.settrace),
        "random": _Fact(
            _random, lambda states: [put(state) for put, state in states], is_silent=True
        ),
        "environment": _Fact(_environment, _put_environment),
        "collectives": _Fact(
            lambda: {name: getattr(distributed, name) for name in COLLECTIVES},
            vars(distributed).update,
        ),
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


def _backends() -> dict[str, Any]:
    """Return torch's precisions and its libraries' switches, but older ones that others rule."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are newer ones
        for name, switch in _switches().items():
            with contextlib.suppress(RuntimeError):
                found[name] = switch.read()
    return found


def _put_backends(values: dict[str, Any]) -> None:
    for name, switch in _switches().items():
        if name in values and switch.write:
            switch.write(values[name])


def _switches() -> dict[str, _Fact]:
    """Return the switches by their names below `torch.backends`, those that rule others last."""
    found = {
        "matmul_precision": _Fact(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        )
    }
    for name in SWITCHES:
        *parts, switch = name.split(".")
        owner: Any = torch.backends
        for part in parts:
            owner = getattr(owner, part, None)
        if switch in dir(owner):  # of this version of torch
            found[name] = _Fact(partial(getattr, owner, switch), partial(setattr, owner, switch))
    return found


def _flushes_denormal() -> bool:
    normal = torch.tensor(sys.float_info.min, dtype=torch.float64, device="cpu")
    return bool(normal / 2 == 0)


def _put_collector(values: list[Any]) -> None:
    gc.set_threshold(*values[1:])
    (gc.enable if values[0] else gc.disable)()


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109, as `os.chdir`
    except FileNotFoundError:  # a case has removed it
        return None


def _signals() -> dict[str, Any]:
    # A DataLoader with workers sets SIGCHLD's once, to hear of those that die.
    return {
        signals.name: signal.getsignal(signals)
        for signals in signal.Signals
        if signals != signal.SIGCHLD
    }


def _put_signals(handlers: dict[str, Any]) -> None:
    for name, handler in handlers.items():
        if signal.getsignal(signal.Signals[name]) != handler:
            signal.signal(signal.Signals[name], handler)


def _random() -> list[tuple[Callable[[Any], object], Any]]:
    """Return where the generators of random numbers are, each behind what puts it back."""
    found: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()), (torch.set_rng_state, torch.get_rng_state()),
    ]  # fmt: skip
    if numpy := sys.modules.get("numpy"):
        found.append((numpy.random.set_state, numpy.random.get_state()))
    if torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_OF_CASES}


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


def _memory() -> dict[str, int]:
    """Return the bytes that this process holds on its GPU, and on its host without libraries' code.

    Where there is a GPU, the host's are left out: CUDA loads a library's kernels into them in
    whichever case first needs them, hundreds of MB at once, which is no leak of that case. And a
    case may have left no file descriptor to read them with.
    """
    found = {"gpu_memory_bytes": torch.cuda.memory_allocated()}
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    if not torch.cuda.is_available():
        with contextlib.suppress(OSError):
            known = psutil.Process().memory_info()
            found["memory_bytes"] = known.rss - getattr(known, "shared", 0)
    return found


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


class State:
    """The state before a case.

    Args:
        is_first: Whether it is the process's first case, which holds what it imports.
    """

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        self._facts = _facts()
        self._before = {name: fact.read() for name, fact in self._facts.items()}
        self._memory = _memory()

    def left_behind(self) -> list[LeftBehind]:
        """Put back what can be, and return all that differs, as values that JSON knows."""
        left, after = list(self._differences()), _memory()
        return left + [
            LeftBehind(kind, before, after[kind], is_restored=False)
            for kind, before in self._memory.items()
            if after.get(kind, 0) - before > LEAK_BYTES
        ]

    def is_under(self, left: LeftBehind) -> bool:
        """Tell whether the case began with what an earlier one had left."""
        if left.kind in self._facts:
            return bool(self._before[left.kind] != left.before)
        return bool(self._memory.get(left.kind, 0) - left.before > LEAK_BYTES)

    def _differences(self) -> Iterator[LeftBehind]:
        for name, fact in self._facts.items():
            before, after = self._before[name], fact.read()
            if name == "python_threads":
                is_equal = set(after) <= set(before)  # one that has ended is not left behind
            else:
                is_equal = not fact.is_silent and after == before
            if is_equal:
                continue
            if fact.write:
                with contextlib.suppress(OSError, TypeError, ValueError):  # as of a lost folder
                    fact.write(before)
            # What the first case imports may set new variables.
            is_import = (
                self._is_first
                and name == "environment"
                and before.items() <= after.items()
                and not any(map(steers_torch, after.keys() - before.keys()))
            )
            if not (fact.is_silent or is_import):
                is_restored = fact.write is not None and fact.read() == before
                yield LeftBehind(name, _plain(before, after), _plain(after, before), is_restored)


class Earlier:
    """What cases of this process have left for those that follow: what runs, and what stays."""

    def __init__(self) -> None:
        self._started_by: dict[tuple[str, int], str] = {}
        self._in_place: list[tuple[str, LeftBehind]] = []
        self.begin()

    def begin(self) -> None:
        """Note what runs as a case begins."""
        self._at_start, self._begun_s = _workers(), time.monotonic()

    def end(self, case: str, state: State, left: list[LeftBehind]) -> list[dict[str, Any]]:
        """Return what earlier cases left that this one ran with, and note what this one leaves.

        Each is the kind of a flag with its values.
        """
        under = [pair for pair in self._in_place if state.is_under(pair[1])]
        self._in_place = under + [
            (case, each) for each in left if not each.is_restored and each.kind not in HARMLESS
        ]
        flags: list[dict[str, Any]] = [
            {"kind": "ran-under", "case": by, "what": each.kind, "before": each.before,
             "after": each.after}
            for by, each in under
        ]  # fmt: skip
        now, elapsed_s = _workers(), time.monotonic() - self._begun_s
        for key, (name, spent_s) in now.items():
            by = self._started_by.setdefault(key, "" if key in self._at_start else case)
            cores = (spent_s - self._at_start.get(key, ("", spent_s))[1]) / elapsed_s
            if by not in ("", case) and cores > BUSY_CORES:
                what = f"{key[0]} {name}"
                flags.append(
                    {"kind": "ran-beside", "case": by, "what": what, "cores": round(cores, 2)}
                )
        self._started_by = {key: self._started_by[key] for key in now}
        return flags


def _plain(value: Any, other: Any) -> Any:
    """Return a value as JSON knows it: of several those that differ, functions by modules."""
    if isinstance(value, dict):
        return {
            name: str(getattr(one, "__module__", None)) if isroutine(one) else _plain(one, None)
            for name, one in value.items()
            if one != other.get(name)
        }
    return value if isinstance(value, (bool, int, list)) else str(value)
