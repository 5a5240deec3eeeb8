"""The variants of a user's own step, which may come with its batches."""

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from lockstep.core.record import LOADER_SETTINGS
from lockstep.core.sizes import halve_batch
from lockstep.measure import timing
from lockstep.measure.causes.division import LAP
from lockstep.measure.loading.data import loader_settings
from lockstep.measure.step import variants
from lockstep.measure.step.variants import Plan
from lockstep.workloads import trees

if TYPE_CHECKING:
    from lockstep.ranks.process_group import World

Step = Callable[[], Any]
# DDP notes in the third forward which buckets it uses.
WARM_UP = 3


@dataclass
class Loop:
    """A step of the user's, and the batches that it runs on.

    Attributes:
        step: One optimizer update; takes a batch where there are batches.
        models: The models in DDP that it trains.
        batches: What gives batches, where drawing them is to be measured.
        can_halve: Whether half of a batch may be tried; torch.compile would from then on compile
            for any size.
        num_steps: Taken so far.
        draw_s: Seconds that each step which drew its batch waited for it.
        first: The first batch, once it is drawn.
    """

    step: Callable[..., Any]
    models: Sequence[DistributedDataParallel]
    batches: Iterable[Any] | None = None
    can_halve: bool = True
    num_steps: int = 0
    draw_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with no batch."""
        self.stream = None if self.batches is None else endless(apart(self.batches))
        # The latest batches, and halves of them; the other variants take those of the whole step.
        self._kept: deque[Any] = deque(maxlen=LAP)
        self._halves: list[Any] = []
        self._next: dict[str, int] = {}
        self.first: tuple[Any, ...] = ()

    def problem(self) -> str:
        """Return why its batches cannot be measured with, or nothing; draws the first of them."""
        if isinstance(self.batches, Iterator):
            return (
                f"batches is a {type(self.batches).__name__}, whose batches are gone once drawn; "
                "give the loader itself"
            )
        if self.stream is None:
            return ""
        try:
            self.first = tuple(islice(self.stream, 1))
        except Exception as error:  # noqa: BLE001, the other ranks are to hear of it
            return f"batches cannot be drawn from: {type(error).__name__}: {error}"
        self._kept.extend(self.first)
        return "" if self.first else "batches holds no batch; give a loader that does"

    def drawing(self) -> Step:
        """Return a step that draws its batch; it raises RuntimeError where there is none left."""
        return self._take(self._draw)

    def _draw(self) -> tuple[Any, ...]:
        begun = time.perf_counter()
        for batch in self.stream or ():
            self.draw_s.append(time.perf_counter() - begun)
            self._kept.append(batch)
            return (batch,)
        raise RuntimeError(
            f"batches is used up at step {self.num_steps}; give a DataLoader, or another iterable "
            "that can be gone over again"
        )

    @property
    def loader(self) -> "DataLoader[Any] | None":
        """The batches, where they come from a DataLoader."""
        return self.batches if isinstance(self.batches, DataLoader) else None

    @property
    def settings(self) -> dict[str, Any]:
        """What a DataLoader was given, as a case's details name it."""
        return {LOADER_SETTINGS: loader_settings(self.loader)} if self.loader else {}

    def most_workers(self, world: "World", case: str) -> int:
        """Return the workers of the rank that has most, equal on all ranks; a collective call.

        A rank that failed in `case` before this call would answer the wrong case next.
        """
        num_workers = self.loader.num_workers if self.loader else 0
        return int(world.control.settle_all(f"{case}/workers", num_workers, max))

    def variants(self) -> dict[str, Step]:
        """Warm up, and return the variants of the step by name, see `measure.causes.division`."""
        self._rewind(1)
        own = self._keeping("own")
        for _ in range(WARM_UP):
            own()
        whole = self._keeping("full") if self.stream is None else self.drawing()
        steps = {"full": self._of_each(variants.with_sync, whole), "own": self._alone(own)}
        if sending := [ddp for ddp in self.models if variants.sends_buckets(ddp)]:
            reductions = [variants.reduce_buckets(ddp) for ddp in sending]
            steps["reduce"] = lambda: [reduction() for reduction in reductions]
        if self.stream is not None:
            steps["resident"] = self._of_each(variants.with_sync, self._keeping("resident"))
            if self.can_halve and halved(self._kept[0]) is not None:
                steps["half"] = self._alone(self._keeping("half"))
        return steps

    def keep_what_works(
        self, world: "World", ways: dict[str, Step], case: str, reset: Step = lambda: None
    ) -> None:
        """Leave out what a rank does not have, such as half of a batch that its step can take.

        A collective call. Removes from `ways` and calls `reset` after a half that fails.
        """

        def keep_shared() -> None:
            shared = world.control.settle_all(
                f"{case}/ways", list(ways), lambda given: sorted(set(given[0]).intersection(*given))
            )
            for name in set(ways) - set(shared):
                del ways[name]

        keep_shared()  # or the others would wait in the half for a rank that has none
        if "half" not in ways:
            return
        try:
            ways["half"]()
        except Exception:  # noqa: BLE001, whatever the user's code says to a shape it does not know
            del ways["half"]
            reset()
        keep_shared()

    def time_in_turns(
        self, world: "World", ways: Mapping[str, Step], plan: Plan, seed: int
    ) -> dict[str, list[float]]:
        """Return the seconds of each turn; those of steps that draw batches follow each other.

        A loader's workers would fetch during the turns of the others what these have to wait for.
        The others take the batches of the last lap, in their order. Plan and seed, which is
        that of the turns' order, are equal on all ranks.
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
        self, world: "World", ways: Mapping[str, Step], plan: Plan, seed: int
    ) -> dict[str, list[float]]:
        full, is_first = ways["full"], iter([True])

        def untimed() -> None:
            # Workers have fetched ahead while no step asked for a batch. These are dropped within
            # a turn, lest workers fetch again before the next one.
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

    def _alone(self, step: Step) -> Step:
        return self._of_each(variants.without_sync, step)

    def _of_each(self, way: Callable[[Any, Step], Step], step: Step) -> Step:
        return reduce(lambda inner, ddp: way(ddp, inner), self.models, step)

    def _rewind(self, num_steps: int) -> None:
        """Let each variant take the last batches next, after an untimed step."""
        first = max(len(self._kept) - num_steps, 0) - 1
        self._next = dict.fromkeys(("full", "resident", "own", "half"), first)
        if self.stream is not None and self.can_halve:
            halves = [(whole, halved(whole)) for whole in self._kept]
            self._halves = [whole if half is None else half for whole, half in halves]

    def _keeping(self, name: str) -> Step:
        """Return a step of a variant on the batches that are kept, one after the other."""

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


def apart(batches: Iterable[Any]) -> Iterable[Any]:
    """Return what gives the same batches, without disturbing a loop that goes over them.

    A DataLoader whose workers persist has one iterator, which a second loop would begin anew.
    """
    if isinstance(batches, DataLoader):
        own = copy.copy(batches)
        vars(own)["_iterator"] = None
        return own
    return batches


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Give the batches of a loader over and over; ends where it holds none, as a used-up one."""
    has_any = True
    while has_any:
        has_any = False
        for batch in batches:
            has_any = True
            yield batch


def halved(batch: Any) -> Any:
    """Return half of a batch; None where it has no tensor, or does not halve.

    Its items lie in the first dimension of its tensors, as DataLoaders stack them; what has
    another length is none of them.
    """
    size = next((len(each) for each in trees.leaves(batch) if each.dim()), 0)
    half = halve_batch(size, pieces=1)
    return half and trees.mapped(
        lambda each: each[:half] if each.dim() and len(each) == size else each, batch
    )
