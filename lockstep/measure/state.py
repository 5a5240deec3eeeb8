"""The state of the process that a case may change, such as threads, signals and torch's switches.

The state is read before each case, and read and restored after its teardown. A change that cannot
be restored is a flag of the case that made it, and of each case that is measured with it.
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
from lockstep.core.processes import descendants, steers_torch

# Less is no leak: the allocators of Python and of the C library keep freed memory.
LEAK_BYTES = 256 * MIB
# A thread or process that takes a smaller share of a core changes no median.
BUSY_CORES = 0.01
# Threads of a DataLoader with persistent workers: they wait until a step asks for a batch.
IDLE = ("QueueFeederThread", "_pin_memory_loop")
# Idle threads cost the next case nothing, and a lost group is rebuilt before it.
HARMLESS = ("python_threads", "process_group")
# Variables that pytest sets in each phase of a case, and torch when it first compiles.
NOT_OF_CASES = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
# Switches of torch.backends that choose kernels of convolutions and matrix products.
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
    """One difference between the state before a case and after it."""

    kind: str  # a key of `_facts` or of `_memory`
    before: Any
    after: Any
    is_restored: bool  # whether the next case begins with the old state


@dataclass(frozen=True)
class _Fact:
    """A part of the state: how to read and restore it; a change is no flag if `is_silent`."""

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
            random_states, lambda states: [put(state) for put, state in states], is_silent=True
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
    """Return name -> value of torch's switches; a switch that a newer one overrides is left out."""
    values: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about older switches
        for name, switch in _switches().items():
            with contextlib.suppress(RuntimeError):
                values[name] = switch.read()
    return values


def _put_backends(values: dict[str, Any]) -> None:
    for name, switch in _switches().items():
        if name in values and switch.write:
            switch.write(values[name])


def _switches() -> dict[str, _Fact]:
    """Return name below `torch.backends` -> switch, those that override others last."""
    switches = {
        "matmul_precision": _Fact(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        )
    }
    for name in SWITCHES:
        *parts, switch = name.split(".")
        owner: Any = torch.backends
        for part in parts:
            owner = getattr(owner, part, None)
        if switch in dir(owner):  # this version of torch has the switch
            switches[name] = _Fact(partial(getattr, owner, switch), partial(setattr, owner, switch))
    return switches


def _flushes_denormal() -> bool:
    normal = torch.tensor(sys.float_info.min, dtype=torch.float64, device="cpu")
    return bool(normal / 2 == 0)


def _put_collector(values: list[Any]) -> None:
    gc.set_threshold(*values[1:])
    (gc.enable if values[0] else gc.disable)()


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109, as `os.chdir`
    except FileNotFoundError:  # a case has removed the folder
        return None


def _signals() -> dict[str, Any]:
    # A DataLoader with workers sets the handler of SIGCHLD, to notice workers that die.
    numbers = (number for number in signal.Signals if number != signal.SIGCHLD)
    return {number.name: signal.getsignal(number) for number in numbers}


def _put_signals(handlers: dict[str, Any]) -> None:
    for name, handler in handlers.items():
        if signal.getsignal(signal.Signals[name]) != handler:
            signal.signal(signal.Signals[name], handler)


def random_states() -> list[tuple[Callable[[Any], object], Any]]:
    """Return (function that restores it, state) of each global generator of random numbers."""
    states: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()), (torch.set_rng_state, torch.get_rng_state()),
    ]  # fmt: skip
    if numpy := sys.modules.get("numpy"):
        states.append((numpy.random.set_state, numpy.random.get_state()))
    if torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return states


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
        with contextlib.suppress(OSError):  # the thread has ended
            os.sched_setaffinity(thread.id, cores)


def _memory() -> dict[str, int]:
    """Return the bytes that this process holds on its GPU, or else on its host.

    With a GPU the host's bytes are left out: CUDA loads a library's kernels, hundreds of MB, in
    whichever case first needs them, which is no leak of that case.
    """
    held = {"gpu_memory_bytes": torch.cuda.memory_allocated()}
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    if not torch.cuda.is_available():
        with contextlib.suppress(OSError):  # no file descriptor is left
            known = psutil.Process().memory_info()
            held["memory_bytes"] = known.rss - getattr(known, "shared", 0)
    return held


def _workers() -> dict[tuple[str, int], tuple[str, float]]:
    """Return name and CPU seconds of each Python thread and child process."""
    workers = dict[tuple[str, int], tuple[str, float]]()
    with contextlib.suppress(psutil.Error, OSError):  # no file descriptor is left
        taken = {t.id: t.user_time + t.system_time for t in psutil.Process().threads()}
        for thread in threading.enumerate():
            number = thread.native_id or 0
            is_own = thread is threading.main_thread() or thread.name.startswith("lockstep")
            if number in taken and not is_own:
                workers["thread", number] = (thread.name, taken[number])
        for child in descendants():
            with contextlib.suppress(psutil.Error):
                spent = child.cpu_times()
                workers["process", child.pid] = (child.name(), spent.user + spent.system)
    return workers


class State:
    """The state before a case; variables that the process's first case adds are no change."""

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        self._facts = _facts()
        self._before = {name: fact.read() for name, fact in self._facts.items()}
        self._memory = _memory()

    def left_behind(self) -> list[LeftBehind]:
        """Restore what can be restored, and return all differences as JSON values."""
        left, after = list(self._differences()), _memory()
        return left + [
            LeftBehind(kind, before, after[kind], is_restored=False)
            for kind, before in self._memory.items()
            if after.get(kind, 0) - before > LEAK_BYTES
        ]

    def is_under(self, left: LeftBehind) -> bool:
        """Return whether the case began with a difference that an earlier case left."""
        if left.kind in self._facts:
            return bool(self._before[left.kind] != left.before)
        return bool(self._memory.get(left.kind, 0) - left.before > LEAK_BYTES)

    def _differences(self) -> Iterator[LeftBehind]:
        for name, fact in self._facts.items():
            before, after = self._before[name], fact.read()
            if name == "python_threads":
                is_equal = set(after) <= set(before)  # a thread that has ended is not left behind
            else:
                is_equal = not fact.is_silent and after == before
            if is_equal:
                continue
            if fact.write:
                with contextlib.suppress(OSError, TypeError, ValueError):  # a removed folder
                    fact.write(before)
            # Modules that the first case imports may set new variables.
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
    """Leftovers of earlier cases of this process: threads, processes and changed state."""

    def __init__(self) -> None:
        self._started_by: dict[tuple[str, int], str] = {}
        self._in_place: list[tuple[str, LeftBehind]] = []
        self.begin()

    def begin(self) -> None:
        """Record which threads and processes run as a case begins."""
        self._at_start, self._begun_s = _workers(), time.monotonic()

    def end(self, case: str, state: State, left: list[LeftBehind]) -> list[dict[str, Any]]:
        """Return flags for leftovers that this case ran under; record those of its own."""
        under = [pair for pair in self._in_place if state.is_under(pair[1])]
        self._in_place = under + [
            (case, rest) for rest in left if not rest.is_restored and rest.kind not in HARMLESS
        ]
        flags: list[dict[str, Any]] = [
            {"kind": "ran-under", "case": by, "what": rest.kind, "before": rest.before,
             "after": rest.after}
            for by, rest in under
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
    """Return a value as JSON: of a dict the members that `other` lacks, functions by module."""
    if isinstance(value, dict):
        return {
            name: str(getattr(held, "__module__", None)) if isroutine(held) else _plain(held, None)
            for name, held in value.items()
            if held != other.get(name)
        }
    return value if isinstance(value, (bool, int, list)) else str(value)
