"""GPUs: what datasheets, nvidia-smi and NVML say of them."""
