"""Variables that torch, its threads and its communication read: what of them is recorded."""

# What NCCL, RCCL, gloo and the libraries below them read: libfabric, the plugin of AWS that joins
# NCCL to it, UCX and ROCm's runtime. A job hands all of it on into an image.
COMMUNICATION_PREFIXES = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_", "UCX_", "HSA_"),
)
PREFIXES = (*COMMUNICATION_PREFIXES, "TORCH_", "OMP_", "MKL_", "OPENBLAS_")
# How many threads OpenMP and the usual libraries of linear algebra take.
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Which network interface NCCL and gloo take (their documentation, "Environment Variables";
# PyTorch, "Distributed communication package").
INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
NAMES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
    "TORCH_DISTRIBUTED_DEBUG",
)


def steers_torch(name: str) -> bool:
    """Return whether torch, its threads or its communication read a variable."""
    return name in NAMES or name.startswith(PREFIXES)
