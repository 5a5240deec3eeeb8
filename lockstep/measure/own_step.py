"""How a user's own step is measured: `lockstep.measure(step, ...)` in a test of theirs."""

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.core.flags import Flag, flag
from lockstep.core.record import BASIS, Basis
from lockstep.measure.result import Part
from lockstep.ranks import refusing

if TYPE_CHECKING:
    from lockstep.measure.harness import Harness
    from lockstep.measure.loop_variants import Loop


# Units of which a batch's tensors hold one an item; it may have many tokens.
ITEMS = ("samples", "images", "rows", "examples", "sequences")


@dataclass(frozen=True)
class OwnStep:
    """What a user gives to be measured: the arguments of `Harness.measure`."""

    step: Callable[..., Any]
    samples: int
    batches: Iterable[Any] | None
    ddp: Any
    check: Callable[[], Any] | None
    scaling: str
    unit: str
    factors: Mapping[str, Any]

    def loop(self) -> "Loop":
        """Return the step with what it draws batches of."""
        from lockstep.measure.loop_variants import Loop
        from lockstep.measure.reach import reach

        models = [self.ddp] if _is_ddp(self.ddp) else []
        compiled = reach(step=self.step, model=self.ddp, batches=self.batches).compiled
        return Loop(self.step, models, self.batches, can_halve=not compiled)

    def problem(self, world_size: int) -> str:
        """Return what cannot be measured of it; empty where all can."""
        if self.scaling not in ("weak", "strong"):
            return f"scaling={self.scaling!r} is not weak or strong"
        if type(self.samples) is not int or self.samples < 1:
            return (
                f"samples is {reprlib.repr(self.samples)}, which is no whole number of 1 or more; "
                "give those of a step on this rank, such as 32, its local batch"
            )
        # A model may be wrapped only where there are other ranks.
        if self.ddp is not None and world_size > 1 and not _is_ddp(self.ddp):
            return (
                f"ddp={type(self.ddp).__name__} is no DistributedDataParallel model; wrap it, or "
                "leave ddp out"
            )
        return ""

    def contradiction(self, loop: "Loop") -> list[Flag]:
        """Return a flag where a batch that is seen holds another number of items than is said."""
        from lockstep.workloads.trees import seen_items

        items = seen_items(self.step, loop.first, self.samples, one_each=self.unit in ITEMS)
        return [flag("other-samples", samples=self.samples, items=items)] if items else []


def measure(harness: "Harness", own: OwnStep) -> list[float]:
    """Measure a step on every rank, and keep the result; see `Harness.measure`."""
    loop = own.loop()
    problem = own.problem(harness.world.world_size)
    problem = problem or loop.problem()
    refusing.in_case(harness.world, harness.rank_hosts, problem)
    if own.batches is not None:
        harness = _in_bursts(harness, loop)
    round_s = harness.time(own.step if own.batches is None else loop.drawing())
    _check(own)
    step_s = median(round_s) / harness.plan.steps_per_round
    variant_s = _time_variants(harness, own, loop, step_s)
    factors = harness.factors | dict(own.factors)
    replace(harness, study=own.scaling, factors=factors).record(
        round_s,
        variant_s=variant_s,
        own=own.samples,
        conclude=_batches,
        workload=harness.name,
        scaling=own.scaling,
        sample_unit=own.unit,
        flags=own.contradiction(loop),
        checks={} if own.check is None else {"own_check": True},
        details={BASIS: Basis().to_dict(), **_buckets(own.ddp), **loop.settings},
    )
    return round_s


def _in_bursts(harness: "Harness", loop: "Loop") -> "Harness":
    """Return it with rounds of whole bursts: workers deliver together, then a step waits for them.

    Rounds of single steps would be quick and slow in turn, and their median one of the two.
    """
    together = max(1, loop.most_workers(harness.world, str(harness.number)))
    steps = -(-harness.size.steps_per_round // together) * together
    return replace(harness, size=replace(harness.size, steps_per_round=steps))


def _check(own: OwnStep) -> None:
    answer = None if own.check is None else own.check()
    if answer is not None and not answer:  # NumPy and torch have a False of their own
        raise RuntimeError(f"the check of the measured step returned {answer}")


def _time_variants(
    harness: "Harness", own: OwnStep, loop: "Loop", step_s: float
) -> dict[str, list[float]]:
    """Time the variants that are known: without DDP those of one rank at most."""
    is_known = _is_ddp(own.ddp) or harness.world.world_size == 1
    if not (harness.measures and harness.causes and is_known):
        return {}
    return harness.time_variants(loop.variants(), loop, step_s)


def _is_ddp(ddp: Any) -> bool:
    """Tell DDP, compiled too, from another wrapper that has a `no_sync` and no buckets: FSDP."""
    return hasattr(ddp, "_get_ddp_logging_data")


def _buckets(ddp: Any) -> dict[str, Any]:
    if not _is_ddp(ddp):
        return {}
    from lockstep.measure.step.train_step import buckets

    return buckets(ddp)


def _batches(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the batches of a user's own step, which need not be equal on all ranks."""
    batches = [part.own for part in parts]
    return {
        "samples_per_step": sum(batches),
        "local_batch": batches[0] if len(set(batches)) == 1 else None,
        "global_batch": sum(batches),
    }
