"""What is wrong with the variables that NCCL, Gloo and torch.distributed read.

NCCL passes over a value that it does not know in silence, and a job runs on with the default:
nothing but a check beforehand shows it.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from lockstep.before.lint.nccl_variables import (
    DEFAULT_SUBSYSTEMS,
    GONE,
    KNOWN,
    OTHERS,
    SOCKETS,
    STARTING,
    THREADS,
    OneOf,
    Values,
)
from lockstep.core.system.environment import INTERFACE_NAMES

Kind = Literal["name", "value", "interface", "slow", "costly"]


@dataclass(frozen=True)
class Problem:
    """One variable that is not as it should be.

    Attributes:
        message: What is wrong, and what is allowed.
        kind: `name`, not a variable of NCCL's (or not any more); `value`, not a value it takes;
            `interface`, not on this machine; `slow`, good but not while something is timed;
            `costly`, it slows every step.
    """

    name: str
    value: str
    message: str
    action: str
    kind: Kind


_TO_DEBUG = "leave it out, except to debug"
_BLOCKING = ("the host waits for each kernel, so nothing overlaps", _TO_DEBUG)
_SLOWER_PATH = "leave it out, unless a fault of this machine needs it; then name the fault there"
_BY_HOST = ("GPUs of a node then talk through the host's memory, not NVLink", _SLOWER_PATH)
_BY_TCP = ("nodes then talk over TCP, not InfiniBand or RoCE", _SLOWER_PATH)
_CHOSEN = ("NCCL alone would take the fastest for each message", "leave it out, except to test it")
# variable -> (values that cost speed, as a pattern; what they do; what to do instead)
COSTLY: dict[str, tuple[str, str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", *_BLOCKING),
    "HIP_LAUNCH_BLOCKING": ("1", *_BLOCKING),
    "AMD_SERIALIZE_KERNEL": ("[123]", *_BLOCKING),
    "AMD_SERIALIZE_COPY": ("[123]", *_BLOCKING),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "the driver then allocates each tensor", _TO_DEBUG),
    "NCCL_IB_DISABLE": ("1", *_BY_TCP),
    "NCCL_NET": ("(?i:socket)", *_BY_TCP),
    "NCCL_P2P_DISABLE": ("1", *_BY_HOST),
    "NCCL_P2P_LEVEL": ("LOC|0", *_BY_HOST),
    "NCCL_SHM_DISABLE": ("1", "ranks of a node may then talk over the network", _SLOWER_PATH),
    "NCCL_NET_GDR_LEVEL": ("LOC|0", "the network then reaches a GPU by the host", _SLOWER_PATH),
    "FI_PROVIDER": ("(?i:tcp|sockets)", "libfabric then talks over TCP", _SLOWER_PATH),
    "NCCL_PROTO": ("[^^].*", *_CHOSEN),
    "NCCL_ALGO": ("[^^].*", *_CHOSEN),
    "NCCL_CHECK_POINTERS": ("1", "NCCL then checks every pointer", _TO_DEBUG),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "the host then waits for each collective", _TO_DEBUG),
}
MAX_INTERFACE_NAME = 15  # IFNAMSIZ of Linux, less its final zero
MAX_SOCKETS = 64  # NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD


def problems(
    environ: Mapping[str, str], interfaces: Collection[str] | None = None
) -> list[Problem]:
    """Return what is wrong with the variables of NCCL, Gloo and torch.distributed.

    Args:
        environ: Variables, others too. An empty value counts as unset; one with a `$` is not known
            yet. Neither is judged.
        interfaces: Network interfaces of the machine, or None where they are not known.
    """
    found = []
    for name, value in environ.items():
        problem = _of_name(name, value)
        if problem is None and value and "$" not in value:
            problem = _of_value(name, value, environ, interfaces)
        if problem is not None:
            found.append(problem)
    return found


def _of_name(name: str, value: str) -> Problem | None:
    if name in GONE:
        fate, action = GONE[name]
        return Problem(name, value, f"{name} {fate}", action, "name")
    if name in KNOWN or not name.startswith(("NCCL_", "TORCH_NCCL_")) or OTHERS.fullmatch(name):
        return None
    near = difflib.get_close_matches(name[:80], [*KNOWN, *GONE], n=1, cutoff=0.8)
    if not near and name.startswith("TORCH_"):
        return None  # PyTorch documents only a part of its own
    action = f"did you mean {near[0]}?" if near else "leave it out, unless a plugin documents it"
    return Problem(name, value, f"{name} is not in NCCL's documentation", action, "name")


def _of_value(
    name: str, value: str, environ: Mapping[str, str], interfaces: Collection[str] | None
) -> Problem | None:
    if name in INTERFACE_NAMES:
        return _of_interface(name, value, interfaces)
    if name in KNOWN and not KNOWN[name].accept(value):
        return _bad_value(name, value, KNOWN[name])
    if name == "NCCL_NSOCKS_PERTHREAD":
        return _too_many_sockets(value, environ.get("NCCL_SOCKET_NTHREADS", "1"))
    return _slow(name, value, environ)


def _bad_value(name: str, value: str, values: Values) -> Problem:
    words = values.words if isinstance(values, OneOf) else ()
    # A word is often known by its beginning: NVLINK for NVL.
    near = [word for word in words if value.upper().startswith(word)]
    near = near or difflib.get_close_matches(value[:80].upper(), words, n=1)
    action = f"set it to {near[0]}" if near else "set it to one of these, or leave it out"
    return Problem(
        name, value, f"{name}={value} is not a value of it; allowed: {values.allowed}", action,
        "value",
    )  # fmt: skip


def _too_many_sockets(sockets: str, threads: str) -> Problem | None:
    if (SOCKETS.parse(sockets) or 0) * (THREADS.parse(threads) or 0) <= MAX_SOCKETS:
        return None
    name = "NCCL_NSOCKS_PERTHREAD"
    message = f"{name}={sockets} x NCCL_SOCKET_NTHREADS={threads} is more than {MAX_SOCKETS}"
    return Problem(name, sockets, message, "lower one of the two", "value")


def _slow(name: str, value: str, environ: Mapping[str, str]) -> Problem | None:
    pattern, effect, instead = COSTLY.get(name, ("", "", ""))
    if pattern and re.fullmatch(pattern, value):
        return Problem(name, value, f"{name}={value}: {effect}", instead, "costly")
    level = value.upper()
    if name == "TORCH_DISTRIBUTED_DEBUG" and level == "DETAIL":
        why = "checks every collective among all ranks, which slows what is timed"
        return Problem(name, value, f"{name}={value} {why}", "leave it out of timed runs", "slow")
    if name != "NCCL_DEBUG" or level not in ("INFO", "TRACE"):
        return None
    chosen = (environ.get("NCCL_DEBUG_SUBSYS") or DEFAULT_SUBSYSTEMS).upper().split(",")
    if level == "INFO" and set(chosen) <= STARTING:
        return None
    action = "use WARN, or NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET to see the network used"
    return Problem(
        name, value, f"{name}={value} writes a log while ranks are timed", action, "slow"
    )


def _of_interface(name: str, value: str, interfaces: Collection[str] | None) -> Problem | None:
    is_nccl = name == "NCCL_SOCKET_IFNAME"
    fault = _syntax_fault(value, is_nccl)
    if fault:
        form = "[^][=]NAME[,NAME...]" if is_nccl else "NAME[,NAME...]"
        message = f"{name}={value} {fault}; allowed: {form}"
        return Problem(name, value, message, "list names with commas only", "value")
    missing = _missing(value, is_nccl, interfaces) if interfaces is not None else []
    if not missing:
        return None
    has = ", ".join(sorted(interfaces or ())) or "none"
    message = f"{name}={value} names no interface of this machine, which has {has}"
    return Problem(
        name, value, message, "use one that all nodes have: srun ip -brief link", "interface"
    )


def _syntax_fault(value: str, is_nccl: bool) -> str | None:
    """Return what is wrong with a list of interfaces; ^ and = come once, before all names."""
    names = value.removeprefix("^").removeprefix("=") if is_nccl else value
    if not names:
        return "names no interface"
    if "^" in names or "=" in names:
        once = "has ^ or = where only a name may stand"
        return once if is_nccl else "has ^ or =, which Gloo does not know"
    for name in names.split(","):
        if not name:
            return "has a comma without a name"
        if len(name) > MAX_INTERFACE_NAME or not re.fullmatch(r"[^\s/:]+", name):
            return f"has {name[:40]!r}, which is no name of an interface"
    return None


def _missing(value: str, is_nccl: bool, interfaces: Collection[str]) -> list[str]:
    """Return the names that match nothing here; NCCL wants one of them, Gloo all."""
    names = value.lstrip("^=").split(",")
    if not is_nccl:
        return [name for name in names if name not in interfaces]
    if value.startswith("^="):
        return [value] if set(interfaces) <= set(names) else []
    if value.startswith("^"):
        return [value] if all(one.startswith(tuple(names)) for one in interfaces) else []
    if value.startswith("="):
        return [] if set(names) & set(interfaces) else names
    return [] if any(one.startswith(tuple(names)) for one in interfaces) else names
