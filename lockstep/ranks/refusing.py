"""What all ranks refuse together: where one alone refused, the others would wait for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.core.errors import AgreedError, OtherRankError, RankError
from lockstep.core.formats import listed
from lockstep.core.processes import hostname

if TYPE_CHECKING:
    from lockstep.ranks.control import Control
    from lockstep.ranks.process_group import World


def before_cases(control: "Control", problem: str) -> None:
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


def silent(answers: Sequence[object], words: str) -> None:
    """Refuse to go on without the ranks that gave no answer; `words` says what these did not do.

    Raises:
        RankError: A rank gave none.
    """
    ranks = [rank for rank, given in enumerate(answers) if given is None]
    if ranks:
        raise RankError(f"rank {listed(ranks)} of {len(answers)} {words}", *ranks)


def in_case(world: "World", hosts: Sequence[str], problem: str) -> None:
    """Refuse on all ranks what one of them cannot measure; a collective call.

    Args:
        world: The ranks.
        hosts: Where each of them is.
        problem: Why this rank cannot; empty where it can.

    Raises:
        ValueError: This rank cannot.
        OtherRankError: Another one cannot.
    """
    problems = [problem] * world.world_size
    if world.world_size > 1:
        from torch import distributed

        distributed.all_gather_object(problems, problem)
    if problem:
        raise ValueError(problem)
    for rank, other in enumerate(problems):
        if other:
            raise OtherRankError(f"rank {rank} on {hosts[rank]}: {other}", rank)
