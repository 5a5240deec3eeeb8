"""The control plane: what the ranks tell each other through the store.

Never through a process group: ranks that are out of step there exchange data silently, or hang.
In every exchange each rank gives rank 0 one value, rank 0 concludes, and all read its conclusion.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from lockstep.core.errors import AgreedError, OtherRankError, RankError
from lockstep.core.formats import listed
from lockstep.core.processes import hostname

if TYPE_CHECKING:
    from torch.distributed import Store

# Between cases the others wait for rank 0 this many time-outs: it may be late by one, wait for
# silent ranks for another, and the third is a margin.
TIMEOUTS_FOR_RANK_0 = 3
# Once a case must be over, rank 0 has this long to say who was there.
VERDICT_S = 1.0


class LostError(RuntimeError):
    """Rank 0 or the store is gone: nothing more can be agreed on."""


class Waits(Enum):
    """At which stage of a case ranks exchange, which says how long they wait for each other.

    IN_BODY: while the case's own code runs. Rank 0 waits for one time-out, the others for rank 0.
    AFTER_PHASE: after set-up or call. A rank may come late by the time-out of a collective, so all
        wait until the case must be over.
    AFTER_CASE: as the case is left. Rank 0 must come in time, but may then write for long.

    Between cases the stage does not matter, for there is no deadline.
    """

    IN_BODY = auto()
    AFTER_PHASE = auto()
    AFTER_CASE = auto()


@dataclass(frozen=True)
class Limits:
    """Until when the ranks wait in one exchange, in seconds of this rank's monotonic clock.

    Attributes:
        deadline: When the case that runs must be over; None between cases.
        timeout_s: How long rank 0 waits for the slowest rank between cases.
        waits: How long they wait while a case runs.
    """

    deadline: float | None
    timeout_s: float
    waits: Waits

    def of_rank_0(self) -> float:
        """Return until when rank 0 collects."""
        now = time.monotonic()
        if self.deadline is None:
            return now + self.timeout_s
        if self.waits is Waits.IN_BODY:
            return min(self.deadline - VERDICT_S / 2, now + self.timeout_s)
        return max(self.deadline, now + VERDICT_S / 2)

    def of_arrival(self) -> float | None:
        """Return until when rank 0 must have come; None where only its conclusion counts.

        If rank 0 fails in the body of a case, it skips this exchange and waits at the end of the
        phase. The others then give up as soon as rank 0 itself would have, and so reach the end of
        the phase in time.
        """
        if self.deadline is None or self.waits is Waits.AFTER_PHASE:
            return None
        if self.waits is Waits.AFTER_CASE:
            return self.deadline + VERDICT_S
        return self.of_rank_0()

    def of_others(self) -> float:
        """Return until when the others wait for rank 0's conclusion."""
        patience_s = self.timeout_s * TIMEOUTS_FOR_RANK_0
        now = time.monotonic()
        if self.deadline is None:
            return now + patience_s
        if self.waits is Waits.IN_BODY:
            return min(self.deadline, now + patience_s)
        end = self.deadline + VERDICT_S
        return end if self.waits is Waits.AFTER_PHASE else max(end, now) + patience_s


class Control:
    """Exchanges small JSON values between all ranks, one named exchange at a time.

    Args:
        store: The key-value store all ranks see.
        rank: This rank.
        world_size: Number of ranks.
        timeout_s: How long rank 0 waits for the slowest rank, however many are silent.

    Attributes:
        deadline: When the case that runs must be over, on this rank's monotonic clock in seconds;
            None between cases. All ranks leave the exchange that begins a case at the same time,
            so each may count from its own clock.
        bounded: Makes the context that each exchange between cases runs in, which ends a rank that
            stays too long; within a case the watchdog of the case does that.
    """

    def __init__(self, store: "Store", rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.deadline: float | None = None
        self.bounded: Callable[[], AbstractContextManager[None]] = nullcontext
        self._timeout_s = timeout_s
        self._uses: Counter[str] = Counter()
        # Ranks that were silent in the latest exchange, as rank 0 saw it, or rank 0 itself.
        self._silent: set[int] = set()
        # The latest exchange whose conclusion this rank has; empty before the first.
        self._concluded = ""

    def settle(
        self,
        name: str,
        value: Any,
        judge: Callable[[list[Any]], Any],
        waits: Waits = Waits.IN_BODY,
    ) -> Any:
        """Give rank 0 this rank's value, and return what it concludes from the values of all.

        Rank 0 alone decides who was there: it collects until the time-out, or the end of the case
        that runs. Ranks other than 0 read the conclusion and nothing else, so that what they read
        does not grow with their number. A value of an earlier exchange of the same name does not
        count as an answer.

        Args:
            name: Equal on all ranks; a name may be used again.
            value: JSON-serialisable, not None, a few KiB at most.
            judge: Gets every rank's value in the order of ranks, None for a silent one, on rank 0;
                returns what JSON can hold.
            waits: How long the ranks wait while a case runs.

        Raises:
            LostError: Rank 0 published no conclusion in time, or the store is gone.
        """
        if self.world_size == 1:
            return judge([value])
        with self.bounded() if self.deadline is None else nullcontext():
            return self._settle(name, value, judge, waits)

    def settle_all(self, name: str, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        """Return rank 0's conclusion, as `settle` does, where every rank gave a value.

        Raises:
            LostError: As `settle` does.
            OtherRankError: A rank did not answer.
        """
        settled = self.settle(name, value, lambda given: None if None in given else judge(given))
        if self._silent:
            silent = sorted(self._silent)
            raise OtherRankError(f"rank {listed(silent)} did not answer in {name!r}", *silent)
        return settled

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value on every rank, None for a silent one; raises as `settle` does.

        For what is exchanged once in a launch: what each rank reads grows with their number.
        """
        return list(self.settle(name, value, list))

    def exchange_all(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value on every rank; raises as `settle_all` does."""
        return list(self.settle_all(name, value, list))

    def left_s(self) -> float | None:
        """Return the seconds that the case that runs still has; None between cases."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def part(self, patience_s: float = 0.0) -> list[int]:
        """Wait until all ranks are here, and return those that did not come.

        Rank 0, whose process may hold the store, returns last. A rank that was silent just before
        is not waited for again. A rank waits `patience_s` for rank 0 at least, rank 0 a third.

        Raises:
            LostError: Rank 0 did not come in time, or the store is gone.
        """
        if not self._silent and self.world_size > 1:
            # Hooks that run on rank 0 alone when a session ends may take longer than an exchange.
            self._timeout_s = max(self._timeout_s, patience_s / TIMEOUTS_FOR_RANK_0)
            self._settle("leaving", "here", lambda _: "all", Waits.IN_BODY)
        with self._naming_a_lost_store():
            if self.rank > 0:
                self.store.set(f"left/{self.rank}", "")
            elif others := set(range(1, self.world_size)) - self._silent:
                keys = [f"left/{rank}" for rank in sorted(others)]
                _are_there(self.store, keys, time.monotonic() + self._timeout_s)
        return sorted(self._silent)

    def _settle(
        self, name: str, value: Any, judge: Callable[[list[Any]], Any], waits: Waits
    ) -> Any:
        self._uses[name] += 1
        name = f"{name}/{self._uses[name]}"
        limits = Limits(self.deadline, self._timeout_s, waits)
        with self._naming_a_lost_store():
            self.store.set(f"{name}/{self.rank}", json.dumps(value))
            if self.rank > 0:
                self._forget(str(self.rank))  # now, for rank 0 waits for other ranks, too
                silent, settled = self._await_conclusion(name, limits)
                self._silent, self._concluded = set(silent), name
                return settled
            values = self._collect(name, limits.of_rank_0())
            self._silent = {rank for rank, given in enumerate(values) if given is None}
        conclusion = json.dumps([sorted(self._silent), judge(values)])
        with self._naming_a_lost_store():
            self.store.set(f"{name}/all", conclusion)
            if not self._silent:  # every rank has read what was concluded before
                self._forget("0", "all")
        self._concluded = name
        return json.loads(conclusion)[1]

    def _forget(self, *ends: str) -> None:
        """Delete keys of the exchange before, or the store would grow with every case."""
        if self._concluded:
            for end in ends:
                self.store.delete_key(f"{self._concluded}/{end}")

    def _collect(self, name: str, end: float) -> list[Any]:
        """Return what the ranks gave until then; None for those that gave nothing."""
        keys = [f"{name}/{rank}" for rank in range(self.world_size)]
        if not _are_there(self.store, keys, end):
            keys = [key if self.store.check([key]) else "" for key in keys]
        given = iter(self.store.multi_get([key for key in keys if key]))
        return [json.loads(next(given)) if key else None for key in keys]

    def _await_conclusion(self, name: str, limits: Limits) -> tuple[list[int], Any]:
        """Return which ranks were silent, and what rank 0 concludes."""
        begun = time.monotonic()
        arrival = limits.of_arrival()
        if (arrival is not None and not _are_there(self.store, [f"{name}/0"], arrival)) or (
            not _are_there(self.store, [f"{name}/all"], limits.of_others())
        ):
            self._silent = {0}
            waited_s = time.monotonic() - begun
            raise LostError(
                f"rank {self.rank} on {hostname()}: rank 0 did not answer within {waited_s:.1f} s "
                f"in exchange {name!r}; see rank 0's log, or give the ranks a longer time-out"
            )
        silent, settled = json.loads(self.store.get(f"{name}/all"))
        return silent, settled

    @contextmanager
    def _naming_a_lost_store(self) -> Iterator[None]:
        if self.world_size == 1:
            yield
            return
        from torch.distributed import DistNetworkError

        try:
            yield
        except DistNetworkError as error:
            reason = str(error).partition("\n")[0]
            raise LostError(
                f"rank {self.rank} on {hostname()} lost the store ({reason})"
            ) from error


def _are_there(store: "Store", keys: list[str], end: float) -> bool:
    """Return whether all keys were there before a moment of the monotonic clock."""
    from torch.distributed import DistStoreError

    left_ms = max(1, int((end - time.monotonic()) * 1e3))  # to a store, zero means no limit
    try:
        store.wait(keys, timedelta(milliseconds=left_ms))
    except DistStoreError:
        return False
    return True


def refuse_any(control: Control, problem: str) -> None:
    """Refuse on all ranks what any of them cannot do.

    `problem` is this rank's, as a sentence; empty where it has none.

    Raises:
        AgreedError: The first problem, with its rank and host where the ranks differ in it.
        RuntimeError: A rank did not answer.
    """
    there = control.exchange_all("problems", [problem, hostname()])
    if all(said == there[0][0] for said, _ in there):
        if problem:
            raise AgreedError(problem)
        return
    rank, (said, host) = next((rank, given) for rank, given in enumerate(there) if given[0])
    raise AgreedError(
        f"rank {rank} on {host}: {said}; give every rank the same files and options", rank
    )


def refuse_silent(answers: Sequence[object], words: str) -> None:
    """Refuse to go on without the ranks that gave no answer; `words` says what these did not do.

    Raises:
        RankError: A rank gave none.
    """
    ranks = [rank for rank, given in enumerate(answers) if given is None]
    if ranks:
        raise RankError(f"rank {listed(ranks)} of {len(answers)} {words}", *ranks)
