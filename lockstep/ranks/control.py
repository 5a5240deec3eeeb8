"""The control plane: each rank gives rank 0 a value through the store, and reads its conclusion.

It uses no collectives: in one, ranks that are out of step would silently exchange data, or hang.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.core.errors import AgreedError, OtherRankError, RankError
from lockstep.core.formats import listed
from lockstep.core.processes import hostname

if TYPE_CHECKING:
    from torch.distributed import Store

# Between cases other ranks wait so many time-outs for rank 0: rank 0 may come one time-out late,
# and wait another one for silent ranks; the third is a margin.
TIMEOUTS_FOR_RANK_0 = 3
# Seconds after a case's deadline in which rank 0 concludes which ranks have answered.
VERDICT_S = 1.0


class LostError(RuntimeError):
    """Rank 0 or the store is gone: nothing more can be agreed on."""


class Waits(Enum):
    """The stage of a case in which ranks exchange; it sets how long they wait.

    IN_BODY: in the case's own code, one time-out.
    AFTER_PHASE: after set-up or call, until the case's deadline, since a collective may be late.
    AFTER_CASE: at the case's end, longer: rank 0 must come by the deadline, but may then write.
    """

    IN_BODY = auto()
    AFTER_PHASE = auto()
    AFTER_CASE = auto()


class Limits(NamedTuple):
    """Until when ranks wait in one exchange, in seconds of this rank's monotonic clock."""

    deadline: float | None  # of the running case; None between cases
    timeout_s: float
    waits: Waits

    def end_of_rank_0(self) -> float:
        """Return until when rank 0 collects values."""
        now = time.monotonic()
        if self.deadline is None:
            return now + self.timeout_s
        if self.waits is Waits.IN_BODY:
            return min(self.deadline - VERDICT_S / 2, now + self.timeout_s)
        return max(self.deadline, now + VERDICT_S / 2)

    def end_of_arrival(self) -> float | None:
        """Return until when rank 0 must have come; None if only its conclusion counts.

        A rank 0 that fails in the body of a case skips this exchange: other ranks then give up when
        rank 0 would.
        """
        if self.deadline is None or self.waits is Waits.AFTER_PHASE:
            return None
        if self.waits is Waits.AFTER_CASE:
            return self.deadline + VERDICT_S
        return self.end_of_rank_0()

    def end_of_others(self) -> float:
        """Return until when other ranks wait for rank 0's conclusion."""
        patience_s = self.timeout_s * TIMEOUTS_FOR_RANK_0
        now = time.monotonic()
        if self.deadline is None:
            return now + patience_s
        if self.waits is Waits.IN_BODY:
            return min(self.deadline, now + patience_s)
        end = self.deadline + VERDICT_S
        return end if self.waits is Waits.AFTER_PHASE else max(end, now) + patience_s


class Control:
    """Exchanges small JSON values between all ranks, one named exchange at a time."""

    def __init__(self, store: "Store", rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        # Of the running case, in seconds of this rank's monotonic clock; None between cases. All
        # ranks leave the exchange that begins a case together.
        self.deadline: float | None = None
        # Makes the context that limits each exchange between cases.
        self.bounded: Callable[[], AbstractContextManager[None]] = nullcontext
        self._timeout_s = timeout_s
        self._uses: Counter[str] = Counter()
        self._silent: set[int] = set()  # ranks that were silent in the latest exchange
        self._unused: list[str] = []  # keys of this rank that no rank reads any more
        self._last: list[str] = []  # on rank 0: its keys of the latest exchange

    def settle(
        self, name: str, value: Any, judge: Callable[[list[Any]], Any], waits: Waits = Waits.IN_BODY
    ) -> Any:
        """Give rank 0 this rank's value, and return its conclusion from the values of all.

        Other ranks read only the conclusion, not all values, whose size grows with the ranks.

        Args:
            name: Equal on all ranks; it may be used again.
            value: JSON-serialisable, not None, a few KiB at most.
            judge: Makes the conclusion, a JSON value, on rank 0, from the values in the order of
                ranks; that of a silent rank is None.
            waits: How long the ranks wait while a case runs.

        Raises:
            LostError: Rank 0 published no conclusion in time, or the store is gone.
        """
        if self.world_size == 1:
            return judge([value])
        with self.bounded() if self.deadline is None else nullcontext():
            return self._settle(name, value, judge, waits)

    def settle_all(self, name: str, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        """Return what `settle` does, or raise OtherRankError where a rank did not answer."""
        settled = self.settle(name, value, lambda all_: None if None in all_ else judge(all_))
        if self._silent:
            silent = sorted(self._silent)
            raise OtherRankError(
                f"rank {listed(silent)} did not answer the other ranks in exchange {name!r}",
                *silent,
            )
        return settled

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value, None of a silent rank; the list grows with the ranks."""
        return list(self.settle(name, value, list))

    def exchange_all(self, name: str, value: Any) -> list[Any]:
        return list(self.settle_all(name, value, list))

    def left_s(self) -> float | None:
        """Return the seconds that the case still has; None between cases."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def leave_together(self, patience_s: float = 0.0) -> list[int]:
        """Wait until all ranks are here, and return those that did not come.

        Rank 0, which may hold the store, returns last. A rank that was silent before is not waited
        for again. Others wait `patience_s` for rank 0 at least, and rank 0 a third of that.
        """
        if not self._silent and self.world_size > 1:
            # Hooks of rank 0 at the end of a session may take longer than an exchange.
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
            for key in self._unused:  # now, since all wait here for the last rank
                self.store.delete_key(key)
            self._unused = []
            if self.rank > 0:
                silent, settled = self._await_conclusion(name, limits)
                self._silent, self._unused = set(silent), [f"{name}/{self.rank}"]
                return settled
            values = self._collect(name, limits.end_of_rank_0())
            self._silent = {rank for rank, own in enumerate(values) if own is None}
        conclusion = json.dumps([sorted(self._silent), judge(values)])
        with self._naming_a_lost_store():
            self.store.set(f"{name}/all", conclusion)
        if not self._silent:  # then every rank has read the conclusion before this one
            self._unused = self._last
        self._last = [f"{name}/0", f"{name}/all"]
        return json.loads(conclusion)[1]

    def _collect(self, name: str, end: float) -> list[Any]:
        keys = [f"{name}/{rank}" for rank in range(self.world_size)]
        if not _are_there(self.store, keys, end):
            keys = [key if self.store.check([key]) else "" for key in keys]
        values = iter(self.store.multi_get([key for key in keys if key]))
        return [json.loads(next(values)) if key else None for key in keys]

    def _await_conclusion(self, name: str, limits: Limits) -> tuple[list[int], Any]:
        begun = time.monotonic()
        arrival = limits.end_of_arrival()
        has_come = arrival is None or _are_there(self.store, [f"{name}/0"], arrival)
        if not (has_come and _are_there(self.store, [f"{name}/all"], limits.end_of_others())):
            self._silent = {0}
            waited_s = time.monotonic() - begun
            raise LostError(
                f"rank {self.rank} on {hostname()}: rank 0 did not answer within {waited_s:.1f} s "
                f"in exchange {name!r}; see rank 0's log, or set a longer time-out"
            )
        # One message to the store; `get` would first ask whether the key is there.
        silent, settled = json.loads(self.store.multi_get([f"{name}/all"])[0])
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
            lost = (
                f"rank {self.rank} on {hostname()} lost its connection to the ranks' store "
                f"({reason})"
            )
            raise LostError(lost) from error


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
    """Raise the `problem` of any rank on all ranks; the text is empty on a rank without one."""
    answers = control.exchange_all("problems", [problem, hostname()])
    if all(other == problem for other, _ in answers):
        if problem:
            raise AgreedError(problem)
        return
    rank, (reason, host) = next((rank, own) for rank, own in enumerate(answers) if own[0])
    raise AgreedError(
        f"rank {rank} on {host}: {reason}; give every rank the same files and options", rank
    )


def refuse_silent(answers: Sequence[object], describe: Callable[[str], str]) -> None:
    """Raise an error for ranks whose answer is None; `describe` gets the text that names them."""
    ranks = [rank for rank, answer in enumerate(answers) if answer is None]
    if ranks:
        raise RankError(describe(f"rank {listed(ranks)} of {len(answers)}"), *ranks)
