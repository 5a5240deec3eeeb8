"""How often the ranks meet in a case, and how many bytes each reads: simulated ranks, a real store.

Threads stand for ranks. Each goes through the exchanges of training cases with the values that a
case of the size `cluster` has; the store counts what it hands to each of them.
"""

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from torch.distributed import Store

    from lockstep.launch.session import LaunchSession

WORLD_SIZES = (8, 64, 256)
NUM_CASES = 2
TIMEOUT_S = 120.0


class CountingStore:
    """A store that counts the bytes it hands out.

    Args:
        store: The real one.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store
        self.bytes_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """Return a value, and count it."""
        value = self._store.get(key)
        self.bytes_read += len(value)
        return bytes(value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return values, and count them."""
        values = self._store.multi_get(keys)
        self.bytes_read += sum(map(len, values))
        return list(values)


@dataclass(frozen=True)
class Counted:
    """What the ranks of one world size read in one case.

    Attributes:
        world_size: Ranks.
        num_exchanges: How often they met.
        bytes_of_rank_0: What rank 0 read.
        bytes_of_another: What the rank that read most of the others did.
        bytes_of_all: What all ranks read together.
    """

    world_size: int
    num_exchanges: float
    bytes_of_rank_0: float
    bytes_of_another: float
    bytes_of_all: float


def count(world_size: int) -> Counted:
    """Go through the cases with so many ranks."""
    from torch.distributed import TCPStore

    _allow_descriptors(4 * world_size)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [
        CountingStore(TCPStore("127.0.0.1", server.port, wait_for_workers=False))
        for _ in range(world_size)
    ]
    with _threads_as_ranks(), ThreadPoolExecutor(world_size) as pool:
        ranks = [_cases(rank, store, world_size) for rank, store in enumerate(stores)]
        list(pool.map(_first, ranks))
        before = [store.bytes_read for store in stores]
        met = sum(ranks[0].control._uses.values())
        list(pool.map(_further, ranks))
        met = sum(ranks[0].control._uses.values()) - met
    read = [(store.bytes_read - was) / NUM_CASES for store, was in zip(stores, before, strict=True)]
    return Counted(world_size, met / NUM_CASES, read[0], max(read[1:]), sum(read))


def _first(cases: "LaunchSession") -> None:
    cases.begin("case 0")
    _case(cases, 0)


def _further(cases: "LaunchSession") -> None:
    for number in range(1, NUM_CASES + 1):
        cases.begin(f"case {number}")
        _case(cases, number)


def _case(cases: "LaunchSession", number: int) -> None:
    """Go through one case as a training case does, without its steps."""
    from lockstep.core import sizes
    from lockstep.launch.verdict import Ended
    from lockstep.measure.harness import Part

    size = sizes.find("cluster")
    seconds = 0.123456789012345
    cases.end_set_up(Ended())
    cases.current.part = Part(
        [seconds] * size.rounds, [seconds] * 8, [], 2**33, {"first": 2.3, "parameters": "0" * 64}
    )
    cases.current.conclude = lambda parts: None
    cases.end_call(Ended(), lambda: ({"kind": "case", "case": f"case {number}"}, ""))
    cases.leave_case(Ended(), f"case {number + 1}")


def _cases(rank: int, store: CountingStore, world_size: int) -> "LaunchSession":
    import torch

    from lockstep.launch.session import LaunchSession
    from lockstep.ranks.control import Control

    settings = SimpleNamespace(
        budget_s=TIMEOUT_S, timeout_s=TIMEOUT_S, journal_path=None, stop_file=None
    )
    place = SimpleNamespace(
        rank=rank,
        world_size=world_size,
        ranks_per_node=8,
        device=torch.device("cpu"),
        backend="gloo",
        control=Control(store, rank, world_size, TIMEOUT_S),  # type: ignore[arg-type]
    )
    host = {"host": "node0001.cluster", "device": "cuda:0"}
    launch = LaunchSession(
        settings,  # type: ignore[arg-type]
        place,  # type: ignore[arg-type]
        mock.Mock(),
        mock.Mock(),
        provenance={"ranks": [host] * world_size},
    )
    launch.control.bounded = nullcontext
    return launch


@contextmanager
def _threads_as_ranks() -> Iterator[None]:
    """Leave out what belongs to a process: its state, its garbage, its process group."""
    from lockstep.launch import session
    from lockstep.measure import state

    nothing = mock.Mock(left_behind=list)
    with (
        mock.patch.multiple(session, gc=mock.Mock(), memory=mock.Mock(free_bytes=_free_bytes)),
        mock.patch.object(session.world, "num_collectives", lambda: 12345),
        mock.patch.object(state, "State", lambda is_first: nothing),
    ):
        yield


def _free_bytes(*_: object) -> int:
    return 2**36


def _allow_descriptors(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
