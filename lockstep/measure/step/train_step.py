"""The training step that every case and the trainer run: `TrainStep.run`.

A step is one optimizer update over the local batch: forward, backward with the exchange of
gradients that its strategy needs, and the update, by default with SGD; a workload may bring its own
step. Nothing of ours in it synchronises with the host, so steps run freely until the clock stops.

DDP keeps the whole model on every rank. FSDP2 keeps a shard of each parameter and gathers one block
of the model at a time (Zhao et al., PyTorch FSDP, arXiv:2304.11277). Activation checkpointing keeps
only the input of a block and computes the rest again in the backward (Chen et al., Training Deep
Nets with Sublinear Memory Cost, arXiv:1604.06174); batch norm then counts each batch twice in its
running statistics, which no training loss reads.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lockstep.core.files import MIB
from lockstep.core.record import DDP_SETTINGS
from lockstep.core.sizes import PRECISIONS, STRATEGIES
from lockstep.measure.step.precision import set_precision_switches, why_unsupported
from lockstep.workloads import Workload, trees

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Steps after which DDP has its final buckets, see `bucket_bytes`.
SETTLED_STEPS = 3


@dataclass(frozen=True)
class StepConfig:
    """The settings of a step."""

    precision: str = "fp32"  # one of `sizes.PRECISIONS`; fp32 forbids TF32, bf16 and fp16 autocast
    bucket_cap_mb: float | None = None  # DDP's bucket size in MiB; None leaves DDP's default
    accumulation: int = 1
    # All-reduce on the last micro-batch only; False synchronises on each, the common mistake, to
    # show its cost.
    no_sync: bool = True
    optimizer: str = "sgd"  # one of `sizes.OPTIMIZERS`
    fused: bool | None = None  # whether one kernel updates all; None fuses on a GPU alone
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0  # L2 penalty of SGD and Adam, decoupled from the gradient in AdamW
    strategy: str = "ddp"  # one of `sizes.STRATEGIES`
    activation_checkpointing: bool = False  # compute each block again in the backward

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise ValueError(f"there is no precision {self.precision!r}; choose from {known}")
        if self.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise ValueError(f"there is no strategy {self.strategy!r}; choose from {known}")
        if self.accumulation < 1:
            raise ValueError(f"accumulation must be at least 1, but is {self.accumulation}")
        if self.bucket_cap_mb is not None and self.bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb must be positive, but is {self.bucket_cap_mb}")


class TrainStep:
    """A model in DDP, or FSDP, with its optimizer, ready to take steps.

    A new step sets torch's global precision switches, so two steps of different precision must not
    be interleaved. Inside `step.ddp.no_sync()`, a step does everything but the gradient all-reduce.

    Args:
        model: The model, already on `device`; FSDP moves it there itself.
        loss: Takes outputs and targets, returns the mean over the batch.
        config: The settings of the step.
        device: The rank's device. The default process group must be initialised.
        own: A workload whose optimizer, schedule, arguments of DDP, hook and step are used.

    Raises:
        RuntimeError: The device cannot compute in the precision asked for.
        ValueError: Accumulation is set for a workload's own step, which must accumulate itself; or
            `wrap` refuses.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], torch.Tensor] | None,
        config: StepConfig,
        device: torch.device,
        own: Workload | None = None,
    ) -> None:
        if reason := why_unsupported(config.precision, device):
            raise RuntimeError(reason)
        set_precision_switches(config.precision)
        self.config = config
        self.device = device
        self.loss = loss
        self.ddp: Any = wrap(model, config, device, own)
        parameters = self.ddp.parameters()
        make = own.optimizer if own else None
        self.optimizer = make(parameters) if make else _optimizer(parameters, config, device)
        self.scheduler = own.scheduler(self.optimizer) if own and own.scheduler else None
        self._own_step = own.step if own else None
        if self._own_step and config.accumulation > 1:
            raise ValueError(
                "the workload has its own step, in which Lockstep cannot accumulate gradients; "
                "leave out the study accumulation"
            )
        self._is_scaled = config.precision == "fp16"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self._is_scaled)
        # Called with each phase as it ends: forward, backward, optimizer.
        self.on_phase: Callable[[str], None] = lambda _: None

    def run(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Run one optimizer update over the local batch.

        Args:
            inputs: A tensor whose first dimension is the local batch, or a nested batch of such.
            targets: Likewise.

        Returns:
            The mean loss of this rank's batch before the update, a scalar on the device.
        """
        if self._own_step:
            return self._own_step(self, (inputs, targets))
        pieces = self.config.accumulation
        if pieces > 1 and (length := trees.num_items(inputs)) % pieces:
            raise ValueError(
                f"a local batch of {length} does not split into {pieces} equal micro-batches; "
                f"choose an accumulation that divides {length}"
            )
        self.optimizer.zero_grad(set_to_none=True)
        if pieces == 1:
            # No loop here: its cost would show in a step of a fraction of a millisecond.
            loss = self._forward_backward(inputs, targets)
        else:
            losses = []
            for number, batch in enumerate(trees.pieces((inputs, targets), pieces), 1):
                is_silent = self.config.no_sync and number < pieces
                with skip_sync(self.ddp) if is_silent else contextlib.nullcontext():
                    losses.append(self._forward_backward(*batch).detach())
            loss = torch.stack(losses).sum()
        if self._is_scaled:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        self.on_phase("optimizer")
        return loss

    def _forward_backward(self, inputs: Any, targets: Any) -> torch.Tensor:
        if self.config.precision in _AUTOCAST:
            with self.autocast():
                loss = self._forward(inputs, targets)
        else:  # an empty context would cost a per cent of the shortest steps
            loss = self._forward(inputs, targets)
        self.on_phase("forward")
        torch.autograd.backward(self.scaler.scale(loss) if self._is_scaled else loss)
        self.on_phase("backward")
        return loss

    def _forward(self, inputs: Any, targets: Any) -> torch.Tensor:
        assert self.loss is not None
        loss = self.loss(trees.call_model(self.ddp, inputs), targets)
        pieces = self.config.accumulation
        return loss if pieces == 1 else loss / pieces

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which this precision computes; validation needs it too."""
        if self.config.precision in _AUTOCAST:
            return torch.amp.autocast(self.device.type, dtype=_AUTOCAST[self.config.precision])
        return contextlib.nullcontext()


def _optimizer(
    parameters: Iterable[nn.Parameter], config: StepConfig, device: torch.device
) -> torch.optim.Optimizer:
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    own: dict[str, Any] = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    # Only a fused optimizer skips overflowed fp16 gradients without a wait of the host. It does not
    # take shards.
    is_fused = config.fused
    if is_fused is None:
        is_fused = device.type == "cuda" and not is_sharded(config)
    optimizer: torch.optim.Optimizer = kinds[config.optimizer](
        parameters, lr=config.lr, weight_decay=config.weight_decay, fused=is_fused or None, **own
    )
    return optimizer


def wrap(model: nn.Module, config: "StepConfig", device: torch.device, own: Workload | None) -> Any:
    """Return a model whose backward synchronises gradients by the strategy.

    For DDP the model is on the device already; FSDP moves it there block by block.
    """
    if reason := find_unsuited(config, own):
        raise ValueError(reason)
    modules = blocks(model, own)
    if config.activation_checkpointing:
        deep = [block for block in modules if any(True for _ in block.children())]
        if not deep:
            raise ValueError(
                "activation_checkpointing needs blocks of several layers, but the model has none "
                "in an nn.Sequential or nn.ModuleList; name the blocks by Workload(blocks=...)"
            )
        for block in deep:
            # Checkpoint within FSDP's hooks, which gather the parameters for both computations.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if is_sharded(config):
        return _shard(model, modules, device)
    options = dict(own.ddp if own else {})
    if config.bucket_cap_mb is not None:  # an explicit cap also changes DDP's small first bucket
        options["bucket_cap_mb"] = config.bucket_cap_mb
    if device.type == "cuda":
        options.setdefault("device_ids", [device])
    ddp = DistributedDataParallel(model, **options)
    if own and own.comm_hook:
        ddp.register_comm_hook(None, own.comm_hook)
    return ddp


def _shard(model: nn.Module, blocks_of_model: list[nn.Module], device: torch.device) -> Any:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    group = distributed.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, device.type)
    for block in blocks_of_model:
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def is_sharded(config: "StepConfig") -> bool:
    """Return whether a rank keeps a shard of each parameter, not the whole."""
    return config.strategy == "fsdp"


def find_unsuited(config: "StepConfig", own: Workload | None) -> str:
    """Return which settings do not go together, as a sentence; empty if all do."""
    if config.precision == "fp16" and config.fused is False:
        return (
            "fp16 needs fused=true, because an optimizer that is not fused makes the host wait for "
            "the GPU"
        )
    settings = {
        "bucket_cap_mb": config.bucket_cap_mb is not None,
        "a workload with ddp=": bool(own and own.ddp),
        "a workload with comm_hook=": bool(own and own.comm_hook),
        # Only a fused optimizer steps without asking the host, and no fused SGD takes shards.
        "fp16": config.precision == "fp16",
        "fused=true": config.fused is True,
    }
    lacking = [name for name, is_set in settings.items() if is_set]
    if not (lacking and is_sharded(config)):
        return ""
    options = " and ".join(lacking)
    return f"strategy=fsdp cannot be used with {options}; use strategy=ddp instead"


def blocks(model: nn.Module, own: Workload | None = None) -> list[nn.Module]:
    """Return the parts that a workload names, or those of a model's outermost containers."""
    if own and own.blocks:
        return list(own.blocks(model))
    if isinstance(model, nn.Sequential | nn.ModuleList):
        return list(model.children())
    return [block for child in model.children() for block in blocks(child)]


@contextlib.contextmanager
def skip_sync(wrapped: Any) -> Iterator[None]:
    """Do not synchronise gradients inside the `with` block."""
    if hasattr(wrapped, "no_sync"):
        with wrapped.no_sync():
            yield
        return
    wrapped.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        wrapped.set_requires_gradient_sync(True)


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Return the size of DDP's gradient buckets in bytes, in the order they are reduced.

    After the first backward DDP regroups its buckets in the order in which gradients became ready,
    and reports them from the third forward on: after `SETTLED_STEPS` these are the buckets in use.
    Before that it reports one bucket of everything.
    """
    # DDP has no public name for its logging data.
    facts = ddp._get_ddp_logging_data()  # noqa: SLF001
    sizes = facts.get("rebuilt_bucket_sizes") or facts.get("bucket_sizes") or ""
    return [int(size) for size in str(sizes).split(",") if size.strip()]


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of one step's all-reduce: every trained parameter's gradient, once."""
    return sum(
        parameter.numel() * parameter.element_size()
        for parameter in model.parameters()
        if parameter.requires_grad
    )


def buckets(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Return DDP's buckets, bytes and settings (with defaults; None if unknown) for a record."""
    facts = ddp._get_ddp_logging_data()  # noqa: SLF001
    cap_bytes = facts.get("bucket_cap_bytes")
    switches = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")
    settings = {
        "bucket_cap_mb": cap_bytes / MIB if cap_bytes else None,
        **{name: getattr(ddp, name, None) for name in switches},
        "comm_hook": facts.get("comm_hook") or None,
    }
    return {
        "bucket_bytes": bucket_bytes(ddp),
        "gradient_bytes": gradient_bytes(ddp),
        DDP_SETTINGS: settings,
    }


def parameter_checksum(model: nn.Module) -> str:
    """Return the SHA-256 of the parameters' bytes, without buffers; synchronises the device."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = parameter.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
