"""How often the ranks meet in a case, and how many bytes each reads: simulated ranks, a real store.

Threads stand for ranks. Each goes through the exchanges of training cases with the values that a
case of the size `cluster` has; the store counts what it hands to each of them.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
from torch.distributed import TCPStore

from lockstep.core import sizes
from lockstep.launch import session
from lockstep.launch.session import LaunchSession
from lockstep.launch.verdict import Ended
from lockstep.measure import state
from lockstep.measure.harness import Part
from lockstep.ranks.control import Control

NUM_CASES = 2
TIMEOUT_S = 120.0


class CountingStore:
    """A store that counts the bytes it hands out."""

    def __init__(self, store):
        self._store = store
        self.bytes_read = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        value = self._store.get(key)
        self.bytes_read += len(value)
        return value

    def multi_get(self, keys):
        values = self._store.multi_get(keys)
        self.bytes_read += sum(map(len, values))
        return values


def count(world_size: int) -> tuple[float, float, float]:
    """Go through cases with so many ranks, and return what one case costs.

    Returns:
        How often the ranks meet, the bytes that rank 0 reads, and the bytes that the rank reads
        which reads most of the others.
    """
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [
        CountingStore(TCPStore("127.0.0.1", server.port, wait_for_workers=False))
        for _ in range(world_size)
    ]
    with _threads_as_ranks(), ThreadPoolExecutor(world_size) as pool:
        ranks = [_launch(rank, store, world_size) for rank, store in enumerate(stores)]
        list(pool.map(_case, ranks, [0] * world_size))
        before = [store.bytes_read for store in stores]
        met = sum(ranks[0].control._uses.values())
        for number in range(1, NUM_CASES + 1):
            list(pool.map(_case, ranks, [number] * world_size))
        met = sum(ranks[0].control._uses.values()) - met
    read = [(store.bytes_read - was) / NUM_CASES for store, was in zip(stores, before, strict=True)]
    return met / NUM_CASES, read[0], max(read[1:])


def _case(launch: LaunchSession, number: int) -> None:
    """Go through one case as a training case does, without its steps."""
    size = sizes.find("cluster")
    seconds = 0.123456789012345
    launch.begin(f"case {number}")
    launch.end_set_up(Ended())
    launch.current.part = Part(
        [seconds] * size.rounds, [seconds] * 8, [], 2**33, {"first": 2.3, "parameters": "0" * 64}
    )
    launch.current.conclude = lambda parts: None
    launch.end_call(Ended(), lambda: ({"kind": "case", "case": f"case {number}"}, ""))
    launch.leave_case(Ended(), f"case {number + 1}")


def _launch(rank: int, store: CountingStore, world_size: int) -> LaunchSession:
    settings = SimpleNamespace(
        budget_s=TIMEOUT_S, timeout_s=TIMEOUT_S, journal_path=None, stop_file=None
    )
    place = SimpleNamespace(
        rank=rank,
        world_size=world_size,
        ranks_per_node=8,
        device=torch.device("cpu"),
        backend="gloo",
        control=Control(store, rank, world_size, TIMEOUT_S),
    )
    host = {"host": "node0001.cluster", "device": "cuda:0"}
    facts = {"ranks": [host] * world_size}
    launch = LaunchSession(settings, place, mock.Mock(), mock.Mock(), provenance=facts)
    launch.control.bounded = nullcontext
    return launch


@contextmanager
def _threads_as_ranks() -> Iterator[None]:
    """Leave out what belongs to a process: its state, its garbage, its process group."""
    memory = mock.Mock(free_bytes=lambda *_: 2**36)
    with (
        mock.patch.multiple(session, gc=mock.Mock(), memory=memory),
        mock.patch.object(session.world, "num_collectives", lambda: 12345),
        mock.patch.object(state, "State", lambda is_first: mock.Mock(left_behind=list)),
    ):
        yield
