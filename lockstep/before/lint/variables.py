"""What is wrong with the variables that NCCL, Gloo and torch.distributed read.

NCCL ignores a value that it does not know without a word, and the job runs on with the default:
only a check beforehand shows it.

Sources: "Environment Variables", NCCL user guide of NVIDIA, as of NCCL 2.32; "PYTORCH
ProcessGroupNCCL Environment Variables" and "Distributed communication package -
torch.distributed", PyTorch documentation.
"""

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from lockstep.core.processes import INTERFACE_NAMES


@dataclass(frozen=True)
class Values:
    """What a variable may be set to: in words, as a test, and as single words where it has any."""

    allowed: str
    accept: Callable[[str], bool]
    words: tuple[str, ...] = ()


def parse_whole(value: str) -> int | None:
    """Return a whole number as NCCL reads it, by C's strtoll with base 0; None for other text.

    So 0x begins a hexadecimal number and 0 an octal one, and 08 would be read as 0.
    """
    match = re.fullmatch(r"-?(0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,20}|[1-9][0-9]{0,19})", value)
    if match is None:
        return None
    return int(value, 16 if "x" in value.lower() else 8 if match[1].startswith("0") else 10)


def _whole(low: int = 0, high: int | None = None) -> Values:
    def accept(value: str) -> bool:
        number = parse_whole(value)
        return number is not None and low <= number and (high is None or number <= high)

    return Values(f"a whole number from {low}" + ("" if high is None else f" to {high}"), accept)


def _one_of(*words: str, ignore_case: bool = False, integers: bool = False) -> Values:
    def accept(value: str) -> bool:
        is_integer = integers and re.fullmatch("[0-9]{1,9}", value, re.ASCII)
        return bool(is_integer) or (value.upper() if ignore_case else value) in words

    return Values(", ".join(words) + " or a legacy integer" * integers, accept, words)


def _list_of(*words: str, by_function: bool = False) -> Values:
    """Return a list of words; lists for single functions may follow: `ring;allreduce:tree`."""
    known = {word.upper() for word in words}

    def accept(value: str) -> bool:
        parts = value.split(";") if by_function else [value]
        lists = [part.rpartition(":")[2] if by_function else part for part in parts]
        # NCCL_DEBUG_SUBSYS also allows ^ before a later word, to exclude it.
        return all(
            word.strip().removeprefix("^").upper() in known
            for text in filter(None, lists)
            for word in text.split(",")
        )

    return Values(
        f"words separated by commas, from: {', '.join(words)}; ^ before the list excludes them",
        accept,
    )


def _interfaces(form: str, prefix: str) -> Values:
    """Return a list of interfaces, each a name of up to 15 characters (IFNAMSIZ of Linux)."""
    name = r"[^\s/:,^=]{1,15}"
    pattern = f"{prefix}{name}(,{name})*"
    return Values(form, lambda value: re.fullmatch(pattern, value) is not None)


# A path, a name of a plugin, or another text that only the machine can judge.
ANYTHING = Values("any text", lambda _: True)
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
NCCL_RAS_TIMEOUT_FACTOR NCCL_RMA_PLUGIN NCCL_SOCKET_MAGIC NCCL_TOPO_DUMP_FILE
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
    **dict.fromkeys(_SWITCHES.split(), _whole(0, 1)),
    **dict.fromkeys((_TEXTS + _TORCH).split(), ANYTHING),
    "NCCL_ALGO": _list_of(*ALGORITHMS, by_function=True),
    "NCCL_BUFFSIZE": _whole(1),
    "NCCL_CGA_CLUSTER_SIZE": _whole(0, 8),
    "NCCL_CHECK_MODE": _one_of("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"),
    "NCCL_COLLNET_NODE_THRESHOLD": _whole(),
    "NCCL_CROSS_NIC": _whole(0, 2),
    "NCCL_DEBUG": _one_of("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE", ignore_case=True),
    "NCCL_DEBUG_LEVELS": _list_of(*LEVELS),
    "NCCL_DEBUG_SUBSYS": _list_of(*SUBSYSTEMS),
    "NCCL_DEBUG_TIMESTAMP_LEVELS": _list_of(*LEVELS),
    "NCCL_IB_ADDR_FAMILY": _one_of("AF_INET", "AF_INET6"),
    "NCCL_IB_AR_THRESHOLD": _whole(),
    "NCCL_IB_FIFO_TC": _whole(-1),
    "NCCL_IB_GID_INDEX": _whole(-1),
    "NCCL_IB_PCI_RELAXED_ORDERING": _whole(0, 2),
    "NCCL_IB_PKEY": _whole(),
    "NCCL_IB_QPS_PER_CONNECTION": _whole(1, 128),
    "NCCL_IB_RETRY_CNT": _whole(0, 7),
    "NCCL_IB_ROCE_VERSION_NUM": _whole(1),
    "NCCL_IB_SL": _whole(-1),
    "NCCL_IB_TC": _whole(-1),
    "NCCL_IB_TIMEOUT": _whole(0, 31),
    "NCCL_LAUNCH_MODE": _one_of("PARALLEL", "GROUP"),
    "NCCL_MAX_CTAS": _whole(1, 64),
    "NCCL_MIN_CTAS": _whole(1, 64),
    "NCCL_MNNVL_ENABLE": _whole(0, 2),
    # NCCL compares the word letter by letter, so "nvl" is as unknown to it as "NVLINK".
    "NCCL_P2P_LEVEL": _one_of("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", integers=True),
    "NCCL_NET_GDR_LEVEL": _one_of("LOC", "PIX", "PXB", "PHB", "SYS", integers=True),
    "NCCL_NET_MERGE_POLICY": _one_of("ALL", "RAIL"),
    "NCCL_NSOCKS_PERTHREAD": _whole(1, 64),  # of a thread
    "NCCL_NTHREADS": _one_of("64", "128", "256", "512"),
    "NCCL_NVLS_ENABLE": _whole(0, 2),
    "NCCL_P2P_LL_THRESHOLD": _whole(),
    "NCCL_P2P_NET_CHUNKSIZE": _whole(1),
    "NCCL_P2P_PXN_LEVEL": _whole(0, 2),
    "NCCL_PROTO": _list_of("LL", "LL128", "Simple", by_function=True),
    "NCCL_SOCKET_FAMILY": _one_of("AF_INET", "AF_INET6"),
    "NCCL_SOCKET_NTHREADS": _whole(1, 16),
    "NCCL_SOCKET_POLL_TIMEOUT_MSEC": _whole(),
    "NCCL_SOCKET_RETRY_CNT": _whole(1),
    "NCCL_SOCKET_RETRY_SLEEP_MSEC": _whole(1),
    "NCCL_UID_STAGGER_RATE": _whole(1),
    "NCCL_UID_STAGGER_THRESHOLD": _whole(1),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _whole(0, 3),
    "TORCH_DISTRIBUTED_DEBUG": _one_of("OFF", "INFO", "DETAIL", ignore_case=True),
    "GLOO_SOCKET_IFNAME": _interfaces("NAME[,NAME...]", ""),
    "NCCL_SOCKET_IFNAME": _interfaces("[^][=]NAME[,NAME...]", r"\^?=?"),
}
# wrong or old name -> (what is wrong with it, what to do)
GONE = {
    "NCCL_TIMEOUT": (
        "is not a variable of NCCL or PyTorch and has no effect",
        "give timeout= to torch.distributed.init_process_group, or --comm-timeout to Lockstep",
    ),
    "NCCL_IB_CUDA_SUPPORT": ("was removed in NCCL 2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_GDR_LEVEL": ("was renamed in NCCL 2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_SINGLE_RING_THRESHOLD": ("was removed in NCCL 2.3", "unset it"),
    "NCCL_LL_THRESHOLD": ("was removed in NCCL 2.5", "use NCCL_PROTO, or unset it"),
    "NCCL_TREE_THRESHOLD": ("was removed in NCCL 2.5", "use NCCL_ALGO, or unset it"),
    "NCCL_MAX_NRINGS": ("was renamed in NCCL 2.5", "use NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": ("was renamed in NCCL 2.5", "use NCCL_MIN_CTAS"),
    "NCCL_MAX_NCHANNELS": ("is deprecated since NCCL 2.17", "use NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ("is deprecated since NCCL 2.17", "use NCCL_MIN_CTAS"),
    **{
        f"NCCL_{name}": ("was renamed in PyTorch 2.2", f"use TORCH_NCCL_{name}")
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
    """One variable with a wrong name or a wrong, slow or costly value.

    Attributes:
        message: What is wrong, and what is allowed.
        kind: `name`, not (or no longer) a variable of NCCL; `value`, not a value that it accepts;
            `interface`, not on this machine; `slow`, valid, but not in timed runs;
            `costly`, slows every step.
    """

    name: str
    value: str
    message: str
    action: str
    kind: Kind


_TO_DEBUG = "unset it, except to debug"
_BLOCKING = ("the host waits for each kernel, so nothing overlaps", _TO_DEBUG)
_SLOWER_PATH = "unset it, unless a fault of this machine needs it; then name the fault there"
_BY_HOST = (
    "GPUs of a node exchange data through the host's memory instead of NVLink",
    _SLOWER_PATH,
)
_BY_TCP = ("nodes exchange data over TCP instead of InfiniBand or RoCE", _SLOWER_PATH)
_CHOSEN = ("NCCL cannot choose the fastest for each message", "unset it, except to test it")
# variable -> (pattern of slow values; their effect; what to do instead)
COSTLY: dict[str, tuple[str, str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", *_BLOCKING),
    "HIP_LAUNCH_BLOCKING": ("1", *_BLOCKING),
    "AMD_SERIALIZE_KERNEL": ("[123]", *_BLOCKING),
    "AMD_SERIALIZE_COPY": ("[123]", *_BLOCKING),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "the driver allocates each tensor anew", _TO_DEBUG),
    "NCCL_IB_DISABLE": ("1", *_BY_TCP),
    "NCCL_NET": ("(?i:socket)", *_BY_TCP),
    "NCCL_P2P_DISABLE": ("1", *_BY_HOST),
    "NCCL_P2P_LEVEL": ("LOC|0", *_BY_HOST),
    "NCCL_SHM_DISABLE": ("1", "ranks of a node may exchange data over the network", _SLOWER_PATH),
    "NCCL_NET_GDR_LEVEL": (
        "LOC|0",
        "the network reaches a GPU only through the host",
        _SLOWER_PATH,
    ),
    "FI_PROVIDER": ("(?i:tcp|sockets)", "libfabric uses TCP", _SLOWER_PATH),
    "NCCL_PROTO": ("[^^].*", *_CHOSEN),
    "NCCL_ALGO": ("[^^].*", *_CHOSEN),
    "NCCL_CHECK_POINTERS": ("1", "NCCL checks every pointer", _TO_DEBUG),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "the host waits for each collective", _TO_DEBUG),
}
MAX_SOCKETS = 64  # NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD


def problems(
    environ: Mapping[str, str], interfaces: Collection[str] | None = None
) -> list[Problem]:
    """Return the problems of the variables of NCCL, Gloo and torch.distributed.

    Args:
        environ: Any variables. An empty value counts as unset; one with a `$` is not known
            yet. Neither is judged.
        interfaces: Network interfaces of the machine, or None if they are not known.
    """
    found = []
    for name, value in environ.items():
        fault = _fault_of_name(name)
        if fault is None and value and "$" not in value:
            fault = _fault_of_value(name, value, environ, interfaces)
        if fault is not None:
            kind, message, action = fault
            found.append(Problem(name, value, message, action, kind))
    return found


def _fault_of_name(name: str) -> tuple[Kind, str, str] | None:
    if name in GONE:
        fate, action = GONE[name]
        return "name", f"{name} {fate}", action
    if name in KNOWN or not name.startswith(("NCCL_", "TORCH_NCCL_")) or OTHERS.fullmatch(name):
        return None
    near = difflib.get_close_matches(name[:80], [*KNOWN, *GONE], n=1, cutoff=0.8)
    if not near and name.startswith("TORCH_"):
        return None  # PyTorch documents only a part of its own
    action = f"did you mean {near[0]}?" if near else "remove it, unless a plugin documents it"
    return "name", f"{name} is not in NCCL's documentation", action


def _fault_of_value(
    name: str, value: str, environ: Mapping[str, str], interfaces: Collection[str] | None
) -> tuple[Kind, str, str] | None:
    setting = f"{name}={value}"
    if name in KNOWN and not KNOWN[name].accept(value):
        words = KNOWN[name].words
        # A word is often known by its beginning: NVLINK for NVL.
        near = [word for word in words if value.upper().startswith(word)]
        near = near or difflib.get_close_matches(value[:80].upper(), words, n=1)
        action = f"set it to {near[0]}" if near else "set it to one of these, or unset it"
        return "value", f"{setting} is not a valid value; allowed: {KNOWN[name].allowed}", action
    if name in INTERFACE_NAMES and interfaces is not None and _is_missing(name, value, interfaces):
        present = ", ".join(sorted(interfaces)) or "none"
        message = f"{setting} matches no interface of this machine, which has {present}"
        return "interface", message, "use one that all nodes have: srun ip -brief link"
    if name == "NCCL_NSOCKS_PERTHREAD":
        threads = environ.get("NCCL_SOCKET_NTHREADS", "1")
        product = (parse_whole(value) or 0) * (parse_whole(threads) or 0)
        if KNOWN["NCCL_SOCKET_NTHREADS"].accept(threads) and product > MAX_SOCKETS:
            message = f"{setting} x NCCL_SOCKET_NTHREADS={threads} is more than {MAX_SOCKETS}"
            return "value", message, "lower one of the two variables"
    pattern, effect, instead = COSTLY.get(name, ("", "", ""))
    if pattern and re.fullmatch(pattern, value):
        return "costly", f"{setting}: {effect}", instead
    level = value.upper()
    if name == "TORCH_DISTRIBUTED_DEBUG" and level == "DETAIL":
        message = f"{setting} checks every collective among all ranks, which slows timed steps"
        return "slow", message, "unset it in timed runs"
    if name == "NCCL_DEBUG" and level in ("INFO", "TRACE"):
        chosen = (environ.get("NCCL_DEBUG_SUBSYS") or DEFAULT_SUBSYSTEMS).upper().split(",")
        if level == "TRACE" or not set(chosen) <= STARTING:
            return (
                "slow", f"{setting} writes a log during timed steps",
                "use WARN, or NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET to see the network",
            )  # fmt: skip
    return None


def _is_missing(name: str, value: str, interfaces: Collection[str]) -> bool:
    """Return whether the named interfaces do not exist; NCCL needs one of them, Gloo all."""
    names = tuple(value.lstrip("^=").split(","))
    if name != "NCCL_SOCKET_IFNAME":
        return not set(names) <= set(interfaces)
    is_exact = "=" in value[:2]
    matches = [
        link for link in interfaces if (link in names if is_exact else link.startswith(names))
    ]
    return len(matches) == len(interfaces) if value.startswith("^") else not matches
