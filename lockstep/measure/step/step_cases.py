"""The step of a workload as a case: built, checked that it trains, and divided into its causes.

What a step does is in `lockstep.measure.step.train_step`; how a step of any kind is timed and
recorded in `lockstep.measure.harness`. Where a rank has no memory for a batch, all ranks take half
of it, if that is asked for, and else are told what helps.
"""

import contextlib
import gc
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.core.flags import Flag, flag
from lockstep.core.record import BASIS, Basis
from lockstep.core.sizes import halve_batch
from lockstep.core.studies import ON_REQUEST
from lockstep.machine import hardware, memory
from lockstep.measure.harness import Harness, Measurement, Part
from lockstep.measure.step import variants
from lockstep.measure.step.variants import Step, without_sync
from lockstep.ranks.process_group import num_collectives
from lockstep.workloads import trees
from lockstep.workloads.costs import batch_bytes, flop_per_item, model_bytes

if TYPE_CHECKING:
    import torch

    from lockstep.measure.step.train_step import StepConfig
    from lockstep.workloads import Workload

LEARNING_RATE = 0.01
MAX_CHARACTERS = 300


@contextlib.contextmanager
def build_step(
    harness: Harness, model: "Workload", local_batch: int, **settings: Any
) -> "Iterator[WorkloadStep]":
    """Give a training step of a workload, on one batch that stays on the device.

    Args:
        harness: The case's view of the launch; its factors may set those of `studies.ON_REQUEST`.
        model: The model and its batches, as `lockstep.workloads.make` returns it.
        local_batch: Samples per rank and update.
        settings: Of `StepConfig`: precision, bucket_cap_mb, accumulation, no_sync. A case is
            skipped where the hardware of a rank lacks the precision.

    Raises:
        ValueError: A rank has no room for what it would hold.
        RuntimeError: A rank ran out of memory.
    """
    from lockstep.measure.step.precision import keeping_precision_switches
    from lockstep.measure.step.train_step import StepConfig, find_unsuited

    asked = {name: value for name, value in harness.factors.items() if name in ON_REQUEST}
    config = StepConfig(**{"lr": LEARNING_RATE} | settings | asked)
    skip_unless_supported(harness, config.precision)
    if reason := find_unsuited(config, model):
        pytest.skip(reason)
    is_strong = "global_batch" in harness.factors
    with keeping_precision_switches(), advising(local_batch, config, is_strong=is_strong):
        refused: list[dict[str, Any]] = []
        if harness.halves:

            def attempt(batch: int) -> None:
                WorkloadStep(harness, model, config, batch).take_alone()

            local_batch, refused = fit(harness, local_batch, config.accumulation, attempt)
        yield WorkloadStep(harness, model, config, local_batch, refused)


def skip_unless_supported(harness: Harness, precision: str) -> None:
    """Skip on all ranks what the hardware of one cannot do, or the others would wait for it."""
    if reason := (harness.unsupported or {}).get(precision):
        pytest.skip(reason)


class WorkloadStep:
    """A training step of a workload on a batch of its own; calling it takes one update.

    Attributes:
        ddp: The wrapped model.
        samples: Samples of this rank in one step.
        refused: Batches that were tried in vain, as a record keeps them.
    """

    def __init__(
        self,
        harness: Harness,
        model: "Workload",
        config: "StepConfig",
        local_batch: int,
        refused: Sequence[dict[str, Any]] = (),
    ) -> None:
        import torch

        from lockstep.measure.step.train_step import TrainStep, is_sharded

        self.harness, self.model, self.config = harness, model, config
        self.local_batch, self.refused = local_batch, refused
        self.samples = local_batch * model.samples_per_item
        self.is_sharded = is_sharded(config)
        self._refuse_beyond_memory()
        # Parameters are equal on all ranks, data is each rank's own.
        torch.manual_seed(harness.seed)
        built = model.build()
        if not self.is_sharded:
            built = built.to(harness.device)
        self.train = TrainStep(built, model.loss, config, harness.device, model)
        self.ddp = self.train.ddp
        generator = torch.Generator(harness.device)
        generator.manual_seed(harness.seed + 1 + harness.world.rank)
        self.inputs, self.targets = model.make_batch(local_batch, harness.device, generator)

    def __call__(self) -> "torch.Tensor":
        """Take a step; return the loss before it, a scalar on the device."""
        return self.train.run(self.inputs, self.targets)

    def take_alone(self) -> None:
        """Take a step in which no rank waits for another one, where the strategy allows that."""
        (self if self.is_sharded else without_sync(self.ddp, self))()

    @property
    def lockstep_measurement(self) -> "type[Measurement]":
        """How it becomes a case."""
        return WorkloadMeasurement

    def _refuse_beyond_memory(self) -> None:
        model, harness = self.model, self.harness
        # Of an optimizer of one's own nothing is known: at the least it keeps nothing.
        num_moments = int(model.optimizer is None and self.config.momentum > 0)
        held = model_bytes(model, num_moments)
        if self.is_sharded:  # which has no buckets beside the gradients
            held = model_bytes(model, num_moments - 1) // harness.world.world_size
        needed = {
            f"the model {model.name}": held,
            f"its batch of {self.local_batch}": batch_bytes(model, self.local_batch),
        }
        if harness.case.room:
            memory.refuse_beyond(harness.case.room, needed, harness.device)


@dataclass
class WorkloadMeasurement(Measurement):
    """How a step of a workload becomes a case: a fast one that does not train fails."""

    step: WorkloadStep

    def __post_init__(self) -> None:
        """Begin with no loss."""
        self._first_loss = math.nan
        self._leads: dict[str, Any] = {}

    def problem(self, world_size: int) -> str:  # noqa: ARG002, as of any measurement
        """Return what is wrong with the size of the batch; the size asked for counts."""
        asked, made = self.step.local_batch, trees.num_items(self.step.inputs)
        if made == asked:
            return ""
        return (
            f"make_batch of workload {self.step.model.name} was asked for {asked} items and "
            f"returned {made}; return as many items as its first argument says"
        )

    def timed_step(self) -> Step:
        """Take the first step, whose loss the last one is compared with."""
        self._first_loss = self.step().item()
        return self.step

    def run_check(self) -> dict[str, Any]:
        """Return this rank's losses and parameters; of shards each rank has its own."""
        from lockstep.measure.step.train_step import parameter_checksum

        super().run_check()
        last = self.step().item()
        checksum = None if self.step.is_sharded else parameter_checksum(self.ddp)
        return {"first": self._first_loss, "last": last, "parameters": checksum}

    def time_variants(
        self,
        harness: Harness,
        step_s: float,  # noqa: ARG002, as of any measurement
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Time the variants, one of half the batch among them, and the phases of the whole step.

        A step of FSDP has no variants: without communication it has no parameters to compute with.
        """
        step, config = self.step, self.step.config
        if not harness.times_causes or step.is_sharded:
            return {}, {}
        harness.case.peak = memory.peak(harness.device)  # what follows is no part of the case
        ways = variants.of_ddp(step.ddp, step)
        if not config.no_sync and config.accumulation > 1:
            ways.pop("reduce", None)  # its bytes go once for each piece of the batch
        if half := halve_batch(step.local_batch, config.accumulation):
            first = trees.sliced((step.inputs, step.targets), 0, half)
            ways["half"] = without_sync(step.ddp, lambda: step.train.run(*first))
        own = ways["own"]
        # All that take the step mark it, or what that takes would show between them.
        marks = {name: variants.Marks(harness.device) for name in ways if name != "reduce"}
        ways |= {name: marks[name].marking(step.train, ways[name]) for name in marks}
        if self.waits_for_others(harness, own):
            return {}, {}
        harness.case.order_seed = variants.draw_order(harness.world, str(harness.number))
        plan = variants.plan_turns(harness.plan, ways, harness.device, 0)
        variant_s = variants.time_in_turns(harness.world, ways, plan, harness.case.order_seed)
        self._leads = bucket_starts(step.train, own)
        return variant_s, marks["full"].in_turns(len(variant_s["full"]))

    def facts(self, harness: Harness) -> dict[str, Any]:
        """Return what the step rests on, its buckets, and what is known against it."""
        from lockstep.measure.step.train_step import buckets, gradient_bytes

        step, precision = self.step, self.step.config.precision
        flags = precision_flags(harness.device, precision)
        # Every precision here keeps parameters in fp32.
        dtypes = sorted({str(p.dtype) for p in step.ddp.parameters() if p.is_floating_point()})
        if dtypes != ["torch.float32"]:
            flags.append(flag("parameter-dtypes", dtypes=dtypes, precision=precision))
        # No sample is read, decoded or copied to the device in the timed region.
        optimizer = type(step.train.optimizer).__name__
        basis = Basis(step.model.data, times_input=False, optimizer=optimizer)
        is_sharded = step.is_sharded
        sent = {"gradient_bytes": gradient_bytes(step.ddp)} if is_sharded else buckets(step.ddp)
        details = {**sent, **self._leads, BASIS: basis.to_dict()}
        if step.refused:
            last = step.refused[-1]
            flags.append(
                flag(
                    "smaller-batch",
                    asked=step.refused[0]["local_batch"],
                    measured=step.local_batch,
                    rank=last["rank"],
                    host=last["host"],
                )
            )
            details["out_of_memory"] = list(step.refused)
        facts = facts_of(harness, step.model, precision, step.local_batch)
        return facts | {"details": details, "flags": flags}

    def conclude(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return on rank 0 what all ranks' checks came to, or raise where the step is wrong."""
        harness = self.step.harness
        ranks = [part.own["check"] for part in parts]
        first, last = (sum(rank[at] for rank in ranks) / len(ranks) for at in ("first", "last"))

        def named(wrong: Sequence[int]) -> str:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            return f"rank {wrong[0]} on {harness.rank_hosts[wrong[0]]}{more}"

        if not (math.isfinite(first) and math.isfinite(last)):
            where = "the mean of all ranks"
            for at in ("last", "first"):  # one step later all ranks have the NaN of one
                if bad := [rank for rank, own in enumerate(ranks) if not math.isfinite(own[at])]:
                    where = "every rank" if len(bad) == len(ranks) else named(bad)
            raise RuntimeError(
                f"the loss is not finite on {where}: {first} at the first step, {last} at the last"
            )
        if harness.measures and last >= first:
            raise RuntimeError(
                f"the loss did not fall: {first:.4f} at the first step, {last:.4f} last"
            )
        checksum = ranks[0]["parameters"]
        if other := [rank for rank, own in enumerate(ranks) if own["parameters"] != checksum]:
            raise RuntimeError(
                f"{named(other)} holds other parameters than rank 0 on {harness.rank_hosts[0]} "
                "after equal updates"
            )
        checks = {"loss_first": first, "loss_last": last}
        if checksum is not None:
            checks["parameters_equal"] = True
        return {
            "samples_per_step": sum(part.own["samples"] for part in parts),
            "checks": checks,
        }


def bucket_starts(train: Any, own: Step) -> dict[str, Any]:
    """Return when the buckets are ready, and how long after its beginning a backward fills one."""
    marks = variants.Marks(train.device)
    leads = variants.bucket_leads(train.ddp, marks.marking(train, own))
    backward_s = marks.last_s("backward")  # a step of the workload's own marks none
    first = {"first_reduce_s": max(median(backward_s) - leads[0], 0.0)} if backward_s else {}
    return {"bucket_lead_s": leads, **first}


def facts_of(
    harness: Harness, model: "Workload", precision: str, local_batch: int
) -> dict[str, Any]:
    """Return what follows from the model, the batch and the device, for `CaseRecord`."""
    flop = None if model.step else flop_per_item(model)  # a step of its own may compute anything
    peak = None
    if harness.device.type == "cuda":
        import torch

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


def precision_flags(device: "torch.device", precision: str) -> list[Flag]:
    """Return a flag where the device computes a precision in software."""
    from lockstep.measure.step.precision import is_emulated

    return [flag("bf16-emulated")] if is_emulated(precision, device) else []


def fit(
    harness: Harness, local_batch: int, pieces: int, attempt: Callable[[int], object]
) -> tuple[int, list[dict[str, Any]]]:
    """Return the batch, or the largest of its halves, that all ranks take an untimed step with.

    An attempt builds all that a step needs for a batch, and takes one. A collective call.

    Returns:
        The batch, and those that were tried in vain: the batch, the first rank that had no memory
        for it, its host and its error.

    Raises:
        ExhaustedError: No half of the batch fits, or only some ranks came as far as a collective.
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
            traceback.clear_frames(error.__traceback__)  # which hold what was made
        own = [error_here, num_collectives()]
        ranks = harness.world.control.exchange_all(f"{harness.number}/memory", own)
        out = [rank for rank, (error, _) in enumerate(ranks) if error]
        if out:
            rank, host, error_there = out[0], harness.rank_hosts[out[0]], ranks[out[0]][0]
            if len({count for _, count in ranks}) > 1:
                raise memory.ExhaustedError(
                    f"rank {rank} on {host} ran out of memory between collectives of the "
                    f"others, so the case cannot go on at half the batch: {error_there}"
                )
        # It waits for the device, where a collective that not all ranks have called never ends.
        _free(harness)
        if not out:
            return local_batch, refused
        refused.append(
            {"local_batch": local_batch, "rank": rank, "host": host, "error": error_there}
        )
        half = halve_batch(local_batch, pieces)
        if half is None:
            raise memory.ExhaustedError(
                f"rank {rank} on {host} has no memory for {local_batch} samples, which cannot be "
                f"halved: {error_there}"
            )
        local_batch = half


def _free(harness: Harness) -> None:
    gc.collect()
    if harness.device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


@contextlib.contextmanager
def advising(local_batch: int, config: "StepConfig", *, is_strong: bool) -> Iterator[None]:
    """Say what helps where a rank has no memory for a step.

    With `is_strong` the batch of all ranks is what the user chose.

    Raises:
        RuntimeError: There was no memory left.
        ValueError: There would be none, known before any of it was made.
    """
    try:
        yield
    except Exception as error:
        if not memory.is_exhausted(error):
            raise
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        batch = "global" if is_strong else "local"
        halving = "" if isinstance(error, memory.ExhaustedError) else "--on-oom halve, flagged, or "
        recipes = [
            f"a smaller batch, by {halving}--{batch}-batch",
            f"the batch in parts, by --set accumulation={2 * config.accumulation}",
        ]
        if not config.activation_checkpointing:
            recipes.append("fewer activations, by --set activation_checkpointing=true")
        raise kind(
            f"{_first_line(error)}; {local_batch // config.accumulation} samples at once need more "
            f"memory than there is: try {'; '.join(recipes)}"
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:MAX_CHARACTERS]
    return text or type(error).__name__
