"""Variables that NCCL, Gloo and torch.distributed read: their names, and what they may be set to.

Sources: "Environment Variables", NCCL user guide of NVIDIA, as of NCCL 2.32; "PYTORCH
ProcessGroupNCCL Environment Variables" and "Distributed communication package -
torch.distributed", PyTorch documentation. A value that NCCL does not know is passed over in
silence, so a job runs on with the default: nothing but a check beforehand shows it.
"""

import re
from dataclasses import dataclass
from typing import Protocol


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
