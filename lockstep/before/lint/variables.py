"""What is wrong with the variables that NCCL, Gloo and torch.distributed read.

NCCL passes over a value that it does not know in silence, and a job runs on with the default:
nothing but a check beforehand shows it.

Variables that NCCL, Gloo and torch.distributed read: their names, and what they may be set to.

Sources: "Environment Variables", NCCL user guide of NVIDIA, as of NCCL 2.32; "PYTORCH
ProcessGroupNCCL Environment Variables" and "Distributed communication package -
torch.distributed", PyTorch documentation. A value that NCCL does not know is passed over in
silence, so a job runs on with the default: nothing but a check beforehand shows it.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from lockstep.core.processes import INTERFACE_NAMES


class Values(Protocol):
    """What a variable may be set to."""

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        ...

    def accept(self, value: str) -> bool:
        """Return whether a value is allowed."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number in a range, as NCCL reads one: by C's strtoll, base 0.

    So 0x begins a hexadecimal number and 0 an octal one, and 08 would be read as 0.
    """

    low: int = 0
    high: int | None = None

    @property
    def allowed(self) -> str:
        """The range, in words."""
        if self.high is None:
            return f"a whole number from {self.low}"
        return f"a whole number from {self.low} to {self.high}"

    def accept(self, value: str) -> bool:
        """Return whether the value is a number of the range."""
        return self.parse(value) is not None

    def parse(self, value: str) -> int | None:
        """Return the number; None where it is outside the range."""
        match = re.fullmatch(r"-?(0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,20}|[1-9][0-9]{0,19})", value)
        if match is None:
            return None
        base = 16 if "x" in value.lower() else 8 if match[1].startswith("0") else 10
        number = int(value, base)
        is_in_range = self.low <= number and (self.high is None or number <= self.high)
        return number if is_in_range else None


@dataclass(frozen=True)
class OneOf:
    """One of some words, or where `integers` is set a number of old."""

    words: tuple[str, ...]
    ignore_case: bool = False
    integers: bool = False

    @property
    def allowed(self) -> str:
        """The words."""
        return ", ".join(self.words) + (" or a legacy integer" if self.integers else "")

    def accept(self, value: str) -> bool:
        """Return whether the value is one of the words."""
        if self.integers and re.fullmatch("[0-9]{1,9}", value, re.ASCII):
            return True
        return (value.upper() if self.ignore_case else value) in self.words


@dataclass(frozen=True)
class ListOf:
    """Words with commas between them, all of them left out where a ^ comes first.

    Where `by_function` is set, lists for single functions may follow: `ring;allreduce:tree`.
    """

    words: tuple[str, ...]
    by_function: bool = False

    @property
    def allowed(self) -> str:
        """The words."""
        return f"a list with commas, after ^ to leave out, of {', '.join(self.words)}"

    def accept(self, value: str) -> bool:
        """Return whether all the words are known."""
        parts = value.split(";") if self.by_function else [value]
        lists = [part.rpartition(":")[2] if self.by_function else part for part in parts]
        return all(self._all_known(text) for text in lists if text)

    def _all_known(self, text: str) -> bool:
        known = {word.upper() for word in self.words}
        # ^ before a later word is how NCCL_DEBUG_SUBSYS leaves that one out.
        return all(word.strip().removeprefix("^").upper() in known for word in text.split(","))


@dataclass(frozen=True)
class Anything:
    """A path, a name of a plugin, or another text that only the machine can judge."""

    allowed: str = "any text"

    def accept(self, value: str) -> bool:  # noqa: ARG002, the protocol's
        """Return True."""
        return True


SWITCH = Whole(0, 1)
SIZE = Whole(1)
SOCKETS = Whole(1, 64)  # of a thread
THREADS = Whole(1, 16)
LEVELS = ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE", "ALL")
SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST"),
    *("CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
)
# What is logged by default: "Environment Variables", NCCL_DEBUG_SUBSYS.
DEFAULT_SUBSYSTEMS = "INIT,BOOTSTRAP,ENV"
# What is logged while communicators are made, and not while they are used.
STARTING = {"INIT", "BOOTSTRAP", "ENV", "NET", "GRAPH", "TUNING"}
ALGORITHMS = ("Ring", "Tree", "Collnet", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT")

_SWITCHES = """
NCCL_P2P_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_NVB_DISABLE
NCCL_PXN_DISABLE NCCL_CHECKS_DISABLE NCCL_CHECK_POINTERS NCCL_COLLNET_ENABLE NCCL_COMM_BLOCKING
NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DMABUF_ENABLE NCCL_ALLOC_P2P_NET_LL_BUFFERS
NCCL_GDRCOPY_ENABLE NCCL_GDRCOPY_FIFO_ENABLE NCCL_GDRCOPY_FLUSH_ENABLE NCCL_GDRCOPY_SYNC_ENABLE
NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_GRAPH_STREAM_ORDERING NCCL_IB_ADAPTIVE_ROUTING
NCCL_IB_ECE_ENABLE NCCL_IB_EVENT_BASED_LB NCCL_IB_MERGE_NICS NCCL_IB_OOO_RQ
NCCL_IB_RETURN_ASYNC_EVENTS NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IGNORE_COLLNET_MISMATCH
NCCL_IGNORE_CPU_AFFINITY NCCL_IGNORE_NET_MISMATCH NCCL_IPC_USE_ABSTRACT_SOCKET
NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LAUNCH_RACE_FATAL NCCL_LEGACY_CUDA_REGISTER NCCL_LOCAL_REGISTER
NCCL_MEM_SYNC_DOMAIN NCCL_MULTI_RANK_GPU_ENABLE NCCL_NET_GDR_C2C NCCL_NET_GDR_READ
NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_OOB_NET_ENABLE NCCL_PXN_C2C NCCL_RAS_ENABLE
NCCL_RMA_EAGER_INIT NCCL_RUNTIME_CONNECT NCCL_SET_STACK_SIZE NCCL_SET_THREAD_NAME
NCCL_SYM_GIN_KERNELS_ENABLE NCCL_WIN_ENABLE
"""
_TEXTS = """
NCCL_COMM_ID NCCL_CONF_FILE NCCL_CTA_POLICY NCCL_DEBUG_FILE NCCL_DEBUG_TIMESTAMP_FORMAT
NCCL_ENV_PLUGIN NCCL_GIN_PLUGIN NCCL_HOSTID NCCL_IB_ADDR_RANGE NCCL_IB_HCA NCCL_IB_PKEY_VALUE
NCCL_IB_RAIL_POLICY NCCL_MNNVL_CLIQUE_ID NCCL_MNNVL_UUID NCCL_NET NCCL_NETDEVS_POLICY
NCCL_NET_MERGE_LEVEL NCCL_NET_PLUGIN NCCL_OOB_NET_IFNAME NCCL_PROFILER_PLUGIN NCCL_PSK NCCL_RAS_ADDR
NCCL_RAS_TIMEOUT_FACTOR NCCL_RMA_PLUGIN NCCL_SOCKET_IFNAME NCCL_SOCKET_MAGIC NCCL_TOPO_DUMP_FILE
NCCL_TOPO_FILE NCCL_TUNER_PLUGIN
"""
_TORCH = """
TORCH_NCCL_ABORT_IN_DESTROY_PG TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BCAST_UNIQUEID
TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_CUDA_EVENT_CACHE
TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DESYNC_DEBUG
TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING
TORCH_NCCL_EXTRA_DUMP_ON_EXEC TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN TORCH_NCCL_NAN_CHECK TORCH_NCCL_NONBLOCKING_TIMEOUT
TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RANKS_PER_ROOT TORCH_NCCL_RETHROW_CUDA_ERRORS
TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_TRACE_CPP_STACK TORCH_NCCL_USE_COMM_NONBLOCKING
TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC
"""
# variable -> what it may be set to
KNOWN: dict[str, Values] = {
    **dict.fromkeys(_SWITCHES.split(), SWITCH),
    **dict.fromkeys((_TEXTS + _TORCH).split(), Anything()),
    "NCCL_ALGO": ListOf(ALGORITHMS, by_function=True),
    "NCCL_BUFFSIZE": SIZE,
    "NCCL_CGA_CLUSTER_SIZE": Whole(0, 8),
    "NCCL_CHECK_MODE": OneOf(("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL")),
    "NCCL_COLLNET_NODE_THRESHOLD": Whole(),
    "NCCL_CROSS_NIC": Whole(0, 2),
    "NCCL_DEBUG": OneOf(("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE"), ignore_case=True),
    "NCCL_DEBUG_LEVELS": ListOf(LEVELS),
    "NCCL_DEBUG_SUBSYS": ListOf(SUBSYSTEMS),
    "NCCL_DEBUG_TIMESTAMP_LEVELS": ListOf(LEVELS),
    "NCCL_IB_ADDR_FAMILY": OneOf(("AF_INET", "AF_INET6")),
    "NCCL_IB_AR_THRESHOLD": Whole(),
    "NCCL_IB_FIFO_TC": Whole(-1),
    "NCCL_IB_GID_INDEX": Whole(-1),
    "NCCL_IB_PCI_RELAXED_ORDERING": Whole(0, 2),
    "NCCL_IB_PKEY": Whole(),
    "NCCL_IB_QPS_PER_CONNECTION": Whole(1, 128),
    "NCCL_IB_RETRY_CNT": Whole(0, 7),
    "NCCL_IB_ROCE_VERSION_NUM": Whole(1),
    "NCCL_IB_SL": Whole(-1),
    "NCCL_IB_TC": Whole(-1),
    "NCCL_IB_TIMEOUT": Whole(0, 31),
    "NCCL_LAUNCH_MODE": OneOf(("PARALLEL", "GROUP")),
    "NCCL_MAX_CTAS": Whole(1, 64),
    "NCCL_MIN_CTAS": Whole(1, 64),
    "NCCL_MNNVL_ENABLE": Whole(0, 2),
    # NCCL compares the word letter by letter, so "nvl" is as unknown to it as "NVLINK".
    "NCCL_P2P_LEVEL": OneOf(("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"), integers=True),
    "NCCL_NET_GDR_LEVEL": OneOf(("LOC", "PIX", "PXB", "PHB", "SYS"), integers=True),
    "NCCL_NET_MERGE_POLICY": OneOf(("ALL", "RAIL")),
    "NCCL_NSOCKS_PERTHREAD": SOCKETS,
    "NCCL_NTHREADS": OneOf(("64", "128", "256", "512")),
    "NCCL_NVLS_ENABLE": Whole(0, 2),
    "NCCL_P2P_LL_THRESHOLD": Whole(),
    "NCCL_P2P_NET_CHUNKSIZE": SIZE,
    "NCCL_P2P_PXN_LEVEL": Whole(0, 2),
    "NCCL_PROTO": ListOf(("LL", "LL128", "Simple"), by_function=True),
    "NCCL_SOCKET_FAMILY": OneOf(("AF_INET", "AF_INET6")),
    "NCCL_SOCKET_NTHREADS": THREADS,
    "NCCL_SOCKET_POLL_TIMEOUT_MSEC": Whole(),
    "NCCL_SOCKET_RETRY_CNT": SIZE,
    "NCCL_SOCKET_RETRY_SLEEP_MSEC": SIZE,
    "NCCL_UID_STAGGER_RATE": SIZE,
    "NCCL_UID_STAGGER_THRESHOLD": SIZE,
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Whole(0, 3),
    "TORCH_DISTRIBUTED_DEBUG": OneOf(("OFF", "INFO", "DETAIL"), ignore_case=True),
    "GLOO_SOCKET_IFNAME": Anything(),
}
# old name -> (what became of it, what to do)
GONE = {
    "NCCL_TIMEOUT": (
        "is no variable of NCCL or PyTorch and does nothing",
        "give timeout= to torch.distributed.init_process_group, or --comm-timeout to Lockstep",
    ),
    "NCCL_IB_CUDA_SUPPORT": ("was removed in NCCL 2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_GDR_LEVEL": ("was renamed in NCCL 2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_SINGLE_RING_THRESHOLD": ("was removed in NCCL 2.3", "leave it out"),
    "NCCL_LL_THRESHOLD": ("was removed in NCCL 2.5", "use NCCL_PROTO, or leave it out"),
    "NCCL_TREE_THRESHOLD": ("was removed in NCCL 2.5", "use NCCL_ALGO, or leave it out"),
    "NCCL_MAX_NRINGS": ("is of NCCL before 2.5", "use NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": ("is of NCCL before 2.5", "use NCCL_MIN_CTAS"),
    "NCCL_MAX_NCHANNELS": ("is deprecated since NCCL 2.17", "use NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ("is deprecated since NCCL 2.17", "use NCCL_MIN_CTAS"),
    **{
        f"NCCL_{name}": ("is PyTorch's and has a new name since 2.2", f"use TORCH_NCCL_{name}")
        for name in (
            *("ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "DESYNC_DEBUG", "ENABLE_TIMING"),
            "USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        )
    },
}
# Read by plugins, builds and images, not by NCCL itself.
OTHERS = re.compile(
    "NCCL_(FASTRAK|GPUDIRECTTCPX|SHARP|UCX|TESTS|OFI)_.*|"
    "NCCL_(VERSION|HOME|ROOT|DIR|PREFIX|LIBRARY|LIB_DIR|INCLUDE_DIR|LIBRARIES)"
)


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
        return (
            [value] if all(interface.startswith(tuple(names)) for interface in interfaces) else []
        )
    if value.startswith("="):
        return [] if set(names) & set(interfaces) else names
    return [] if any(interface.startswith(tuple(names)) for interface in interfaces) else names
