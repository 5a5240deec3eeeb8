"""The control plane: what the ranks tell each other through the store.

Never through a process group: ranks that are out of step there exchange data silently, or hang.
"""

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store


# Rank 0 may spend one time-out in the case itself and one on silent ranks; one is to spare.
TIMEOUTS_FOR_RANK_0 = 3


class Control:
    """Exchanges small JSON values between all ranks, one named round at a time.

    Args:
        store: The key-value store all ranks see.
        rank: This rank.
        world_size: Number of ranks.
        timeout_s: How long rank 0 waits for the slowest rank, however many are silent.
    """

    def __init__(self, store: "Store", rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._timeout_s = timeout_s

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Give this rank's value, return every rank's, in the order of ranks.

        Rank 0 alone decides who was there: it collects until the time-out and publishes the list,
        so all ranks see the same one. A rank that did not answer stands as None.

        Args:
            name: Unique in the session; the ranks that mean the same exchange name it alike.
            value: JSON-serialisable, not None, a few KiB at most.

        Raises:
            RuntimeError: Rank 0 published no list in time.
        """
        if self.world_size == 1:
            return [value]
        self._store.set(f"{name}/{self.rank}", json.dumps(value))
        if self.rank == 0:
            deadline = time.monotonic() + self._timeout_s
            values = [self._get(f"{name}/{rank}", deadline) for rank in range(self.world_size)]
            self._store.set(f"{name}/all", json.dumps(values))
            return values
        patience_s = self._timeout_s * TIMEOUTS_FOR_RANK_0
        values = self._get(f"{name}/all", time.monotonic() + patience_s)
        if values is None:
            raise RuntimeError(
                f"rank 0 did not answer rank {self.rank} in exchange {name!r} within "
                f"{patience_s:g} s; see rank 0's log, or give the ranks a longer time-out"
            )
        return list(values)

    def part(self) -> None:
        """Return on all ranks at once, when each is here; on rank 0, which may be the store, last.

        Raises:
            RuntimeError: Rank 0 did not come in time.
        """
        there = self.exchange("leaving", "here")
        if self.rank > 0:
            self._store.set(f"left/{self.rank}", json.dumps("left"))
            return
        deadline = time.monotonic() + self._timeout_s
        for rank in (rank for rank, given in enumerate(there) if rank > 0 and given):
            self._get(f"left/{rank}", deadline)

    def _get(self, key: str, deadline: float) -> Any:
        left_ms = int((deadline - time.monotonic()) * 1e3)
        try:
            if left_ms > 0:  # to a store, zero means no limit
                self._store.wait([key], timedelta(milliseconds=left_ms))
            elif not self._store.check([key]):
                return None
        except RuntimeError:  # DistStoreError: the wait timed out
            return None
        return json.loads(self._store.get(key))
