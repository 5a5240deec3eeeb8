"""The variants of a user's own step, with or without its batches."""

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from statistics import fmean
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from lockstep.core.record import LOADER_SETTINGS
from lockstep.core.sizes import halve_batch
from lockstep.measure import timing
from lockstep.measure.causes.division import LAP
from lockstep.measure.loading.data import loader_settings
from lockstep.measure.step import variants
from lockstep.measure.step.variants import Plan
from lockstep.measure.timing import Step
from lockstep.ranks.process_group import World
from lockstep.workloads import trees

# Steps after which DDP has settled on its buckets.
WARM_UP = 3


@dataclass
class Loop:
    """A user's step, and the batches that it runs on."""

    step: Callable[..., Any]  # one optimizer update; takes a batch if there are batches
    models: Sequence[DistributedDataParallel]  # that it trains
    batches: Iterable[Any] | None = None  # if drawing them is to be measured
    # Whether half of a batch may be tried; torch.compile would compile for any size from then on.
    can_halve: bool = True
    num_steps: int = 0  # steps run so far
    draw_s: list[float] = field(default_factory=list)  # wait of each drawing step for its batch
    first: tuple[Any, ...] = ()  # the first batch; empty until it is drawn

    def __post_init__(self) -> None:
        self.stream = None if self.batches is None else endless(independent(self.batches))
        # The latest batches of the whole step, and their halves, for the other variants.
        self._kept: deque[Any] = deque(maxlen=LAP)
        self._halves: list[Any] = []
        self._next: dict[str, int] = {}

    def problem(self) -> str:
        """Draw the first batch; return why the batches cannot be used, or an empty text."""
        if isinstance(self.batches, Iterator):
            return (
                f"the argument batches is of type {type(self.batches).__name__}, which can be read "
                "only once; pass the loader itself"
            )
        if self.stream is None:
            return ""
        try:
            self.first = tuple(islice(self.stream, 1))
        except Exception as error:  # noqa: BLE001, sent to the other ranks
            return f"the argument batches gave no batch, but raised {type(error).__name__}: {error}"
        self._kept.extend(self.first)
        if self.first:
            return ""
        return "the argument batches is empty; pass a loader with at least one batch"

    def drawing_step(self) -> Step:
        """Return a step that draws its batch; it raises RuntimeError if none is left."""
        return self._take(self._draw)

    def _draw(self) -> tuple[Any, ...]:
        begun = time.perf_counter()
        for batch in self.stream or ():
            self.draw_s.append(time.perf_counter() - begun)
            self._kept.append(batch)
            return (batch,)
        raise RuntimeError(
            f"the argument batches ended at step {self.num_steps}; pass a DataLoader, or another "
            "iterable that can be repeated"
        )

    @property
    def loader(self) -> DataLoader[Any] | None:
        return self.batches if isinstance(self.batches, DataLoader) else None

    @property
    def settings(self) -> dict[str, Any]:
        """A DataLoader's settings, as in a case's details."""
        return {LOADER_SETTINGS: loader_settings(self.loader)} if self.loader else {}

    def most_workers(self, world: World, case: str) -> int:
        """Return the largest number of workers of a rank, equal on all ranks; a collective call."""
        num_workers = self.loader.num_workers if self.loader else 0
        return int(world.control.settle_all(f"{case}/workers", num_workers, max))

    def variants(self) -> dict[str, Step]:
        """Warm up, and return the variants of the step by name; see `measure.causes.division`."""
        self._rewind(1)
        own = self._keeping("own")
        for _ in range(WARM_UP):
            own()
        whole = self._keeping("full") if self.stream is None else self.drawing_step()
        steps = {
            "full": self._for_models(variants.whole_step, whole),
            "own": self._for_models(variants.own_step, own),
        }
        if sending := [ddp for ddp in self.models if variants.sends_buckets(ddp)]:
            reductions = [variants.reduce_buckets(ddp) for ddp in sending]
            steps["reduce"] = lambda: [reduction() for reduction in reductions]
        if self.stream is not None:
            steps["resident"] = self._for_models(variants.whole_step, self._keeping("resident"))
            if self.can_halve and halve(self._kept[0]) is not None:
                steps["half"] = self._for_models(variants.own_step, self._keeping("half"))
        return steps

    def keep_what_works(
        self, world: World, ways: dict[str, Step], case: str, reset: Step = lambda: None
    ) -> None:
        """Remove from `ways` the variants that some rank lacks; a collective call.

        Half of a batch may fail in a user's step; then `reset` is called.
        """

        def keep_shared() -> None:
            shared = world.control.settle_all(
                f"{case}/ways", list(ways), lambda names: sorted(set(names[0]).intersection(*names))
            )
            for name in set(ways) - set(shared):
                del ways[name]

        keep_shared()  # else ranks would wait for a rank without half a batch
        if "half" not in ways:
            return
        try:
            ways["half"]()
        except Exception:  # noqa: BLE001, the user's code may reject another shape
            del ways["half"]
            reset()
        keep_shared()

    def time_in_turns(
        self, world: World, ways: Mapping[str, Step], plan: Plan, seed: int
    ) -> dict[str, list[float]]:
        """Return the seconds of each turn; turns that draw batches come one after another.

        Otherwise a loader's workers would fetch ahead during the other turns. The other variants
        then take the batches that were drawn. Plan and seed are equal on all ranks.
        """
        if "resident" not in ways:
            return variants.time_in_turns(world, ways, plan, seed)
        turns: dict[str, list[float]] = {}
        for lap in range(math.ceil(plan.blocks / LAP)):
            some = replace(plan, blocks=min(LAP, plan.blocks - lap * LAP))
            for name, seconds in self._time_lap(world, ways, some, seed + lap).items():
                turns.setdefault(name, []).extend(seconds)
        return turns

    def _time_lap(
        self, world: World, ways: Mapping[str, Step], plan: Plan, seed: int
    ) -> dict[str, list[float]]:
        full, is_first = ways["full"], iter([True])

        def untimed() -> None:
            # Drop the batches that workers fetched ahead while no step took one. This is part of a
            # turn, so that workers do not fetch ahead again before the next turn.
            if next(is_first, False) and self.loader and self.stream:
                ahead = self.loader.num_workers * (self.loader.prefetch_factor or 0)
                deque(islice(self.stream, ahead), maxlen=0)
            full()

        steps = plan.full_steps
        _, *drawing = timing.time_turns(world, [untimed, *[full] * plan.blocks], steps)
        waits = self.draw_s[-plan.blocks * steps :]
        self._rewind(plan.blocks * plan.steps)
        others = {name: step for name, step in ways.items() if name != "full"}
        return {
            "full": [taken_s for taken_s, _ in drawing],
            "draw": [fmean(waits[at : at + steps]) for at in range(0, len(waits), steps)],
            **variants.time_in_turns(world, others, plan, seed),
        }

    def _for_models(self, wrap: Callable[[Any, Step], Step], step: Step) -> Step:
        return reduce(lambda inner, ddp: wrap(ddp, inner), self.models, step)

    def _rewind(self, num_steps: int) -> None:
        """Let each variant go on with the last `num_steps` batches, after an untimed step."""
        first = max(len(self._kept) - num_steps, 0) - 1
        self._next = dict.fromkeys(("full", "resident", "own", "half"), first)
        if self.stream is not None and self.can_halve:
            halves = [(whole, halve(whole)) for whole in self._kept]
            self._halves = [whole if half is None else half for whole, half in halves]

    def _keeping(self, name: str) -> Step:
        """Return a step of a variant that takes the kept batches in their order."""

        def kept() -> tuple[Any, ...]:
            batches = self._halves if name == "half" else self._kept
            number = self._next[name]
            self._next[name] = number + 1
            return (batches[number % len(batches)],) if batches else ()

        return self._take(kept)

    def _take(self, batch: Callable[[], tuple[Any, ...]]) -> Step:
        def take() -> None:
            self.num_steps += 1
            self.step(*batch())

        return take


def independent(batches: Iterable[Any]) -> Iterable[Any]:
    """Return the same batches, without disturbing a loop over them.

    A DataLoader with persistent workers has one iterator, which a second loop would restart.
    """
    if isinstance(batches, DataLoader):
        own = copy.copy(batches)
        vars(own)["_iterator"] = None
        return own
    return batches


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a loader again and again, until it has none."""
    has_any = True
    while has_any:
        has_any = False
        for batch in batches:
            has_any = True
            yield batch


def halve(batch: Any) -> Any:
    """Return half of a batch; None if it has no tensor, or cannot be halved.

    The items lie in the first dimension of its tensors, as DataLoaders stack them; a tensor of
    another length is kept whole.
    """
    size = next((len(leaf) for leaf in trees.leaves(batch) if leaf.dim()), 0)
    half = halve_batch(size, pieces=1)
    return half and trees.map_tensors(
        lambda leaf: leaf[:half] if leaf.dim() and len(leaf) == size else leaf, batch
    )
