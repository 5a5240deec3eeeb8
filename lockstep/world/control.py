"""The control plane: what the ranks tell each other through the store.

Never through a process group: ranks that are out of step there exchange data silently, or hang.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lockstep.vocabulary.errors import RankError
from lockstep.vocabulary.host import hostname

if TYPE_CHECKING:
    from torch.distributed import Store

# Outside a case, rank 0 may spend one time-out elsewhere and one on silent ranks; one is to spare.
TIMEOUTS_FOR_RANK_0 = 3
# Once a case must be over, rank 0 has this long to say who was there.
VERDICT_S = 1.0


class LostError(RuntimeError):
    """Rank 0 or the store is gone: nothing more can be agreed on."""


class Control:
    """Exchanges small JSON values between all ranks, one named round at a time.

    Args:
        store: The key-value store all ranks see.
        rank: This rank.
        world_size: Number of ranks.
        timeout_s: How long rank 0 waits for the slowest rank, however many are silent.

    Attributes:
        deadline: When the case that runs must be over, on this rank's monotonic clock in seconds;
            None between cases. All ranks leave the exchange that begins a case together.
        bounded: What an exchange between cases runs in, each in one of its own; a case that runs
            has a bound already.
    """

    def __init__(self, store: "Store", rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.deadline: float | None = None
        self.bounded: Callable[[], AbstractContextManager[None]] = nullcontext
        self._timeout_s = timeout_s
        self._uses: Counter[str] = Counter()
        # In the latest exchange, as all ranks were told; rank 0 where it told nothing.
        self._silent: set[int] = set()

    def exchange(self, name: str, value: Any, *, is_verdict: bool = False) -> list[Any]:
        """Give this rank's value, return every rank's, in the order of ranks.

        Rank 0 alone decides who was there: it collects until the time-out, or the end of the case
        that runs, and publishes the list, so all ranks see the same one. A rank that did not
        answer stands as None. What was said in an earlier exchange of the same name is no answer.

        Args:
            name: The ranks that mean the same exchange name it alike, and use it equally often.
            value: JSON-serialisable, not None, a few KiB at most.
            is_verdict: Wait for all until the case must be over: the time-out is what a phase of
                the case may have waited for another rank before.

        Raises:
            LostError: Rank 0 published no list in time, or the store is gone.
        """
        if self.world_size == 1:
            return [value]
        with self.bounded() if self.deadline is None else nullcontext():
            return self._exchange(name, value, is_verdict)

    def _exchange(self, name: str, value: Any, is_verdict: bool) -> list[Any]:
        self._uses[name] += 1
        name = f"{name}/{self._uses[name]}"
        with self._naming_a_lost_store():
            self.store.set(f"{name}/{self.rank}", json.dumps(value))
            if self.rank == 0:
                values = self._collect(name, self._end_of_rank_0(is_verdict))
            else:
                values = self._await_list(name, is_verdict)
        self._silent = {rank for rank, given in enumerate(values) if given is None}
        return values

    def exchange_all(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value, as `exchange` does.

        Raises:
            LostError: As `exchange` does.
            RuntimeError: A rank did not answer.
        """
        values = self.exchange(name, value)
        silent = [rank for rank, given in enumerate(values) if given is None]
        if silent:
            named = ", ".join(map(str, silent[:8]))
            raise RankError(f"rank {named} did not answer in {name!r}", *silent)
        return values

    def _end_of_rank_0(self, is_verdict: bool) -> float:
        """Return until when rank 0 collects, on its monotonic clock."""
        now = time.monotonic()
        if self.deadline is None:
            return now + self._timeout_s
        if is_verdict:
            return max(self.deadline, now + VERDICT_S / 2)
        return min(self.deadline - VERDICT_S / 2, now + self._timeout_s)

    def _end_of_others(self, is_verdict: bool) -> float:
        """Return until when the others wait for rank 0, on their monotonic clocks."""
        end = time.monotonic() + self._timeout_s * TIMEOUTS_FOR_RANK_0
        if self.deadline is None:
            return end
        return self.deadline + VERDICT_S if is_verdict else min(self.deadline, end)

    def _collect(self, name: str, end: float) -> list[Any]:
        """Return what the ranks gave until then, and tell them."""
        keys = [f"{name}/{rank}" for rank in range(self.world_size)]
        if not self._wait(keys, end):
            keys = [key if self.store.check([key]) else "" for key in keys]
        given = iter(self.store.multi_get([key for key in keys if key]))
        values = [json.loads(next(given)) if key else None for key in keys]
        self.store.set(f"{name}/all", json.dumps(values))
        return values

    def _await_list(self, name: str, is_verdict: bool) -> list[Any]:
        begun, end = time.monotonic(), self._end_of_others(is_verdict)
        # Within a case rank 0 may have failed on its way here, and be at the verdict already: it is
        # waited for as it waits for the others, or they would come too late to that verdict.
        is_alike = self.deadline is not None and not is_verdict
        if (is_alike and not self._wait([f"{name}/0"], self._end_of_rank_0(is_verdict))) or (
            not self._wait([f"{name}/all"], end)
        ):
            self._silent = {0}
            raise LostError(
                f"{self._me()}: rank 0 did not answer within {time.monotonic() - begun:.1f} s in "
                f"exchange {name!r}; see rank 0's log, or give the ranks a longer time-out"
            )
        return list(json.loads(self.store.get(f"{name}/all")))

    def left_s(self) -> float | None:
        """Return the seconds that the case that runs still has; None between cases."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def part(self, patience_s: float = 0.0) -> list[int]:
        """Return on all ranks at once, when each is here; on rank 0, which may be the store, last.

        Where a rank was silent just before, nobody waits for it again.

        Args:
            patience_s: How long a rank waits for rank 0 at least, and rank 0 a third of it.

        Returns:
            The ranks that did not come.

        Raises:
            LostError: Rank 0 did not come in time, or the store is gone.
        """
        if not self._silent and self.world_size > 1:
            # What runs as a session ends, on one rank, takes its time where nothing is measured.
            self._timeout_s = max(self._timeout_s, patience_s / TIMEOUTS_FOR_RANK_0)
            self._exchange("leaving", "here", is_verdict=False)
        with self._naming_a_lost_store():
            if self.rank > 0:
                self.store.set(f"left/{self.rank}", "")
                return sorted(self._silent)
            given = {rank: f"left/{rank}" for rank in range(1, self.world_size)}
            if left := [key for rank, key in given.items() if rank not in self._silent]:
                self._wait(left, time.monotonic() + self._timeout_s)
        return sorted(self._silent)

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
            raise LostError(f"{self._me()} lost the store ({reason})") from error

    def _wait(self, keys: list[str], end: float) -> bool:
        """Return whether all keys were there before a moment of the monotonic clock."""
        from torch.distributed import DistStoreError

        left_ms = max(1, int((end - time.monotonic()) * 1e3))  # to a store, zero means no limit
        try:
            self.store.wait(keys, timedelta(milliseconds=left_ms))
        except DistStoreError:
            return False
        return True

    def _me(self) -> str:
        return f"rank {self.rank} on {hostname()}"
