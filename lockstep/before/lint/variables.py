"""Checks of the variables that NCCL, Gloo and torch.distributed read.

NCCL silently ignores a value that it does not know, and the job uses the default.

Sources: "Environment Variables", NCCL user guide of NVIDIA, as of NCCL 2.32; "PYTORCH
ProcessGroupNCCL Environment Variables" and "Distributed communication package -
torch.distributed", PyTorch documentation.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from lockstep.core.processes import INTERFACE_NAMES


@dataclass(frozen=True)
class Values:
    """The allowed values of a variable: in words, as a test, and as a list if they are words."""

    allowed: str
    accept: Callable[[str], bool]
    words: tuple[str, ...] = ()


def _ints(low: int, high: float = math.inf) -> Values:
    """Allow whole numbers as C's strtoll reads them: 0x10 is hexadecimal, 010 is octal."""

    def accept(value: str) -> bool:
        if not re.fullmatch(r"-?(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})", value, re.ASCII):
            return False
        try:
            return low <= int(re.sub(r"^(-?)0(?=[0-9])", r"\g<1>0o", value), 0) <= high
        except ValueError:  # such as 08, which is not octal
            return False

    allowed = f"a whole number from {low} upwards"
    if math.isfinite(high):
        allowed = f"a whole number from {low} to {high}"
    return Values(allowed, accept)


def _words(*words: str, ignore_case: bool = False, integers: bool = False) -> Values:
    def accept(value: str) -> bool:
        is_integer = integers and re.fullmatch("[0-9]{1,9}", value, re.ASCII)
        return bool(is_integer) or (value.upper() if ignore_case else value) in words

    allowed = allowed_words = ", ".join(words)
    if integers:
        allowed = f"{allowed_words} or, as in older versions of NCCL, an integer"
    return Values(allowed, accept, words)


def _list(*words: str, by_function: bool = False) -> Values:
    """Allow a list of words; with `by_function`, several lists as in `ring;allreduce:tree`."""
    # NCCL_DEBUG_SUBSYS also allows ^ before a later word, to exclude it.
    entry = rf" *\^?({'|'.join(words)}) *"
    entries = f"({entry}(,{entry})*)?"
    pattern = f"([^;]*:)?{entries}(;([^;]*:)?{entries})*" if by_function else entries
    allowed_words = ", ".join(words)
    return Values(
        f"a list of {allowed_words}, separated by commas; ^ before the list excludes its words",
        lambda value: re.fullmatch(pattern, value, re.IGNORECASE) is not None,
    )


def _interfaces(form: str, prefix: str) -> Values:
    """Allow a list of interfaces, each a name of up to 15 characters (IFNAMSIZ of Linux)."""
    name = r"[^\s/:,^=]{1,15}"
    pattern = f"{prefix}{name}(,{name})*"
    return Values(form, lambda value: re.fullmatch(pattern, value) is not None)


LEVELS = ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE")
SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST"),
    *("CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
)
# Subsystems that NCCL logs by default ("Environment Variables", NCCL_DEBUG_SUBSYS).
DEFAULT_SUBSYSTEMS = "INIT,BOOTSTRAP,ENV"
# Subsystems that log only while communicators are made, not while they are used.
STARTING = {"INIT", "BOOTSTRAP", "ENV", "NET", "GRAPH", "TUNING"}
ALGORITHMS = ("Ring", "Tree", "Collnet", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT")
# allowed values -> names of the variables
TABLE: dict[Values, str] = {
    _ints(0, 1): """
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
""",
    # A path, the name of a plugin, or another text that cannot be checked here.
    Values("any text", lambda _: True): """
NCCL_COMM_ID NCCL_CONF_FILE NCCL_CTA_POLICY NCCL_DEBUG_FILE NCCL_DEBUG_TIMESTAMP_FORMAT
NCCL_ENV_PLUGIN NCCL_GIN_PLUGIN NCCL_HOSTID NCCL_IB_ADDR_RANGE NCCL_IB_HCA NCCL_IB_PKEY_VALUE
NCCL_IB_RAIL_POLICY NCCL_MNNVL_CLIQUE_ID NCCL_MNNVL_UUID NCCL_NET NCCL_NETDEVS_POLICY
NCCL_NET_MERGE_LEVEL NCCL_NET_PLUGIN NCCL_OOB_NET_IFNAME NCCL_PROFILER_PLUGIN NCCL_PSK NCCL_RAS_ADDR
NCCL_RAS_TIMEOUT_FACTOR NCCL_RMA_PLUGIN NCCL_SOCKET_MAGIC NCCL_TOPO_DUMP_FILE
NCCL_TOPO_FILE NCCL_TUNER_PLUGIN
TORCH_NCCL_ABORT_IN_DESTROY_PG TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BCAST_UNIQUEID
TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_CUDA_EVENT_CACHE
TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DESYNC_DEBUG
TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING
TORCH_NCCL_EXTRA_DUMP_ON_EXEC TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN TORCH_NCCL_NAN_CHECK TORCH_NCCL_NONBLOCKING_TIMEOUT
TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RANKS_PER_ROOT TORCH_NCCL_RETHROW_CUDA_ERRORS
TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_TRACE_CPP_STACK TORCH_NCCL_USE_COMM_NONBLOCKING
TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC
""",
    _ints(-1): "NCCL_IB_FIFO_TC NCCL_IB_GID_INDEX NCCL_IB_SL NCCL_IB_TC",
    _ints(0): "NCCL_COLLNET_NODE_THRESHOLD NCCL_IB_AR_THRESHOLD NCCL_IB_PKEY "
    "NCCL_P2P_LL_THRESHOLD NCCL_SOCKET_POLL_TIMEOUT_MSEC",
    _ints(1): "NCCL_BUFFSIZE NCCL_IB_ROCE_VERSION_NUM NCCL_P2P_NET_CHUNKSIZE "
    "NCCL_SOCKET_RETRY_CNT NCCL_SOCKET_RETRY_SLEEP_MSEC NCCL_UID_STAGGER_RATE "
    "NCCL_UID_STAGGER_THRESHOLD",
    _ints(0, 2): "NCCL_CROSS_NIC NCCL_IB_PCI_RELAXED_ORDERING NCCL_MNNVL_ENABLE NCCL_NVLS_ENABLE "
    "NCCL_P2P_PXN_LEVEL",
    _ints(0, 3): "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    _ints(0, 7): "NCCL_IB_RETRY_CNT",
    _ints(0, 8): "NCCL_CGA_CLUSTER_SIZE",
    _ints(0, 31): "NCCL_IB_TIMEOUT",
    _ints(1, 16): "NCCL_SOCKET_NTHREADS",
    _ints(1, 64): "NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_NSOCKS_PERTHREAD",
    _ints(1, 128): "NCCL_IB_QPS_PER_CONNECTION",
    _words("64", "128", "256", "512"): "NCCL_NTHREADS",
    _words("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"): "NCCL_CHECK_MODE",
    _words("AF_INET", "AF_INET6"): "NCCL_IB_ADDR_FAMILY NCCL_SOCKET_FAMILY",
    _words("PARALLEL", "GROUP"): "NCCL_LAUNCH_MODE",
    _words("ALL", "RAIL"): "NCCL_NET_MERGE_POLICY",
    # NCCL compares the whole word with its case, so it knows neither "nvl" nor "NVLINK".
    _words("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", integers=True): "NCCL_P2P_LEVEL",
    _words("LOC", "PIX", "PXB", "PHB", "SYS", integers=True): "NCCL_NET_GDR_LEVEL",
    _words(*LEVELS, ignore_case=True): "NCCL_DEBUG",
    _words("OFF", "INFO", "DETAIL", ignore_case=True): "TORCH_DISTRIBUTED_DEBUG",
    _list(*LEVELS, "ALL"): "NCCL_DEBUG_LEVELS NCCL_DEBUG_TIMESTAMP_LEVELS",
    _list(*SUBSYSTEMS): "NCCL_DEBUG_SUBSYS",
    _list(*ALGORITHMS, by_function=True): "NCCL_ALGO",
    _list("LL", "LL128", "Simple", by_function=True): "NCCL_PROTO",
    _interfaces("NAME[,NAME...]", ""): "GLOO_SOCKET_IFNAME",
    _interfaces("[^][=]NAME[,NAME...]", r"\^?=?"): "NCCL_SOCKET_IFNAME",
}
KNOWN = {name: values for values, names in TABLE.items() for name in names.split()}
RENAMED = "ASYNC_ERROR_HANDLING BLOCKING_WAIT DESYNC_DEBUG ENABLE_TIMING"
# wrong or old name -> (the problem, what to do)
GONE = {
    "NCCL_TIMEOUT": (
        "has no effect",
        "pass timeout= to torch.distributed.init_process_group, or pass --comm-timeout to Lockstep",
    ),
    "NCCL_IB_CUDA_SUPPORT": ("was removed in NCCL 2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_GDR_LEVEL": ("was renamed in NCCL 2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_SINGLE_RING_THRESHOLD": ("was removed in NCCL 2.3", "unset the variable"),
    "NCCL_LL_THRESHOLD": ("was removed in NCCL 2.5", "unset the variable, or use NCCL_PROTO"),
    "NCCL_TREE_THRESHOLD": ("was removed in NCCL 2.5", "unset the variable, or use NCCL_ALGO"),
    "NCCL_MAX_NRINGS": ("was renamed in NCCL 2.5", "use NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": ("was renamed in NCCL 2.5", "use NCCL_MIN_CTAS"),
    "NCCL_MAX_NCHANNELS": ("is deprecated since NCCL 2.17", "use NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ("is deprecated since NCCL 2.17", "use NCCL_MIN_CTAS"),
    **{
        f"NCCL_{name}": ("was renamed in PyTorch 2.2", f"use TORCH_NCCL_{name}")
        for name in (*RENAMED.split(), "USE_TENSOR_REGISTER_ALLOCATOR_HOOK")
    },
}
# Variables that plugins, builds and images read, not NCCL itself.
OTHERS = re.compile(
    "NCCL_(FASTRAK|GPUDIRECTTCPX|SHARP|UCX|TESTS|OFI)_.*|"
    "NCCL_(VERSION|HOME|ROOT|DIR|PREFIX|LIBRARY|LIB_DIR|INCLUDE_DIR|LIBRARIES)"
)
_TO_DEBUG = "unset the variable, unless you are debugging"
_BLOCKING = ("the host waits for each kernel, so no work overlaps", _TO_DEBUG)
_SLOWER_PATH = (
    "unset the variable, or add a comment that names the fault of the machine that requires this "
    "setting"
)
_BY_HOST = (
    "GPUs of a node exchange data through the host's memory instead of NVLink", _SLOWER_PATH
)  # fmt: skip
_BY_TCP = ("nodes exchange data over TCP instead of InfiniBand or RoCE", _SLOWER_PATH)
_CHOSEN = (
    "NCCL cannot choose the fastest method for each message",
    "unset the variable, except in tests of NCCL itself",
)
# variable -> (pattern of slow values; their effect; what to do instead)
COSTLY: dict[str, tuple[str, str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", *_BLOCKING),
    "HIP_LAUNCH_BLOCKING": ("1", *_BLOCKING),
    "AMD_SERIALIZE_KERNEL": ("[123]", *_BLOCKING),
    "AMD_SERIALIZE_COPY": ("[123]", *_BLOCKING),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "torch does not reuse freed GPU memory", _TO_DEBUG),
    "NCCL_IB_DISABLE": ("1", *_BY_TCP),
    "NCCL_NET": ("(?i:socket)", *_BY_TCP),
    "NCCL_P2P_DISABLE": ("1", *_BY_HOST),
    "NCCL_P2P_LEVEL": ("LOC|0", *_BY_HOST),
    "NCCL_SHM_DISABLE": ("1", "ranks of a node cannot use shared memory", _SLOWER_PATH),
    "NCCL_NET_GDR_LEVEL": ("LOC|0", "network data reach a GPU only through the host", _SLOWER_PATH),
    "FI_PROVIDER": ("(?i:tcp|sockets)", "libfabric uses TCP", _SLOWER_PATH),
    "NCCL_PROTO": ("[^^].*", *_CHOSEN),
    "NCCL_ALGO": ("[^^].*", *_CHOSEN),
    "NCCL_CHECK_POINTERS": ("1", "NCCL checks every pointer", _TO_DEBUG),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "the host waits for each collective to end", _TO_DEBUG),
}

Kind = Literal["name", "value", "interface", "slow", "costly"]


@dataclass(frozen=True)
class Problem:
    """A problem of a variable.

    Attributes:
        kind: `name`: NCCL has no such variable (any more); `value`: NCCL does not accept the value;
            `interface`: this machine lacks it; `slow`: not for timed runs; `costly`: slows steps.
    """

    name: str
    kind: Kind
    message: str
    action: str


def problems(
    environ: Mapping[str, str], interfaces: Collection[str] | None = None
) -> list[Problem]:
    """Return the problems of the variables of NCCL, Gloo and torch.distributed.

    Args:
        environ: Any variables. An empty value, or one with a `$`, is not checked.
        interfaces: Network interfaces of the machine, or None if unknown.
    """
    faults = {name: _fault(name, value, environ, interfaces) for name, value in environ.items()}
    return [Problem(name, *fault) for name, fault in faults.items() if fault]


def _fault(
    name: str, value: str, environ: Mapping[str, str], interfaces: Collection[str] | None
) -> tuple[Kind, str, str] | None:
    known, setting, level = KNOWN.get(name), f"{name}={value}", value.upper()
    if name in GONE:
        fate, action = GONE[name]
        return "name", f"{name} {fate}", action
    if not (known or OTHERS.fullmatch(name)) and name.startswith(("NCCL_", "TORCH_NCCL_")):
        near = difflib.get_close_matches(name[:80], [*KNOWN, *GONE], n=1, cutoff=0.8)
        action = (
            f"did you mean {near[0]}?"
            if near
            else "unset the variable, unless the documentation of a plugin names it"
        )
        if near or not name.startswith("TORCH_"):  # PyTorch documents only some of its variables
            return "name", f"NCCL's documentation names no variable {name}", action
    if not value or "$" in value:
        return None
    if known and not known.accept(value):
        # The beginning may be a valid word, as NVL in NVLINK.
        near = [word for word in known.words if level.startswith(word)]
        near = near or difflib.get_close_matches(level[:80], known.words, n=1)
        action = f"set it to {near[0]}" if near else "set an allowed value, or unset the variable"
        return "value", f"{setting} is not valid; allowed: {known.allowed}", action
    if name in INTERFACE_NAMES and interfaces is not None and _is_missing(name, value, interfaces):
        present = ", ".join(sorted(interfaces)) or "none"
        message = f"{setting} matches no network interface of this machine, which has {present}"
        action = (
            "name an interface that all nodes have; `srun ip -brief link` lists each node's "
            "interfaces"
        )
        return "interface", message, action
    pattern, effect, instead = COSTLY.get(name, ("", "", ""))
    if pattern and re.fullmatch(pattern, value):
        return "costly", f"{setting}: {effect}", instead
    if name == "TORCH_DISTRIBUTED_DEBUG" and level == "DETAIL":
        message = (
            f"{setting} checks each collective against those of all other ranks, which slows timed "
            "steps"
        )
        return "slow", message, "unset the variable in timed runs"
    if name == "NCCL_DEBUG" and level in ("INFO", "TRACE"):
        logged = (environ.get("NCCL_DEBUG_SUBSYS") or DEFAULT_SUBSYSTEMS).upper().split(",")
        if level == "TRACE" or not set(logged) <= STARTING:
            action = "set NCCL_DEBUG=WARN, or NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET"
            return "slow", f"NCCL writes a log during timed steps, because of {setting}", action
    return None


def _is_missing(name: str, value: str, interfaces: Collection[str]) -> bool:
    """Return whether named interfaces are missing; NCCL needs one of them, Gloo all."""
    names = tuple(value.lstrip("^=").split(","))
    if name != "NCCL_SOCKET_IFNAME":
        return not set(names) <= set(interfaces)
    is_exact = "=" in value[:2]
    matches = [
        link for link in interfaces if (link in names if is_exact else link.startswith(names))
    ]
    return len(matches) == len(interfaces) if value.startswith("^") else not matches
