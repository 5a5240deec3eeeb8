"""How well a job used what it was given, and what to ask for next time: facts, no sentences."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lockstep.slurm.scheduler import ENDED
from lockstep.slurm.status import accounting
from lockstep.slurm.status.causes import NEAR

# Under so much of what was asked for, less would have done; over NEAR, more may be needed.
AMPLE = 0.5
# What is suggested is larger than what was used by so much.
MARGIN = 1.25
# Requests under these are not worth a change.
SMALL_BYTES = 2 * 1024**3
SMALL_S = 600


@dataclass(frozen=True)
class Hint:
    """What the next job of this kind might ask for.

    Attributes:
        kind: `memory_ample`, `memory_near` its limit, `time_ample`, `time_near`, `cpus_idle`.
        amount: So much would do, with a margin: bytes a node, as sbatch's --mem has it, seconds or
            CPUs; of what is near its limit so much would be safer.
    """

    kind: Literal["memory_ample", "memory_near", "time_ample", "time_near", "cpus_idle"]
    amount: int


def of_jobs(job_ids: list[str]) -> dict[str, accounting.Account]:
    """Return what sacct knows of jobs; of an array, of each element.

    Raises:
        RuntimeError: sacct fails.
    """
    return accounting.ask(job_ids)


def lately(user: str, hours: float) -> dict[str, accounting.Account]:
    """Return a user's jobs that ended within the last hours.

    Raises:
        RuntimeError: sacct fails.
    """
    since = f"--starttime=now-{math.ceil(hours * 60)}minutes"
    # Without states sacct leaves out what was cancelled before it might have begun.
    states = f"--state={','.join(sorted(ENDED))}"
    known = accounting.matching(f"--user={user}", "--allocations", since, "--endtime=now", states)
    return {job_id: one for job_id, one in known.items() if accounting.has_ended(one)}


def hints(account: Mapping[str, Any]) -> list[Hint]:
    """Return what the next job might ask for; less only where this one and its steps ended well."""
    states = (account["state"], *(step["state"] for step in account["bad_steps"]))
    if "OUT_OF_MEMORY" in states:
        return [*_of_memory(account, was_enough=False)]
    if account["state"] not in ("COMPLETED", "TIMEOUT"):
        return []
    found = [*_of_memory(account, was_enough=True), *_of_time(account), *_of_cpus(account)]
    has_ended_well = states == ("COMPLETED",)
    return [hint for hint in found if has_ended_well or hint.kind in ("memory_near", "time_near")]


def _of_memory(account: Mapping[str, Any], *, was_enough: bool) -> Iterator[Hint]:
    used, requested = account["node_bytes"], account["requested_bytes"]
    if used is None or not requested:
        return
    of_node = requested / (account["num_nodes"] or 1)
    if not was_enough or used >= NEAR * of_node:
        yield Hint("memory_near", math.ceil(MARGIN * max(used, of_node)))
    elif used < AMPLE * of_node and requested > SMALL_BYTES:
        yield Hint("memory_ample", math.ceil(MARGIN * used))


def _of_time(account: Mapping[str, Any]) -> Iterator[Hint]:
    share, elapsed_s = account["time_efficiency"], account["elapsed_s"]
    if share is None:
        return
    if share >= NEAR:
        yield Hint("time_near", math.ceil(MARGIN * elapsed_s))
    elif share < AMPLE and account["limit_s"] > SMALL_S:
        yield Hint("time_ample", max(SMALL_S, math.ceil(MARGIN * elapsed_s)))


def _of_cpus(account: Mapping[str, Any]) -> Iterator[Hint]:
    share, cpus = account["cpu_efficiency"], account["alloc_cpus"]
    if share is None or account["gpu_hours"] or cpus < 2:  # of GPU jobs CPUs wait, by rights
        return
    least = max(account["num_nodes"] or 1, account["num_tasks"] or 1)  # one each
    enough = max(least, math.ceil(MARGIN * share * cpus))
    if share < AMPLE and enough < cpus:
        yield Hint("cpus_idle", enough)
