"""How a training step is measured: build, warm up, time, then check that it trained.

A batch that every rank has memory for: halving it where one has not, and what helps else.
"""

import contextlib
import gc
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep import workloads
from lockstep.core.flags import Flag, flag
from lockstep.core.record import BASIS, Basis
from lockstep.core.sizes import halve_batch, local_batch_of
from lockstep.core.studies import ON_REQUEST
from lockstep.machine import hardware, memory
from lockstep.measure.harness import Harness
from lockstep.measure.step.train_step import Marks, find_unsuited, is_sharded
from lockstep.measure.step.variants import Step, bucket_leads, of_ddp, without_sync
from lockstep.ranks.process_group import num_collectives, refuse_in_case
from lockstep.workloads import trees
from lockstep.workloads.costs import batch_bytes, flop_per_item, model_bytes

if TYPE_CHECKING:
    import torch

    from lockstep.measure.step.train_step import StepConfig, TrainStep
    from lockstep.workloads import Workload


MAX_CHARACTERS = 300


@dataclass(frozen=True)
class Refused:
    """A batch that was tried in vain.

    Attributes:
        rank: The first rank that had no memory for it.
        error: What it said.
    """

    local_batch: int
    rank: int
    host: str
    error: str


@dataclass(frozen=True)
class Fitted:
    """The batch that is measured.

    Attributes:
        refused: What was tried before, the batch asked for first.
    """

    local_batch: int
    refused: tuple[Refused, ...] = ()

    @property
    def flags(self) -> list[Flag]:
        """What is known against a result at another batch than the one asked for."""
        if not self.refused:
            return []
        first, last = self.refused[0], self.refused[-1]
        asked, measured = first.local_batch, self.local_batch
        return [
            flag("smaller-batch", asked=asked, measured=measured, rank=last.rank, host=last.host)
        ]

    @property
    def details(self) -> dict[str, Any]:
        """What a record keeps of the attempts."""
        return {"out_of_memory": list(map(asdict, self.refused))} if self.refused else {}


def fit(
    harness: "Harness", local_batch: int, pieces: int, attempt: Callable[[int], object]
) -> Fitted:
    """Return the batch, or the largest of its halves, that all ranks take an untimed step with.

    An attempt builds all that a step needs for a batch, and takes one.

    Raises:
        ExhaustedError: No half of the batch fits, or only some ranks came as far as a collective.
    """
    refused: list[Refused] = []
    while (found := _refused(harness, local_batch, attempt)) is not None:
        refused.append(found)
        half = halve_batch(local_batch, pieces)
        if half is None:
            raise memory.ExhaustedError(
                f"rank {found.rank} on {found.host} has no memory for {local_batch} samples, which "
                f"cannot be halved: {found.error}"
            )
        local_batch = half
    return Fitted(local_batch, tuple(refused))


def _refused(
    harness: "Harness", local_batch: int, attempt: Callable[[int], object]
) -> Refused | None:
    """Return the first rank that has no memory for a batch; None where all have. A collective."""
    said = ""
    try:
        attempt(local_batch)
    except Exception as error:
        if not memory.is_exhausted(error):
            raise
        said = _first_line(error)
        traceback.clear_frames(error.__traceback__)  # which hold what was made
    ranks = harness.world.control.exchange_all(
        f"{harness.number}/memory", [said, num_collectives()]
    )
    out = [rank for rank, (text, _) in enumerate(ranks) if text]
    found = None
    if out:
        found = Refused(local_batch, out[0], harness.rank_hosts[out[0]], ranks[out[0]][0])
    if found and len({count for _, count in ranks}) > 1:
        raise memory.ExhaustedError(
            f"rank {found.rank} on {found.host} ran out of memory between collectives of the "
            f"others, so the case cannot go on at half the batch: {found.error}"
        )
    # It waits for the device, where a collective that not all ranks have called never ends.
    _free(harness)
    return found


def _free(harness: "Harness") -> None:
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


LEARNING_RATE = 0.01


def measure_training(
    harness: Harness,
    *,
    workload: str,
    precision: str,
    local_batch: int | None = None,
    global_batch: int | None = None,
    bucket_cap_mb: float | None = None,
    accumulation: int = 1,
    no_sync: bool = True,
) -> None:
    """Measure training steps of a workload on one batch that stays on the device.

    Args:
        harness: The case's view of the launch; its factors may set those of `studies.ON_REQUEST`.
        workload: Name of the model, see `lockstep.workloads`.
        precision: fp32, tf32, bf16 or fp16; skipped where the hardware cannot do it.
        local_batch: Samples per rank and update; give this or `global_batch`.
        global_batch: Samples of all ranks per update.
        bucket_cap_mb: DDP's own parameter; None leaves DDP's default.
        accumulation: Micro-batches that one update is split into.
        no_sync: Synchronise gradients on the last micro-batch only.

    Raises:
        ValueError: The batch does not divide by the ranks, or a rank has no room for what it
            would hold, or `make_batch` returned another number of items than asked.
        RuntimeError: The step was fast but wrong: loss or parameters are not as they must be; or
            `make_batch` of another rank returned another number of items.
    """
    from lockstep.measure.step.train_step import keeping_precision_switches

    skip_unless_supported(harness, precision)
    _skip_without_exchange(harness)
    model = workloads.make(workload)
    if local_batch is None:
        assert global_batch is not None
        local_batch = local_batch_of(global_batch, harness.world.world_size)
    config = _config(harness, precision, bucket_cap_mb, accumulation, no_sync)
    _skip_unsuited(config, model)
    is_strong = global_batch is not None
    with keeping_precision_switches(), advising(local_batch, config, is_strong=is_strong):
        _measure(harness, model, config, local_batch, "strong" if is_strong else "weak")


def _config(
    harness: Harness, precision: str, bucket_cap_mb: float | None, accumulation: int, no_sync: bool
) -> "StepConfig":
    """Return how the step is taken, which the case's factors may say otherwise."""
    from lockstep.measure.step.train_step import StepConfig

    asked: dict[str, Any] = {
        "precision": precision,
        "bucket_cap_mb": bucket_cap_mb,
        "accumulation": accumulation,
        "no_sync": no_sync,
        "lr": LEARNING_RATE,
    }
    chosen = {name: value for name, value in harness.factors.items() if name in ON_REQUEST}
    return StepConfig(**asked | chosen)


def _skip_without_exchange(harness: Harness) -> None:
    """Skip a study of buckets at one rank."""
    if harness.study == "bucket" and harness.world.world_size == 1:
        import pytest

        pytest.skip("a bucket size needs two ranks; one exchanges no gradients")


def _skip_unsuited(config: "StepConfig", model: "Workload") -> None:
    import pytest

    if reason := find_unsuited(config, model):
        pytest.skip(reason)


def _measure(
    harness: Harness, model: "Workload", config: "StepConfig", asked: int, scaling: str
) -> None:
    """Measure the step at the local batch asked for, or at what is left of it."""
    fitted = Fitted(asked)
    if harness.halves:
        fitted = fit(
            harness, asked, config.accumulation, lambda n: _attempt(harness, model, config, n)
        )
    step, inputs, targets = _build(harness, model, config, fitted.local_batch)
    problem = _batch_problem(model, fitted.local_batch, trees.num_items(inputs))
    refuse_in_case(harness.world, harness.rank_hosts, problem)
    round_s, own = _time(harness, step, inputs, targets)
    variants = _variants(step, inputs, targets)
    variant_s, phase_s = _time_variants(harness, step, variants)
    precision = config.precision
    harness.record(
        round_s,
        variant_s=variant_s,
        phase_s=phase_s,
        own=own,
        conclude=lambda parts: {"checks": _checks(harness, [part.own for part in parts])},
        scaling=scaling,
        details=_details(step, model, variants, variant_s) | fitted.details,
        flags=[*precision_flags(harness.device, precision), *_dtype_flags(step, precision),
               *fitted.flags],
        **facts_of(harness, model, precision, fitted.local_batch),
    )  # fmt: skip


def _attempt(harness: Harness, model: "Workload", config: "StepConfig", local_batch: int) -> None:
    """Take a step, in which no rank waits for another one where the strategy allows that."""
    step, inputs, targets = _build(harness, model, config, local_batch)
    whole = partial(step.run, inputs, targets)
    (whole if is_sharded(config) else without_sync(step.ddp, whole))()


def _variants(step: "TrainStep", inputs: Any, targets: Any) -> dict[str, Step]:
    """Return the variants of a step, one of half its batch among them where that can be halved.

    A step of FSDP has none: without communication it has no parameters to compute with.
    """
    if is_sharded(step.config):
        return {}
    found = of_ddp(step.ddp, lambda: step.run(inputs, targets))
    if not step.config.no_sync and step.config.accumulation > 1:
        found.pop("reduce", None)  # its bytes go once for each piece of the batch
    if half := halve_batch(trees.num_items(inputs), step.config.accumulation):
        first = trees.sliced((inputs, targets), 0, half)
        found["half"] = without_sync(step.ddp, lambda: step.run(*first))
    return found


def _time_variants(
    harness: Harness, step: "TrainStep", variants: Mapping[str, Step]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds a step of each variant's turns, and of each phase of the whole step's.

    All that take the step mark it, or what that takes would show between them.
    """
    marks = {name: Marks(step.device) for name in variants if name != "reduce"}
    marked = {name: one.marking(step, variants[name]) for name, one in marks.items()}
    variant_s = harness.time_variants({**variants, **marked}) if variants else {}
    return variant_s, marks["full"].in_turns(len(variant_s["full"])) if variant_s else {}


def _details(
    step: "TrainStep",
    model: "Workload",
    variants: Mapping[str, Step],
    variant_s: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the step's buckets, when this rank has them ready, and what the step rests on."""
    from lockstep.measure.step.train_step import buckets, gradient_bytes

    leads = _bucket_starts(step, variants["own"]) if variant_s else {}
    # No sample is read, decoded or copied to the device in the timed region.
    basis = Basis(model.data, times_input=False, optimizer=type(step.optimizer).__name__)
    sent = {"gradient_bytes": gradient_bytes(step.ddp)} if is_sharded(step.config) else (
        buckets(step.ddp))  # fmt: skip
    return {**sent, **leads, BASIS: basis.to_dict()}


def _bucket_starts(step: "TrainStep", own: Step) -> dict[str, Any]:
    """Return when the buckets are ready, and how long after its beginning a backward fills one."""
    marks = Marks(step.device)
    leads = bucket_leads(step.ddp, marks.marking(step, own))
    backward_s = marks.last_s("backward")  # a step of the workload's own marks none
    first = {"first_reduce_s": max(median(backward_s) - leads[0], 0.0)} if backward_s else {}
    return {"bucket_lead_s": leads, **first}


def skip_unless_supported(harness: Harness, precision: str) -> None:
    """Skip on all ranks what the hardware of one cannot do, or the others would wait for it."""
    import pytest

    if reason := (harness.unsupported or {}).get(precision):
        pytest.skip(reason)


def _time(
    harness: Harness, step: "TrainStep", inputs: Any, targets: Any
) -> tuple[list[float], dict[str, Any]]:
    """Return the seconds of this rank's rounds, and what its result is checked by."""
    from lockstep.measure.step.train_step import parameter_checksum

    first = step.run(inputs, targets).item()
    round_s = harness.time(lambda: step.run(inputs, targets))
    last = step.run(inputs, targets).item()
    # Of shards each rank has its own.
    checksum = None if is_sharded(step.config) else parameter_checksum(step.ddp)
    return round_s, {"first": first, "last": last, "parameters": checksum}


def facts_of(
    harness: Harness, model: "Workload", precision: str, local_batch: int
) -> dict[str, Any]:
    """Return what follows from the model, the batch and the device, for `CaseRecord`."""
    items = local_batch * harness.world.world_size
    return {
        "workload": model.name,
        "precision": precision,
        "local_batch": local_batch,
        "global_batch": items,
        "sample_unit": model.sample_unit,
        "samples_per_step": items * model.samples_per_item,
        "flop_per_sample": _flop_per_sample(model),
        "peak_flop_per_s": _peak(harness.device, precision),
    }


def _build(
    harness: Harness, model: "Workload", config: "StepConfig", local_batch: int
) -> "tuple[TrainStep, Any, Any]":
    import torch

    from lockstep.measure.step.train_step import TrainStep

    # Of an optimizer of one's own nothing is known: at the least it keeps nothing.
    num_moments = int(model.optimizer is None and config.momentum > 0)
    held = model_bytes(model, num_moments)
    if is_sharded(config):  # which has no buckets beside the gradients
        held = model_bytes(model, num_moments - 1) // harness.world.world_size
    needed = {
        f"the model {model.name}": held,
        f"its batch of {local_batch}": batch_bytes(model, local_batch),
    }
    if harness.case.room:
        memory.refuse_beyond(harness.case.room, needed, harness.device)
    # Parameters are equal on all ranks, data is each rank's own.
    torch.manual_seed(harness.seed)
    built = model.build()
    if not is_sharded(config):
        built = built.to(harness.device)
    step = TrainStep(built, model.loss, config, harness.device, model)
    generator = torch.Generator(harness.device)
    generator.manual_seed(harness.seed + 1 + harness.world.rank)
    return step, *model.make_batch(local_batch, harness.device, generator)


def _batch_problem(model: "Workload", asked: int, made: int) -> str:
    """Return what is wrong with the size of a batch, or nothing; the size asked for counts."""
    if made == asked:
        return ""
    return (
        f"make_batch of workload {model.name} was asked for {asked} items and returned {made}; "
        "return as many items as its first argument says"
    )


def _checks(harness: Harness, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all ranks found, or raise: a fast wrong case is a failed case."""
    first = sum(own["first"] for own in ranks) / len(ranks)
    last = sum(own["last"] for own in ranks) / len(ranks)
    if not (math.isfinite(first) and math.isfinite(last)):
        raise RuntimeError(
            f"the loss is not finite on {_where_not_finite(harness, ranks)}: {first} at the first "
            f"step, {last} at the last"
        )
    if harness.measures and last >= first:
        raise RuntimeError(f"the loss did not fall: {first:.4f} at the first step, {last:.4f} last")
    other = [rank for rank, own in enumerate(ranks) if own["parameters"] != ranks[0]["parameters"]]
    if other:
        raise RuntimeError(
            f"{_listed(harness, other)} holds other parameters than rank 0 on "
            f"{harness.rank_hosts[0]} after equal updates"
        )
    found = {"loss_first": first, "loss_last": last}
    return found if ranks[0]["parameters"] is None else found | {"parameters_equal": True}


def _where_not_finite(harness: Harness, ranks: list[dict[str, Any]]) -> str:
    """Return the ranks whose loss was first not finite; one step later all ranks have its NaN."""
    for name in ("first", "last"):
        bad = [rank for rank, own in enumerate(ranks) if not math.isfinite(own[name])]
        if bad:
            return "every rank" if len(bad) == len(ranks) else _listed(harness, bad)
    return "the mean of all ranks"


def _listed(harness: Harness, ranks: list[int]) -> str:
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]} on {harness.rank_hosts[ranks[0]]}{more}"


def _flop_per_sample(model: "Workload") -> float | None:
    if model.step:  # A step of one's own may compute anything, and several times.
        return None
    flop = flop_per_item(model)
    return None if flop is None else flop / model.samples_per_item


def _peak(device: "torch.device", precision: str) -> float | None:
    if device.type != "cuda":
        return None
    import torch

    return hardware.peak_flop_per_s(torch.cuda.get_device_name(device), precision)


def _dtype_flags(step: "TrainStep", precision: str) -> list[Flag]:
    """Return a flag where parameters are not fp32, which every precision here keeps them in."""
    found = sorted({str(p.dtype) for p in step.ddp.parameters() if p.is_floating_point()})
    if found == ["torch.float32"]:
        return []
    return [flag("parameter-dtypes", dtypes=found, precision=precision)]


def precision_flags(device: "torch.device", precision: str) -> list[Flag]:
    """Return a flag where the device computes a precision in software."""
    from lockstep.measure.step.train_step import is_emulated

    return [flag("bf16-emulated")] if is_emulated(precision, device) else []
