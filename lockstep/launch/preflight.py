"""What the ranks settle before the first case: the same cases, known hosts, results that pool.

Every refusal is raised on all ranks alike: AgreedError for what was asked, RuntimeError for what
the machine did.

Which links NCCL uses is read from its own log of an untimed warm-up. NCCL reads NCCL_DEBUG once, as
it starts. With INFO of its start alone it writes as it connects and never in a collective, so what
is measured is not slower. A user's own NCCL_DEBUG above WARN stays as it is; below that the
warnings of the start go to the terminal, later ones to the file beside the journal.
"""

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
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
    # Paths may differ where hosts mount them apart.
    options = asdict(settings)
    for name in ("data_root", "stop_file", "after"):
        del options[name]
    for name in ("journal_path", "result_path"):
        options[name] = options[name] is not None
    own = [list(case_ids), options]
    digest = hashlib.sha256(json.dumps(own, default=str).encode()).hexdigest()
    software = provenance.rank_software()
    answers = control.exchange_all("collected", {"digest": digest, "software": software})
    for rank, answer in enumerate(answers):
        theirs, of_rank_0 = answer["software"], answers[0]["software"]
        for name in (name for name in of_rank_0 if theirs.get(name) != of_rank_0[name]):
            raise RankError(
                f"rank {rank} runs with {name} {theirs.get(name)}, rank 0 with {of_rank_0[name]}; "
                "start every rank from the same image and checkout",
                rank,
            )
    if all(answer["digest"] == answers[0]["digest"] for answer in answers):
        return
    # Only now the long lists, to name what differs.
    answers = control.exchange_all("collected/cases", own)
    ids_0, options_0 = answers[0]
    for rank, (ids, options) in enumerate(answers):
        if ids != ids_0:
            differing = sorted(set(ids) ^ set(ids_0)) or ["the order of cases"]
            raise AgreedError(
                f"rank {rank} collected other cases than rank 0 ({len(ids)} against {len(ids_0)}), "
                f"the first difference is {differing[0]}; give every rank the same files and "
                "options",
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

    answers = control.exchange_all("unsupported", unsupported_here(world.device, asked))
    return {name: reason for rank in reversed(answers) for name, reason in rank.items()}


def gather_provenance(
    world: World, control: Control, seed: int, project: Path | None
) -> dict[str, Any]:
    """Return the launch's provenance, every rank's part in it, equal on all ranks.

    Args:
        world: The ranks.
        control: What ranks exchange through.
        seed: Of parameters and data.
        project: The file of an own test or workload, if any.

    Raises:
        RankError: Two ranks have the same GPU.
    """
    own = provenance.rank_facts(world.rank, world.local_rank, world.device)
    ranks = control.exchange_all("provenance", own | {"clock_s": time.time()})
    # The exchange before has let all ranks go at once.
    clocks_s = [rank.pop("clock_s") for rank in ranks]
    seen: dict[str, int] = {}
    for rank, facts in enumerate(ranks):
        facts["clock_offset_s"] = round(clocks_s[rank] - clocks_s[0], 3)
        # NCCL cannot serve two ranks of one GPU.
        if (uuid := facts["gpu_uuid"]) and seen.setdefault(uuid, rank) != rank:
            raise RankError(
                f"ranks {seen[uuid]} and {rank} on {facts['host']} share one GPU ({uuid}); start "
                "one rank per GPU",
                *(seen[uuid], rank),
            )
    # Rank 0's view of the software counts for all; hashing the image once is enough.
    launch = provenance.launch_facts(seed, sys.argv, project) if world.rank == 0 else {}
    launch = control.exchange("software", launch)[0]
    return provenance.launch_provenance(launch, ranks) | {
        "backend": world.backend,
        "threads_per_rank": world.threads_per_rank,
    }


def cores_beside(ranks: Sequence[Mapping[str, Any]], rank: int) -> int:
    """Return how many cores the ranks on one rank's host may run on together."""
    cores = (other["cores"] for other in ranks if other["host"] == ranks[rank]["host"])
    return len(set[int]().union(*cores))


def launch_flags(facts: dict[str, Any]) -> list[Flag]:
    """Return what is known against any result of a launch from its provenance."""
    flags = []
    environ = facts["environment"]
    for host in sorted({rank["host"] for rank in facts["ranks"]}):
        ranks = [rank for rank in facts["ranks"] if rank["host"] == host]
        cores = cores_beside(ranks, 0)
        threads = sum(rank["num_threads"] for rank in ranks)
        if threads > cores:
            flags.append(flag("oversubscribed", threads=threads, cores=cores))
    if len(facts["device_names"]) > 1:
        flags.append(flag("mixed-devices", devices=list(facts["device_names"])))
    if environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        flags.append(flag("debug-detail"))
    # Alone, NCCL's INFO writes of its start only, and TRACE of every call ("Environment Variables",
    # NCCL user guide).
    level = environ.get("NCCL_DEBUG", "").upper()
    chosen = environ.get("NCCL_DEBUG_SUBSYS", "")
    has_calls = bool({*chosen.upper().split(",")} & {"ALL", "COLL"})
    if level == "TRACE" or (level == "INFO" and has_calls):
        text = f"NCCL_DEBUG={level}" + (f" NCCL_DEBUG_SUBSYS={chosen}" if has_calls else "")
        flags.append(flag("nccl-log", settings=text))
    if dropped := sorted(filter(steers_torch, facts.get("dropped_environment", []))):
        flags.append(flag("dropped-environment", names=dropped))
    flags += [  # of dates; each rank times its own durations
        flag("clock-off", host=rank["host"], offset_s=rank["clock_offset_s"])
        for rank in facts["ranks"]
        if abs(rank["clock_offset_s"]) > MAX_CLOCK_OFFSET_S
    ]
    if facts["git_dirty"]:
        flags.append(flag("git-dirty"))
    return sorted(dict.fromkeys(flags), key=str)


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


def done_before(
    control: Control,
    path: Path,
    facts: Mapping[str, Any],
    launch: Mapping[str, Any],
    sources: Mapping[str, str | None],
) -> Before:
    """Return what the journal to resume holds.

    Args:
        control: What ranks exchange through.
        path: The journal.
        facts: What `measured_with` returned.
        launch: Provenance of this session.
        sources: Case -> digest of what it measures.

    Rank 0 alone reads: a shared file system may show the others an older file.

    Raises:
        AgreedError: The journal is corrupt, or was measured with something that does not pool.
    """
    answer: dict[str, Any] = {}
    if control.rank == 0:
        try:
            answer = asdict(resumable(path, facts, launch, sources))
        except ValueError as error:
            answer = {"refused": str(error)}
    answer = control.exchange("done", answer)[0]
    if "refused" in answer:
        raise AgreedError(answer["refused"])
    return Before(**answer)


def resumable(
    path: Path,
    facts: Mapping[str, Any],
    launch: Mapping[str, Any],
    sources: Mapping[str, str | None],
) -> Before:
    """Return what a journal holds that this session may go on with.

    Raises:
        ValueError: As `done_before` does.
    """
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
    wanted = json.loads(json.dumps({**pooling_facts(launch), **facts}))
    kept = pooling_facts(block["provenance"]) | block["measured_with"]
    for name in (name for name in wanted if kept.get(name) != wanted[name]):
        if name in MAY_BE_UNKNOWN and None in (kept.get(name), wanted[name]):
            continue
        raise ValueError(
            f"{path} was measured with {name} {kept.get(name)}, now it is {wanted[name]}; "
            "results that differ in it are not pooled: measure into another folder"
        )
    for case, entry in journal.measured(path).items():
        record = entry.get("extra_info", {}).get(KEY, {})
        then, source = record.get("workload_sha256"), sources.get(case)
        if then and source and then != source:  # one name would be two models
            raise ValueError(
                f"{path} holds {case}, measured with another source of workload "
                f"{record.get('workload')} (workload_sha256 {then[:12]}, now {source[:12]}); put "
                "the source back, or measure into another folder"
            )
    in_flight = {case: kind for case, kind in done.items() if kind == "begin"}
    return Before(journal.settled(path) | in_flight, block.get("order_seed"))


FOLDER = "nccl"
# A message of several channels, so that all of them connect.
WARM_UP_ITEMS = 2**22
# Levels that write of failures alone.
QUIET = ("", "VERSION", "WARN")
MAX_LINKS = 4096


@dataclass(frozen=True)
class Transport:
    """What the ranks' logs say together: facts of the provenance, and flags."""

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
    import torch
    from torch import distributed

    path = listen(folder, world.rank)
    try:
        distributed.all_reduce(torch.zeros(WARM_UP_ITEMS, device=world.device))
        torch.cuda.synchronize(world.device)
    except RuntimeError as error:  # which the first case will name
        sys.stderr.write(f"lockstep: the warm-up of NCCL failed: {error}\n")
    return settle(world, hosts, nccl_log.read(path) if path else NcclLog())


def settle(world: World, hosts: Sequence[str], log: NcclLog) -> Transport:
    """Return what the logs of all ranks say, equal on all; the argument is this rank's."""
    for warning in log.warnings:
        sys.stderr.write(f"lockstep: rank {world.rank}: NCCL warns: {warning}\n")

    def merge(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        logs = []
        for answer in answers:
            given = answer["log"]
            names = ("networks", "adapters", "warnings", "settings")
            lists = {name: tuple(given[name]) for name in names}
            links = tuple(Link(**link) for link in given["links"])
            logs.append(NcclLog(given["version"], links=links, **lists))
        merged = nccl_log.merged(logs)
        if not merged.links:
            return {"facts": {}, "flags": []}
        fabrics = sorted({name for answer in answers for name in answer["fabrics"]})
        facts = {
            "nccl_log": merged.version,
            "networks": list(merged.networks),
            "adapters": list(merged.adapters),
            "transports": merged.transports,
            "links": [list(asdict(link).values()) for link in merged.links[:MAX_LINKS]],
        }
        findings = nccl_log.findings(merged, hosts, fabrics)
        return {"facts": facts, "flags": [finding.to_dict() for finding in findings]}

    own = {"log": asdict(log), "fabrics": network.fabrics()}
    settled = world.control.settle_all("transport", own, merge)
    return Transport(settled["facts"], tuple(map(flags.read, settled["flags"])))
