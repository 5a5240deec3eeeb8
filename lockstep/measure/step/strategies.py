"""Where a model's parameters lie, on every rank or in shards, and which activations are kept.

DDP holds the whole model on every rank. FSDP2 holds a shard of each parameter and gathers one block
of the model at a time (Zhao et al., PyTorch FSDP, arXiv:2304.11277). Activation checkpointing keeps
the input of a block alone and computes the rest again in the backward (Chen et al., Training Deep
Nets with Sublinear Memory Cost, arXiv:1604.06174); batch norm then counts each batch twice in its
running statistics, which no loss of training reads.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lockstep.workloads import Workload

if TYPE_CHECKING:
    from lockstep.measure.step.train_step import StepConfig


def wrap(model: nn.Module, config: "StepConfig", device: torch.device, own: Workload | None) -> Any:
    """Return a model whose backward synchronises gradients, as the strategy does it.

    For DDP the model is on the device already; FSDP moves it there block by block.

    Raises:
        ValueError: The strategy cannot do what is asked, or the model has no block to compute
            again.
    """
    if reason := unsuited(config, own):
        raise ValueError(reason)
    found = blocks(model, own)
    if config.activation_checkpointing:
        _checkpoint(found)
    return _fsdp(model, found, device) if is_sharded(config) else _ddp(model, config, device, own)


def is_sharded(config: "StepConfig") -> bool:
    """Return whether a rank holds a shard of each parameter and not the whole."""
    return config.strategy == "fsdp"


def unsuited(config: "StepConfig", own: Workload | None) -> str:
    """Return why FSDP cannot take a step, which needs what DDP alone has; else nothing."""
    asked = {
        "bucket_cap_mb": config.bucket_cap_mb is not None,
        "a workload with ddp=": bool(own and own.ddp),
        "a workload with comm_hook=": bool(own and own.comm_hook),
        # Only a fused optimizer steps without asking the host, and none of SGD takes shards.
        "fp16": config.precision == "fp16",
    }
    found = [name for name, is_asked in asked.items() if is_asked]
    if not (found and is_sharded(config)):
        return ""
    return f"strategy=fsdp does not go with {' and '.join(found)}; measure that with strategy=ddp"


def blocks(model: nn.Module, own: Workload | None = None) -> list[nn.Module]:
    """Return the parts that a workload names, or those of a model's outermost containers."""
    if own and own.blocks:
        return list(own.blocks(model))
    if isinstance(model, nn.Sequential | nn.ModuleList):
        return list(model.children())
    return [block for child in model.children() for block in blocks(child)]


@contextlib.contextmanager
def without_sync(wrapped: Any) -> Iterator[None]:
    """Keep the gradients of what is computed within on this rank."""
    if hasattr(wrapped, "no_sync"):
        with wrapped.no_sync():
            yield
        return
    wrapped.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        wrapped.set_requires_gradient_sync(True)


def _checkpoint(found: list[nn.Module]) -> None:
    # A single layer keeps little more than its input.
    deep = [block for block in found if any(True for _ in block.children())]
    if not deep:
        raise ValueError(
            "activation_checkpointing needs blocks of several layers, and the model has none in an "
            "nn.Sequential or nn.ModuleList; name them by Workload(blocks=...)"
        )
    for block in deep:
        # Within FSDP's hooks, which gather the parameters for both computations.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _ddp(
    model: nn.Module, config: "StepConfig", device: torch.device, own: Workload | None
) -> DistributedDataParallel:
    # Passed only when asked for: an explicit cap also changes DDP's small first bucket.
    cap = dict(own.ddp if own else {})
    if config.bucket_cap_mb is not None:
        cap["bucket_cap_mb"] = config.bucket_cap_mb
    if device.type == "cuda":
        cap.setdefault("device_ids", [device])
    made = DistributedDataParallel(model, **cap)
    if own and own.comm_hook:
        made.register_comm_hook(None, own.comm_hook)
    return made


def _fsdp(model: nn.Module, found: list[nn.Module], device: torch.device) -> Any:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    world = distributed.group.WORLD
    assert world is not None
    mesh = DeviceMesh.from_group(world, device.type)
    for block in found:
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
