"""What ranks speak through: interfaces and InfiniBand ports, and the links that NCCL chose."""
