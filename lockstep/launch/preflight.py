"""What the ranks settle before the first case: the same cases, known hosts, results that pool.

Every refusal is raised on all ranks alike: AgreedError for what was asked, RuntimeError for what
the machine did.

The links that NCCL uses in a launch: its own word, from the log of an untimed warm-up.

NCCL reads NCCL_DEBUG once, as it starts. Told INFO of its start alone, it writes as it connects and
never in a collective, so what is measured is not slower. Who asks for more than warnings keeps what
they asked for; who asks for warnings finds those of the start on the terminal, later ones in the
file beside the journal.
"""

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.core import flags, journal
from lockstep.core.errors import AgreedError, RankError
from lockstep.core.flags import Flag, flag
from lockstep.core.processes import steers_torch
from lockstep.core.record import KEY, MAY_BE_UNKNOWN, pooling_facts
from lockstep.machine import nccl_log, network, provenance
from lockstep.machine.nccl_log import Link, NcclLog
from lockstep.ranks.control import Control
from lockstep.ranks.process_group import World

if TYPE_CHECKING:
    from lockstep.launch.options import Settings


# More than ranks may be apart in starting to answer; dates of results and of Slurm then disagree.
MAX_CLOCK_OFFSET_S = 60.0


def compare(control: Control, case_ids: Sequence[str], settings: "Settings") -> None:
    """Refuse ranks that run other software, collected other cases, or were given other options.

    Raises:
        AgreedError: The first difference, and the rank that has it.
        RuntimeError: A rank did not answer, or runs in another image or other software.
    """
    mine = {"digest": _digest(case_ids, settings), "software": provenance.rank_software()}
    there = control.exchange_all("collected", mine)
    for rank, found in enumerate(there):
        _refuse_software(rank, found["software"], there[0]["software"])
    if all(found["digest"] == there[0]["digest"] for found in there):
        return
    # Only now the long lists, to name what differs.
    lists = control.exchange_all("collected/cases", [list(case_ids), _comparable(settings)])
    for rank, (ids, options) in enumerate(lists):
        _refuse_difference(rank, ids, lists[0][0], options, lists[0][1])


def _refuse_software(rank: int, own: Mapping[str, Any], of_rank_0: Mapping[str, Any]) -> None:
    for name in (name for name in of_rank_0 if own.get(name) != of_rank_0[name]):
        raise RankError(
            f"rank {rank} runs with {name} {own.get(name)}, rank 0 with {of_rank_0[name]}; start "
            "every rank from the same image and checkout",
            rank,
        )


def _digest(case_ids: Sequence[str], settings: "Settings") -> str:
    content = json.dumps([list(case_ids), _comparable(settings)], default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _comparable(settings: "Settings") -> dict[str, Any]:
    """Return the settings that must be equal; paths may differ where hosts mount them apart."""
    paths = ("journal_path", "result_path")
    facts = asdict(settings) | {name: getattr(settings, name) is not None for name in paths}
    return {name: facts[name] for name in facts if name not in ("data_root", "stop_file", "after")}


def refuse_shared_devices(ranks: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two ranks on one GPU, which NCCL cannot serve and no number could be trusted of.

    Raises:
        RuntimeError: Two ranks have the same GPU.
    """
    seen: dict[str, int] = {}
    for rank, facts in enumerate(ranks):
        if (uuid := facts["gpu_uuid"]) and seen.setdefault(uuid, rank) != rank:
            raise RankError(
                f"ranks {seen[uuid]} and {rank} on {facts['host']} share one GPU ({uuid}); start "
                "one rank per GPU",
                *(seen[uuid], rank),
            )


def _refuse_difference(
    rank: int, ids: list[str], ids_0: list[str], options: dict[str, Any], options_0: dict[str, Any]
) -> None:
    if ids != ids_0:
        differing = sorted(set(ids) ^ set(ids_0)) or ["the order of cases"]
        raise AgreedError(
            f"rank {rank} collected other cases than rank 0 ({len(ids)} against {len(ids_0)}), "
            f"the first difference is {differing[0]}; give every rank the same files and options",
            rank,
        )
    for name in (name for name in options_0 if options[name] != options_0[name]):
        raise AgreedError(
            f"rank {rank} has {name} {options[name]}, rank 0 has {options_0[name]}; "
            "give every rank the same options",
            rank,
        )


def gather_unsupported(world: World, control: Control, asked: str) -> dict[str, str]:
    """Return precision -> why the first rank that lacks it cannot measure it; equal on all."""
    from lockstep.measure.step.precision import unsupported_here

    there = control.exchange_all("unsupported", unsupported_here(world.device, asked))
    return {name: reason for rank in reversed(there) for name, reason in rank.items()}


def gather_provenance(
    world: World, control: Control, seed: int, project: Path | None
) -> dict[str, Any]:
    """Return the launch's provenance, every rank's part in it, equal on all ranks.

    Args:
        world: The ranks.
        control: What ranks exchange through.
        seed: Of parameters and data.
        project: The file of an own test or workload, if any.
    """
    own = provenance.rank_facts(world.rank, world.local_rank, world.device)
    ranks = control.exchange_all("provenance", own | {"clock_s": time.time()})
    for rank in ranks:  # all were let go at once by the exchange before
        rank["clock_offset_s"] = round(rank["clock_s"] - ranks[0]["clock_s"], 3)
    ranks = [{name: rank[name] for name in rank if name != "clock_s"} for rank in ranks]
    refuse_shared_devices(ranks)
    # Rank 0's view of the software counts for all; hashing the image once is enough.
    launch = provenance.launch_facts(seed, sys.argv, project) if world.rank == 0 else {}
    launch = control.exchange("software", launch)[0]
    return provenance.launch_provenance(launch, ranks) | {
        "backend": world.backend,
        "threads_per_rank": world.threads_per_rank,
    }


def cores_beside(ranks: Sequence[Mapping[str, Any]], rank: int) -> int:
    """Return how many cores the ranks on one rank's host may run on together."""
    there = (other["cores"] for other in ranks if other["host"] == ranks[rank]["host"])
    return len(set[int]().union(*there))


def launch_flags(facts: dict[str, Any]) -> list[Flag]:
    """Return what is known against any result of a launch from its provenance."""
    flags = []
    for host in sorted({rank["host"] for rank in facts["ranks"]}):
        ranks = [rank for rank in facts["ranks"] if rank["host"] == host]
        cores = cores_beside(ranks, 0)
        threads = sum(rank["num_threads"] for rank in ranks)
        if threads > cores:
            flags.append(flag("oversubscribed", threads=threads, cores=cores))
    if len(facts["device_names"]) > 1:
        flags.append(flag("mixed-devices", devices=list(facts["device_names"])))
    if facts["environment"].get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        flags.append(flag("debug-detail"))
    flags += _log_flag(facts["environment"])
    flags += _dropped_flag(facts.get("dropped_environment", []))
    flags += _clock_flags(facts["ranks"])
    if facts["git_dirty"]:
        flags.append(flag("git-dirty"))
    return sorted(dict.fromkeys(flags), key=str)


def _clock_flags(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Flag]:
    """Yield the hosts whose clocks are off: durations are not, for each rank times its own."""
    for rank in ranks:
        if abs(rank["clock_offset_s"]) > MAX_CLOCK_OFFSET_S:
            yield flag("clock-off", host=rank["host"], offset_s=rank["clock_offset_s"])


def _dropped_flag(names: Sequence[str]) -> Iterator[Flag]:
    """Yield the settings of torch that a job's script made and the image did not get."""
    dropped = sorted(filter(steers_torch, names))
    if dropped:
        yield flag("dropped-environment", names=dropped)


def _log_flag(environ: Mapping[str, str]) -> Iterator[Flag]:
    """Yield what is to be said of NCCL's log, where each collective writes into it.

    Without a choice of its own NCCL's INFO tells of starting alone ("Environment Variables", NCCL
    user guide), and TRACE of every call whatever is chosen.
    """
    level = environ.get("NCCL_DEBUG", "").upper()
    chosen = environ.get("NCCL_DEBUG_SUBSYS", "")
    told = set(chosen.upper().split(",")) & {"ALL", "COLL"}
    if level == "TRACE" or (level == "INFO" and told):
        text = f"NCCL_DEBUG={level}" + (f" NCCL_DEBUG_SUBSYS={chosen}" if told else "")
        yield flag("nccl-log", settings=text)


def measured_with(world: World, settings: "Settings") -> dict[str, Any]:
    """Return what must be equal before a session goes on with another's journal."""
    return {
        "world_size": world.world_size,
        "num_nodes": world.num_nodes,
        "threads_per_rank": world.threads_per_rank,
        "seed": settings.seed,
        **asdict(settings.size),
    }


@dataclass(frozen=True)
class Before:
    """What an earlier session of a launch has left.

    Attributes:
        done: Case -> outcome, as `journal.settled` says; `begin` for the one in flight.
        order_seed: Seed of the order of cases; None where it is unknown.
    """

    done: dict[str, str] = field(default_factory=dict)
    order_seed: int | None = None


def order_seed(control: Control, before: Before, chosen: int | None) -> int:
    """Return the seed of the order of cases: of the session resumed, as chosen, or drawn by rank 0.

    Raises:
        RuntimeError: A rank did not answer.
    """
    drawn: int = control.exchange_all("order", secrets.randbits(32))[0]
    if before.order_seed is not None:
        return before.order_seed
    return drawn if chosen is None else chosen


@dataclass(frozen=True)
class Now:
    """What a session measures with that goes on with an earlier one's journal.

    Attributes:
        facts: What `measured_with` returned.
        provenance: Of this session.
        sources: Case -> digest of what it measures.
    """

    facts: dict[str, Any]
    provenance: dict[str, Any]
    sources: dict[str, str | None]


def done_before(control: Control, path: Path, now: Now) -> Before:
    """Return what the journal to resume holds.

    Rank 0 alone reads: a shared file system may show the others an older file.

    Raises:
        AgreedError: The journal is corrupt, or was measured with something that does not pool.
    """
    answer: dict[str, Any] = {}
    if control.rank == 0:
        try:
            answer = asdict(_resumable(path, now))
        except ValueError as error:
            answer = {"refused": str(error)}
    answer = control.exchange("done", answer)[0]
    if "refused" in answer:
        raise AgreedError(answer["refused"])
    return Before(**answer)


def _resumable(path: Path, now: Now) -> Before:
    done = journal.outcomes(path)
    if case := journal.in_flight(path):
        done[case] = "begin"
    if not done:
        return Before()
    block = journal.rebuild(path)[KEY]
    for name in ("provenance", "measured_with"):
        if not isinstance(block.get(name), dict):
            raise ValueError(
                f"{path}: a launch line has {name} {str(block.get(name))[:80]!r}, which is no "
                "dict; the journal is corrupt, so measure into another folder"
            )
    # What went through JSON holds lists where we have tuples.
    wanted = json.loads(json.dumps(pooling_facts(now.provenance) | now.facts))
    found = pooling_facts(block["provenance"]) | block["measured_with"]
    for name in (name for name in wanted if found.get(name) != wanted[name]):
        if name in MAY_BE_UNKNOWN and None in (found.get(name), wanted[name]):
            continue
        raise ValueError(
            f"{path} was measured with {name} {found.get(name)}, now it is {wanted[name]}; "
            "results that differ in it are not pooled: measure into another folder"
        )
    _refuse_other_source(path, now.sources)
    settled = journal.settled(path)
    left = {case: kind for case, kind in done.items() if kind == "begin"}
    return Before(settled | left, block.get("order_seed"))


def _refuse_other_source(path: Path, sources: Mapping[str, str | None]) -> None:
    """Refuse to go on where what a case measures was edited since; one name would be two models."""
    for case, entry in journal.measured(path).items():
        record = entry.get("extra_info", {}).get(KEY, {})
        then, now = record.get("workload_sha256"), sources.get(case)
        if then and now and then != now:
            raise ValueError(
                f"{path} holds {case}, measured with another source of workload "
                f"{record.get('workload')} (workload_sha256 {then[:12]}, now {now[:12]}); put the "
                "source back, or measure into another folder"
            )


FOLDER = "nccl"
# A message of several channels, so that all of them connect.
WARM_UP_ITEMS = 2**22
# Levels that tell of failures alone.
QUIET = ("", "VERSION", "WARN")
MAX_LINKS = 4096


@dataclass(frozen=True)
class Transport:
    """What the ranks' logs say together."""

    facts: dict[str, Any] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()


def listen(folder: Path, rank: int, environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Let NCCL write of its start into a file, and return it; call it before NCCL starts.

    Returns:
        None where other logs were asked for, or the file cannot be made.
    """
    asked = environ.get("NCCL_DEBUG", "").upper()
    if asked not in QUIET or "NCCL_DEBUG_FILE" in environ:
        return None
    path = folder / FOLDER / f"rank-{rank}.log"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    except OSError:
        return None
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV,NET,P2P,SHM"
    # NCCL takes % for its own marks (host, process).
    environ["NCCL_DEBUG_FILE"] = str(path).replace("%", "%%")
    return path


def gather(world: World, hosts: Sequence[str], folder: Path | None) -> Transport:
    """Warm NCCL up on all ranks, and return what its logs say; nothing with another back end.

    Every rank must call it.

    Raises:
        RuntimeError: A rank did not answer.
    """
    if world.backend != "nccl" or world.world_size == 1 or folder is None:
        return Transport()
    path = listen(folder, world.rank)
    _warm_up(world)
    return settle(world, hosts, nccl_log.read(path) if path else NcclLog())


def settle(world: World, hosts: Sequence[str], log: NcclLog) -> Transport:
    """Return what the logs of all ranks say, equal on all; the argument is this rank's."""
    for warning in log.warnings:
        sys.stderr.write(f"lockstep: rank {world.rank}: NCCL warns: {warning}\n")
    own = {"log": asdict(log), "fabrics": network.fabrics()}
    settled = world.control.settle_all("transport", own, lambda there: _conclude(there, hosts))
    return Transport(settled["facts"], tuple(map(flags.read, settled["flags"])))


def _conclude(there: Sequence[dict[str, Any]], hosts: Sequence[str]) -> dict[str, Any]:
    """Return facts and flags of all ranks' logs, as JSON holds them."""
    log = nccl_log.merged(_log(each["log"]) for each in there)
    fabrics = sorted({name for each in there for name in each["fabrics"]})
    if not log.links:
        return {"facts": {}, "flags": []}
    found = nccl_log.findings(log, hosts, fabrics)
    return {
        "facts": {
            "nccl_log": log.version,
            "networks": list(log.networks),
            "adapters": list(log.adapters),
            "transports": log.transports,
            "links": [list(asdict(link).values()) for link in log.links[:MAX_LINKS]],
        },
        "flags": [one.to_dict() for one in found],
    }


def _log(given: dict[str, Any]) -> NcclLog:
    """Return a log that went through JSON."""
    links = tuple(Link(**link) for link in given["links"])
    lists = {name: tuple(given[name]) for name in ("networks", "adapters", "warnings", "settings")}
    return NcclLog(given["version"], links=links, **lists)


def _warm_up(world: World) -> None:
    """Let all ranks connect; a failure is left for the first case to name."""
    import torch
    from torch import distributed

    try:
        distributed.all_reduce(torch.zeros(WARM_UP_ITEMS, device=world.device))
        torch.cuda.synchronize(world.device)
    except RuntimeError as error:
        sys.stderr.write(f"lockstep: the warm-up of NCCL failed: {error}\n")
