"""The one training step that every case measures and the trainer takes.

A step is one optimizer update over the local batch: forward, backward with the exchange of
gradients that its strategy needs, and the update, by SGD unless asked otherwise, or the workload
brings its own. Nothing of ours in it synchronises with the host, so steps run freely until the
caller stops the clock.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.core.records.record import DDP_SETTINGS
from lockstep.core.sizes import PRECISIONS, STRATEGIES
from lockstep.core.system.files import MIB
from lockstep.measure.step import strategies
from lockstep.measure.step.phases import unmarked
from lockstep.workloads import Workload, trees

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# NVIDIA, CUDA C++ Programming Guide, compute capabilities: Ampere brought TF32 and BF16.
_AMPERE = (8, 0)
# Steps after which DDP has its final buckets, see `bucket_bytes`.
SETTLED_STEPS = 3
_CPU_FLAGS_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


@dataclass(frozen=True)
class StepConfig:
    """What a step does.

    Attributes:
        precision: One of `sizes.PRECISIONS`. fp32 forbids TF32; bf16 and fp16 are autocast.
        bucket_cap_mb: DDP's bucket size in MiB; None leaves DDP's default.
        no_sync: All-reduce on the last micro-batch only; False synchronises on every one, the
            common mistake, to show its cost.
        optimizer: One of `sizes.OPTIMIZERS`.
        weight_decay: L2 penalty of SGD and Adam, decoupled from the gradient in AdamW.
        strategy: One of `sizes.STRATEGIES`.
        activation_checkpointing: Compute the activations of each block again in the backward.
    """

    precision: str = "fp32"
    bucket_cap_mb: float | None = None
    accumulation: int = 1
    no_sync: bool = True
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    strategy: str = "ddp"
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        """Refuse what no step can do.

        Raises:
            ValueError: An unknown precision, or a number out of range.
        """
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"no precision {self.precision!r}; choose from {', '.join(PRECISIONS)}"
            )
        if self.strategy not in STRATEGIES:
            raise ValueError(f"no strategy {self.strategy!r}; choose from {', '.join(STRATEGIES)}")
        if self.accumulation < 1:
            raise ValueError(f"accumulation must be at least 1, got {self.accumulation}")
        if self.bucket_cap_mb is not None and self.bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb must be positive, got {self.bucket_cap_mb}")


class TrainStep:
    """A model in DDP, or FSDP, with its optimizer, ready to take steps.

    Making one sets torch's global precision switches, so a step never inherits those of the one
    made before it; two steps of different precision must not be interleaved. Run inside
    `step.ddp.no_sync()`, a step does everything but the gradient all-reduce.

    Args:
        model: The model, already on `device`; FSDP moves it there itself.
        loss: Takes outputs and targets, returns the mean over the batch.
        config: What the step does.
        device: The rank's device. The default process group must be initialised.
        own: A workload whose optimizer, schedule, arguments of DDP, hook and step are taken.

    Raises:
        RuntimeError: The device cannot compute in the precision asked for.
        ValueError: A step of the workload's own is to accumulate, which it would do itself; or
            `strategies.wrap` refuses.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], torch.Tensor] | None,
        config: StepConfig,
        device: torch.device,
        own: Workload | None = None,
    ) -> None:
        if reason := unsupported(config.precision, device):
            raise RuntimeError(reason)
        set_precision_switches(config.precision)
        self.config = config
        self.device = device
        self.loss = loss
        self.ddp: Any = strategies.wrap(model, config, device, own)
        parameters = self.ddp.parameters()
        given = own.optimizer if own else None
        self.optimizer = given(parameters) if given else _optimizer(parameters, config, device)
        self.scheduler = own.scheduler(self.optimizer) if own and own.scheduler else None
        self._own_step = own.step if own else None
        if self._own_step and config.accumulation > 1:
            raise ValueError(
                "this workload has a step of its own, which accumulates by itself or not at all; "
                "leave the accumulation study out"
            )
        self._is_scaled = config.precision == "fp16"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self._is_scaled)
        # Called with each phase as it ends: forward, backward, optimizer.
        self.on_phase: Callable[[str], None] = unmarked

    def run(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Do one optimizer update over the local batch.

        Args:
            inputs: A tensor whose first dimension is the local batch, or a tree of such.
            targets: Likewise.

        Returns:
            The mean loss of this rank's batch before the update, a scalar on the device; its graph
            is used up.

        Raises:
            ValueError: The local batch does not split into equal micro-batches.
        """
        if self._own_step:
            return self._own_step(self, (inputs, targets))
        pieces = self.config.accumulation
        if pieces > 1 and (length := trees.num_items(inputs)) % pieces:
            raise ValueError(
                f"a local batch of {length} does not split into {pieces} equal micro-batches; "
                "choose an accumulation that divides it"
            )
        self.optimizer.zero_grad(set_to_none=True)
        if pieces == 1:
            # A step of a fraction of a millisecond notices every operation that is not needed.
            loss = self._micro_step(inputs, targets, is_last=True)
        else:
            loss = self._accumulate(trees.pieces((inputs, targets), pieces))
        self._update()
        if self.scheduler:
            self.scheduler.step()
        self.on_phase("optimizer")
        return loss

    def _update(self) -> None:
        if not self._is_scaled:
            self.optimizer.step()
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _accumulate(self, batches: Sequence[tuple[Any, Any]]) -> torch.Tensor:
        last = len(batches) - 1
        losses = [
            self._micro_step(*batch, is_last=index == last).detach()
            for index, batch in enumerate(batches)
        ]
        return torch.stack(losses).sum()

    def _micro_step(self, inputs: Any, targets: Any, is_last: bool) -> torch.Tensor:
        # Contexts that do nothing would be a percent of the shortest steps.
        if is_last or not self.config.no_sync:
            return self._pass(inputs, targets)
        with strategies.without_sync(self.ddp):
            return self._pass(inputs, targets)

    def _pass(self, inputs: Any, targets: Any) -> torch.Tensor:
        if self.config.precision in _AUTOCAST:
            with self.autocast():
                loss = self._loss(inputs, targets)
        else:
            loss = self._loss(inputs, targets)
        self.on_phase("forward")
        torch.autograd.backward(self.scaler.scale(loss) if self._is_scaled else loss)
        self.on_phase("backward")
        return loss

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        assert self.loss is not None
        loss = self.loss(trees.called(self.ddp, inputs), targets)
        pieces = self.config.accumulation
        return loss if pieces == 1 else loss / pieces

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which this precision computes; validation needs it too."""
        return _autocast(self.config.precision, self.device)


def _optimizer(
    parameters: Iterable[nn.Parameter], config: StepConfig, device: torch.device
) -> torch.optim.Optimizer:
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    own: dict[str, Any] = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    # fused: alone skips a step of overflowed fp16 gradients without asking the host; not for shards
    is_fused = device.type == "cuda" and not strategies.is_sharded(config)
    made: torch.optim.Optimizer = kinds[config.optimizer](
        parameters,
        lr=config.lr,
        weight_decay=config.weight_decay,
        fused=is_fused,
        **own,
    )
    return made


def _autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    if precision in _AUTOCAST:
        return torch.amp.autocast(device.type, dtype=_AUTOCAST[precision])
    return contextlib.nullcontext()


def set_precision_switches(precision: str) -> None:
    """Set torch's global matrix-product and convolution precision for one of `sizes.PRECISIONS`.

    Only tf32 lets single-precision products run in TF32; all others demand full fp32 for what
    autocast leaves in fp32.
    """
    allow_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = allow_tf32


@contextlib.contextmanager
def keeping_precision_switches() -> Iterator[None]:
    """Put back afterwards what `set_precision_switches` sets, so that a case leaves nothing."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def unsupported(precision: str, device: torch.device) -> str | None:
    """Return why this rank's hardware cannot compute in a precision, or None if it can."""
    if device.type != "cuda":
        return refusal(precision, None)
    if torch.version.hip:
        return (
            "tf32 needs an NVIDIA GPU; this rank runs on an AMD GPU"
            if precision == "tf32"
            else None
        )
    return refusal(precision, torch.cuda.get_device_capability(device))


def refusal(precision: str, capability: tuple[int, int] | None) -> str | None:
    """Return why an NVIDIA GPU of a compute capability, or a CPU (None), lacks a precision."""
    if precision == "fp16" and capability is None:
        return "fp16 needs a GPU; this rank runs on a CPU, which has no fp16 path worth measuring"
    # A CPU may compute bf16 (see `is_emulated`); TF32 exists on NVIDIA GPUs only.
    exempt = ("fp32", "fp16") if capability else ("fp32", "bf16")
    if precision in exempt or (capability is not None and capability >= _AMPERE):
        return None
    here = f"capability {capability[0]}.{capability[1]}" if capability else "a CPU"
    return (
        f"{precision} needs an NVIDIA GPU of compute capability 8.0 or newer; "
        f"this rank runs on {here}"
    )


def is_emulated(precision: str, device: torch.device) -> bool:
    """Tell whether the device computes a precision in software.

    A CPU whose flags cannot be read (no /proc/cpuinfo) is not accused.
    """
    return precision == "bf16" and device.type == "cpu" and lacks_bf16(_cpu_flags())


def lacks_bf16(cpu_flags: frozenset[str]) -> bool:
    """Tell whether a CPU's instruction sets (as in /proc/cpuinfo) are known and lack bf16."""
    return bool(cpu_flags) and not cpu_flags & _CPU_FLAGS_BF16


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = (line for line in lines if line.lower().startswith(("flags", "features")))
    return frozenset(next(flags, "").partition(":")[2].split())


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Return the size of DDP's gradient buckets in bytes, in the order they are reduced.

    DDP regroups its buckets in the order gradients became ready after the first backward, and notes
    it in the third forward: after `SETTLED_STEPS` these are the buckets in use, at any world size.
    Before that they are the initial guess, one bucket of everything.
    """
    # DDP says this nowhere else.
    facts = ddp._get_ddp_logging_data()  # noqa: SLF001
    sizes = facts.get("rebuilt_bucket_sizes") or facts.get("bucket_sizes") or ""
    return [int(size) for size in str(sizes).split(",") if size.strip()]


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes one step's all-reduce carries: every trained parameter's gradient, once."""
    return sum(
        parameter.numel() * parameter.element_size()
        for parameter in model.parameters()
        if parameter.requires_grad
    )


def buckets(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Return what a record holds of DDP's all-reduce: its buckets, its bytes and its settings."""
    return {
        "bucket_bytes": bucket_bytes(ddp),
        "gradient_bytes": gradient_bytes(ddp),
        DDP_SETTINGS: ddp_settings(ddp),
    }


def ddp_settings(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Return the settings of DDP in force, defaults among them; None where it does not tell."""
    facts = ddp._get_ddp_logging_data()  # noqa: SLF001
    cap_bytes = facts.get("bucket_cap_bytes")
    switches = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")
    return {
        "bucket_cap_mb": cap_bytes / MIB if cap_bytes else None,
        **{name: getattr(ddp, name, None) for name in switches},
        "comm_hook": facts.get("comm_hook") or None,
    }


def unsupported_here(device: torch.device, asked: str) -> dict[str, str]:
    """Return precision -> why this rank's hardware cannot measure it.

    A precision that a CPU emulates takes minutes a step; it is measured only where it is asked for.
    """
    reasons = {precision: unsupported(precision, device) for precision in PRECISIONS}
    for precision in PRECISIONS:
        if precision != asked and is_emulated(precision, device):
            reasons[precision] = (
                f"this CPU computes {precision} in software; --precision {precision} measures it "
                "all the same"
            )
    return {precision: reason for precision, reason in reasons.items() if reason}


def parameter_checksum(model: nn.Module) -> str:
    """Return the SHA-256 of the parameters' bytes, buffers left aside; synchronises the device."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = parameter.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
