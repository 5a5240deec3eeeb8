"""The step of a workload as a case: built, checked that it trains, and divided into its causes.

`train_step` contains the step itself; `lockstep.measure.harness` times and records any step. If a
batch does not fit a rank's memory, all ranks halve it where --on-oom asks for that; else the error
says what helps.
"""

import contextlib
import gc
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest
import torch

from lockstep import workloads
from lockstep.core.flags import Flag, flag
from lockstep.core.record import BASIS, Basis
from lockstep.core.sizes import halve_batch, num_moments
from lockstep.core.studies import ON_REQUEST
from lockstep.machine import hardware, memory
from lockstep.measure.harness import Harness, Measurement, Part
from lockstep.measure.step import train_step, variants
from lockstep.measure.step.precision import is_emulated, restore_precision_switches
from lockstep.measure.step.train_step import StepConfig, TrainStep
from lockstep.measure.step.variants import own_step
from lockstep.measure.timing import Step
from lockstep.ranks.process_group import num_collectives
from lockstep.workloads import Workload, trees
from lockstep.workloads.costs import batch_bytes, flop_per_item, model_bytes

# Adam moves each parameter by about its rate, whatever the gradient; 0.001 is torch's default.
LEARNING_RATES = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
MAX_CHARACTERS = 300


def measure_step(
    harness: Harness, workload: str, local_batch: int, *, scaling: str = "weak", **settings: Any
) -> None:
    """Measure the training step of a workload; settings are fields of `StepConfig`."""
    model = workloads.make(workload)
    with build_step(harness, model, local_batch, **settings) as step:
        harness.measure(
            step, samples=step.samples, ddp=step.ddp, unit=model.sample_unit, scaling=scaling
        )


@contextlib.contextmanager
def build_step(
    harness: Harness, model: Workload, local_batch: int, **settings: Any
) -> "Iterator[WorkloadStep]":
    """Give a training step of a workload, on one batch that stays on the device.

    Args:
        harness: The case's view of the launch; its factors may set those of `studies.ON_REQUEST`.
        model: The model and its batches, as `lockstep.workloads.make` returns it.
        local_batch: Samples per rank and update.
        settings: Fields of `StepConfig`: precision, bucket_cap_mb, accumulation, no_sync. A case is
            skipped if the hardware of a rank lacks the precision.

    Raises:
        ValueError: The step would not fit a rank's memory.
        RuntimeError: A rank ran out of memory.
    """
    asked = {name: value for name, value in harness.factors.items() if name in ON_REQUEST}
    if model.optimizer and (named := [name for name in ("optimizer", "fused") if name in asked]):
        factors = " and ".join(named)
        pytest.skip(f"workload {model.name} has its own optimizer; leave out the factors {factors}")
    rate = LEARNING_RATES[asked.get("optimizer", "sgd")]
    config = StepConfig(**{"lr": rate} | settings | asked)
    skip_unless_supported(harness, config.precision)
    if reason := train_step.find_unsuited(config, model):
        pytest.skip(reason)
    is_strong = "global_batch" in harness.factors
    with restore_precision_switches(), add_advice(local_batch, config, is_strong=is_strong):
        refused: list[dict[str, Any]] = []
        if harness.halves:

            def attempt(batch: int) -> None:  # no rank waits for another, which may have failed
                step = WorkloadStep(harness, model, config, batch)
                (step if step.is_sharded else own_step(step.ddp, step))()

            local_batch, refused = fit(harness, local_batch, config.accumulation, attempt)
        yield WorkloadStep(harness, model, config, local_batch, refused)


def skip_unless_supported(harness: Harness, precision: str) -> None:
    """Skip the case on all ranks if one rank's hardware lacks the precision."""
    if reason := (harness.unsupported or {}).get(precision):
        pytest.skip(reason)


class WorkloadStep:
    """A training step of a workload on a batch of its own; calling it runs one update.

    `refused` are batches that did not fit memory, as a record keeps them.
    """

    def __init__(
        self,
        harness: Harness,
        model: Workload,
        config: StepConfig,
        local_batch: int,
        refused: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.harness, self.model, self.config = harness, model, config
        self.local_batch, self.refused = local_batch, refused
        self.samples = local_batch * model.samples_per_item
        self.is_sharded = train_step.is_sharded(config)
        self._refuse_beyond_memory()
        # Parameters are equal on all ranks; data differs.
        torch.manual_seed(harness.seed)
        built = model.build()
        if not self.is_sharded:
            built = built.to(harness.device)
        self.train = TrainStep(built, model.loss, config, harness.device, model)
        self.ddp = self.train.ddp
        generator = torch.Generator(harness.device)
        generator.manual_seed(harness.seed + 1 + harness.world.rank)
        self.inputs, self.targets = model.make_batch(local_batch, harness.device, generator)

    def __call__(self) -> torch.Tensor:
        """Run a step; return the loss before it, a scalar on the device."""
        return self.train.run(self.inputs, self.targets)

    @property
    def lockstep_measurement(self) -> type[Measurement]:
        return WorkloadMeasurement

    def _refuse_beyond_memory(self) -> None:
        model, harness = self.model, self.harness
        # A user's own optimizer is unknown, and may keep nothing.
        kept = 0 if model.optimizer else num_moments(self.config.optimizer, self.config.momentum)
        held = model_bytes(model, kept)
        if self.is_sharded:  # FSDP has no buckets beside the gradients
            held = model_bytes(model, kept - 1) // harness.world.world_size
        needed = {
            f"the model {model.name}": held,
            f"its batch of {self.local_batch}": batch_bytes(model, self.local_batch),
        }
        if harness.case.room:
            memory.refuse_beyond(harness.case.room, needed, harness.device)


@dataclass
class WorkloadMeasurement(Measurement):
    """Turns a step of a workload into a case, which fails if the step does not train."""

    step: WorkloadStep

    def __post_init__(self) -> None:
        self._first_loss = math.nan
        self._leads: dict[str, Any] = {}

    def problem(self, world_size: int) -> str:  # noqa: ARG002, overrides
        """Return an error if make_batch returned another number of items; else an empty text."""
        wanted, made = self.step.local_batch, trees.num_items(self.step.inputs)
        if made == wanted:
            return ""
        return (
            f"make_batch of workload {self.step.model.name} returned {made} items instead of "
            f"{wanted}; return as many items as its first argument says"
        )

    def timed_step(self) -> Step:
        """Return the step, after a first run whose loss is compared with that of the last."""
        self._first_loss = self.step().item()
        return self.step

    def run_check(self) -> dict[str, Any]:
        """Return this rank's losses and its parameters' checksum; None if they are sharded."""
        super().run_check()
        last = self.step().item()
        checksum = None if self.step.is_sharded else train_step.parameter_checksum(self.ddp)
        return {"first": self._first_loss, "last": last, "parameters": checksum}

    def time_variants(
        self,
        harness: Harness,
        step_s: float,  # noqa: ARG002, overrides
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Time the variants, among them half the batch, and the phases of the whole step.

        A step of FSDP has no variants: it computes with parameters that it must communicate.
        """
        step, config = self.step, self.step.config
        if not harness.times_causes or step.is_sharded:
            return {}, {}
        harness.case.peak = memory.peak(harness.device)  # before the variants allocate more
        ways = variants.ddp_variants(step.ddp, step)
        if not config.no_sync and config.accumulation > 1:
            ways.pop("reduce", None)  # its bytes are sent once per micro-batch
        if half := halve_batch(step.local_batch, config.accumulation):
            first = trees.slice_items((step.inputs, step.targets), 0, half)
            ways["half"] = own_step(step.ddp, lambda: step.train.run(*first))
        own = ways["own"]
        # All variants mark their phases, so that marking costs each of them the same.
        marks = {name: variants.Marks(harness.device) for name in ways if name != "reduce"}
        ways |= {name: marks[name].mark_phases(step.train, ways[name]) for name in marks}
        if self.waits_for_others(harness, own):
            return {}, {}
        harness.case.order_seed = variants.draw_order(harness.world, str(harness.number))
        plan = variants.plan_turns(harness.plan, ways, harness.device, 0)
        variant_s = variants.time_in_turns(harness.world, ways, plan, harness.case.order_seed)
        self._leads = bucket_starts(step.train, own)
        return variant_s, marks["full"].turn_seconds(len(variant_s["full"]))

    def facts(self, harness: Harness) -> dict[str, Any]:
        """Return the basis of the step, its buckets, and its flags."""
        step, precision = self.step, self.step.config.precision
        flags = precision_flags(harness.device, precision)
        # Every precision here keeps parameters in fp32.
        dtypes = sorted({str(p.dtype) for p in step.ddp.parameters() if p.is_floating_point()})
        if dtypes != ["torch.float32"]:
            flags.append(flag("parameter-dtypes", dtypes=dtypes, precision=precision))
        # No sample is read, decoded or copied to the device in the timed region.
        optimizer = type(step.train.optimizer).__name__
        basis = Basis(step.model.data, times_input=False, optimizer=optimizer)
        if step.is_sharded:
            sent: dict[str, Any] = {"gradient_bytes": train_step.gradient_bytes(step.ddp)}
        else:
            sent = train_step.buckets(step.ddp)
        details = {**sent, **self._leads, BASIS: basis.to_dict()}
        if step.model.epoch_samples:
            details["epoch_samples"] = step.model.epoch_samples
        if step.refused:
            last = step.refused[-1]
            batches = {"asked": step.refused[0]["local_batch"], "measured": step.local_batch}
            flags.append(flag("smaller-batch", **batches, rank=last["rank"], host=last["host"]))
            details["out_of_memory"] = list(step.refused)
        facts = facts_of(harness, step.model, precision, step.local_batch)
        return facts | {"details": details, "flags": flags}

    def conclude(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the outcome of all ranks' checks on rank 0, or raise if the step is wrong."""
        harness = self.step.harness
        ranks = [part.own["check"] for part in parts]
        first, last = (sum(rank[at] for rank in ranks) / len(ranks) for at in ("first", "last"))

        def named(wrong: Sequence[int]) -> str:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            return f"rank {wrong[0]} on {harness.rank_hosts[wrong[0]]}{more}"

        if not (math.isfinite(first) and math.isfinite(last)):
            where = "average over all ranks"
            for at in ("last", "first"):  # in the next step a NaN of one rank is on all ranks
                if bad := [rank for rank, own in enumerate(ranks) if not math.isfinite(own[at])]:
                    where = "every rank" if len(bad) == len(ranks) else named(bad)
            raise RuntimeError(
                f"the loss is not finite on {where}: {first} at the first step, {last} at the last "
                "step"
            )
        if harness.measures and last >= first:
            raise RuntimeError(
                f"the loss did not fall: {first:.4f} at the first step, {last:.4f} at the last step"
            )
        checksum = ranks[0]["parameters"]
        if other := [rank for rank, own in enumerate(ranks) if own["parameters"] != checksum]:
            raise RuntimeError(
                f"{named(other)} has other parameters than rank 0 on {harness.rank_hosts[0]}, "
                "although all ranks made the same updates"
            )
        checks = {"loss_first": first, "loss_last": last}
        if checksum is not None:
            checks["parameters_equal"] = True
        return {"samples_per_step": sum(p.own["samples"] for p in parts), "checks": checks}


def bucket_starts(train: Any, own: Step) -> dict[str, Any]:
    """Return each bucket's lead before the end of the backward, and when the first is ready."""
    marks = variants.Marks(train.device)
    leads = variants.bucket_leads(train.ddp, marks.mark_phases(train, own))
    backward_s = marks.last_s("backward")  # a workload's own step marks none
    first = {"first_reduce_s": max(median(backward_s) - leads[0], 0.0)} if backward_s else {}
    return {"bucket_lead_s": leads, **first}


def facts_of(harness: Harness, model: Workload, precision: str, local_batch: int) -> dict[str, Any]:
    """Return the fields of `CaseRecord` that follow from model, batch and device."""
    flop = None if model.step else flop_per_item(model)  # its own step may compute anything
    peak = None
    if harness.device.type == "cuda":
        name = torch.cuda.get_device_name(harness.device)
        peak = hardware.peak_flop_per_s(name, precision)
    return {
        "workload": model.name,
        "precision": precision,
        "local_batch": local_batch,
        "global_batch": local_batch * harness.world.world_size,
        "flop_per_sample": None if flop is None else flop / model.samples_per_item,
        "peak_flop_per_s": peak,
    }


def precision_flags(device: torch.device, precision: str) -> list[Flag]:
    return [flag("bf16-emulated")] if is_emulated(precision, device) else []


def fit(
    harness: Harness, local_batch: int, pieces: int, attempt: Callable[[int], object]
) -> tuple[int, list[dict[str, Any]]]:
    """Return the batch, or the largest of its halves, with which all ranks can run a step.

    An attempt builds everything that a step needs, and runs a step. A collective call.

    Returns:
        The batch, and those that did not fit: the batch, the first rank without memory for it, its
        host and its error.

    Raises:
        ExhaustedError: No half of the batch fits, or ranks failed after different collectives.
    """
    refused: list[dict[str, Any]] = []
    while True:
        error_here = ""
        try:
            attempt(local_batch)
        except Exception as error:
            if not memory.is_exhausted(error):
                raise
            error_here = _first_line(error)
            traceback.clear_frames(error.__traceback__)  # its frames keep tensors alive
        own = [error_here, num_collectives()]
        ranks = harness.world.control.exchange_all(f"{harness.number}/memory", own)
        out = [rank for rank, (error, _) in enumerate(ranks) if error]
        if out:
            rank, host, error_there = out[0], harness.rank_hosts[out[0]], ranks[out[0]][0]
            if len({count for _, count in ranks}) > 1:
                raise memory.ExhaustedError(
                    f"rank {rank} on {host} ran out of memory at another point of the step than "
                    "the other ranks, so the case cannot continue with half the batch: "
                    f"{error_there}"
                )
        # Not before the check above: empty_cache waits for the device, where a collective that
        # another rank did not call never ends.
        gc.collect()
        if harness.device.type == "cuda":
            torch.cuda.empty_cache()
        if not out:
            return local_batch, refused
        refused.append(
            {"local_batch": local_batch, "rank": rank, "host": host, "error": error_there}
        )
        half = halve_batch(local_batch, pieces)
        if half is None:
            raise memory.ExhaustedError(
                f"rank {rank} on {host} has no memory for {local_batch} samples, and this batch "
                f"cannot be halved: {error_there}"
            )
        local_batch = half


@contextlib.contextmanager
def add_advice(local_batch: int, config: StepConfig, *, is_strong: bool) -> Iterator[None]:
    """Add advice to the error of a rank without memory for a step.

    With `is_strong` the user chose the batch of all ranks.
    """
    try:
        yield
    except Exception as error:
        if not memory.is_exhausted(error):
            raise
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        batch = "global" if is_strong else "local"
        can_halve = not isinstance(error, memory.ExhaustedError)
        halving = "--on-oom halve or " if can_halve else ""
        recipes = [
            f"a smaller batch ({halving}--{batch}-batch)",
            f"more micro-batches (--set accumulation={2 * config.accumulation})",
        ]
        if not config.activation_checkpointing:
            recipes.append("fewer activations (--set activation_checkpointing=true)")
        num_samples, remedies = local_batch // config.accumulation, ", or ".join(recipes)
        raise kind(
            f"{_first_line(error)}; {num_samples} samples at once need more memory than there is; "
            f"try {remedies}"
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:MAX_CHARACTERS]
    return text or type(error).__name__
