"""The ranks' checks before the first case: same software, cases and options; comparable results.

All ranks raise the same error: AgreedError for wrong input, RuntimeError for the machine. NCCL's
links are read from its log of an untimed warm-up, at a level that logs no collective.
"""

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.core import flags, journal
from lockstep.core.errors import AgreedError, RankError
from lockstep.core.flags import Flag, flag
from lockstep.core.processes import steers_torch
from lockstep.core.record import KEY, MAY_BE_UNKNOWN, pooling_facts
from lockstep.launch.options import Settings
from lockstep.machine import nccl_log, network, provenance
from lockstep.machine.nccl_log import Link, NcclLog
from lockstep.ranks.control import Control
from lockstep.ranks.process_group import World

# A larger offset is no delay of an answer: dates of results and of Slurm then disagree.
MAX_CLOCK_OFFSET_S = 60.0


def compare(control: Control, case_ids: Sequence[str], settings: Settings) -> None:
    """Refuse ranks with different software, cases or options, and name the first difference."""
    # Paths may differ, because hosts may mount the same folder under different paths.
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
            version, version_of_rank_0 = theirs.get(name), of_rank_0[name]
            raise RankError(
                f"rank {rank} runs with {name} {version}, but rank 0 runs with "
                f"{version_of_rank_0}; start every rank from the same image and checkout",
                rank,
            )
    if all(answer["digest"] == answers[0]["digest"] for answer in answers):
        return
    # The digests differ, so exchange the long lists to name the difference.
    answers = control.exchange_all("collected/cases", own)
    ids_0, options_0 = answers[0]
    for rank, (ids, options) in enumerate(answers):
        if ids != ids_0:
            difference = "the cases have another order"
            if differing := sorted(set(ids) ^ set(ids_0)):
                difference = f"only one of the two ranks has the case {differing[0]}"
            raise AgreedError(
                f"rank {rank} collected other cases than rank 0 (number of cases: {len(ids)} "
                f"instead of {len(ids_0)}): {difference}; give every rank the same files and "
                "options",
                rank,
            )
        for name in (name for name in options_0 if options[name] != options_0[name]):
            raise AgreedError(
                f"rank {rank} runs with the option {name} = {options[name]}, but rank 0 with "
                f"{options_0[name]}; give every rank the same options",
                rank,
            )


def gather_unsupported(world: World, control: Control, precision: str) -> dict[str, str]:
    """Return precision -> why a rank does not support it, for unsupported precisions."""
    from lockstep.measure.step.precision import find_unsupported

    answers = control.exchange_all("unsupported", find_unsupported(world.device, precision))
    return {name: reason for rank in reversed(answers) for name, reason in rank.items()}


def gather_provenance(
    world: World, control: Control, seed: int, project: Path | None
) -> dict[str, Any]:
    """Return the launch's provenance with each rank's part, equal on all ranks.

    `project` is the file of the user's own test or workload. Two ranks on one GPU are refused.
    """
    own = provenance.rank_facts(world.rank, world.local_rank, world.device)
    ranks = control.exchange_all("provenance", own | {"clock_s": time.time()})
    # All ranks read the clock at the same time, after the previous exchange.
    clocks_s = [rank.pop("clock_s") for rank in ranks]
    seen: dict[str, int] = {}
    for rank, facts in enumerate(ranks):
        facts["clock_offset_s"] = round(clocks_s[rank] - clocks_s[0], 3)
        # NCCL does not support two ranks on one GPU.
        if (uuid := facts["gpu_uuid"]) and seen.setdefault(uuid, rank) != rank:
            raise RankError(
                f"ranks {seen[uuid]} and {rank} on {facts['host']} share one GPU ({uuid}); start "
                "one rank per GPU",
                *(seen[uuid], rank),
            )
    # Rank 0 describes the software of all ranks, so that the image is hashed once.
    launch = provenance.launch_facts(seed, sys.argv, project) if world.rank == 0 else {}
    launch = control.exchange("software", launch)[0]
    return provenance.launch_provenance(launch, ranks) | {
        "backend": world.backend,
        "threads_per_rank": world.threads_per_rank,
    }


def cores_beside(ranks: Sequence[Mapping[str, Any]], rank: int) -> int:
    """Return the number of cores that all ranks on one rank's host may use."""
    cores = (other["cores"] for other in ranks if other["host"] == ranks[rank]["host"])
    return len(set[int]().union(*cores))


def launch_flags(facts: dict[str, Any]) -> list[Flag]:
    """Return the flags of a launch, from its provenance."""
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
    # Without SUBSYS, INFO logs only NCCL's start, but TRACE every call (NCCL user guide,
    # "Environment Variables").
    level = environ.get("NCCL_DEBUG", "").upper()
    chosen = environ.get("NCCL_DEBUG_SUBSYS", "")
    has_calls = bool({*chosen.upper().split(",")} & {"ALL", "COLL"})
    if level == "TRACE" or (level == "INFO" and has_calls):
        text = f"NCCL_DEBUG={level}" + (f" NCCL_DEBUG_SUBSYS={chosen}" if has_calls else "")
        flags.append(flag("nccl-log", settings=text))
    if dropped := sorted(filter(steers_torch, facts.get("dropped_environment", []))):
        flags.append(flag("dropped-environment", names=dropped))
    flags += [  # only dates are wrong: each rank measures durations by its own clock
        flag("clock-off", host=rank["host"], offset_s=rank["clock_offset_s"])
        for rank in facts["ranks"]
        if abs(rank["clock_offset_s"]) > MAX_CLOCK_OFFSET_S
    ]
    if facts["git_dirty"]:
        flags.append(flag("git-dirty"))
    return sorted(dict.fromkeys(flags), key=str)


def resume_facts(world: World, settings: Settings) -> dict[str, Any]:
    """Return the facts that must be equal before a session resumes a journal."""
    return {
        "world_size": world.world_size, "num_nodes": world.num_nodes,
        "threads_per_rank": world.threads_per_rank, "seed": settings.seed, **asdict(settings.size),
    }  # fmt: skip


class Before(NamedTuple):
    """The results of a launch's earlier sessions."""

    done: Mapping[str, str]  # case -> outcome of `settled_outcomes`, or `begin` if it did not end
    order_seed: int | None  # seed of the order of cases; None if unknown


def order_seed(control: Control, before: Before, chosen: int | None) -> int:
    """Return the order seed: that of the previous session, else `chosen`, else a random one."""
    drawn: int = control.exchange_all("order", secrets.randbits(32))[0]
    if before.order_seed is not None:
        return before.order_seed
    return drawn if chosen is None else chosen


def read_before(control: Control, path: Path, *session: Any) -> Before:
    """Return rank 0's answer of `resumable` on all ranks; raise its refusal on all ranks, too.

    Only rank 0 reads the journal: a shared file system may show other ranks an older file.
    """
    answer: dict[str, Any] = {}
    if control.rank == 0:
        try:
            answer = resumable(path, *session)._asdict()
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
    """Return the journal's results that this session may continue; refuse a journal that differs.

    `facts` come from `resume_facts`; `sources` is case -> digest of its workload or test.
    """
    in_flight = journal.in_flight(path)
    if not (in_flight or journal.outcomes(path)):
        return Before({}, None)
    block = journal.rebuild(path)[KEY]
    for name in ("provenance", "measured_with"):
        if not isinstance(block.get(name), dict):
            value = str(block.get(name))[:80]
            raise ValueError(
                f"{path} is corrupt: in a line of kind launch, the key {name} has the value "
                f"{value!r}, which is not a JSON object; measure into another "
                "folder"
            )
    # JSON turns tuples into lists.
    wanted = json.loads(json.dumps({**pooling_facts(launch), **facts}))
    kept = pooling_facts(block["provenance"]) | block["measured_with"]
    for name in (name for name in wanted if kept.get(name) != wanted[name]):
        if name in MAY_BE_UNKNOWN and None in (kept.get(name), wanted[name]):
            continue
        then, now = kept.get(name), wanted[name]
        raise ValueError(
            f"{path} was measured with {name} {then}, but {name} is now {now}; Lockstep does not "
            "mix such results, so measure into another folder"
        )
    for case, entry in journal.measured(path).items():
        record = entry.get("extra_info", {}).get(KEY, {})
        then, source = record.get("workload_sha256"), sources.get(case)
        if then and source and then != source:  # the same name would mean two models
            workload = record.get("workload")
            raise ValueError(
                f"{path} has a result of {case}, but the source code of workload "
                f"{workload} has changed since that measurement; undo the change, or "
                f"measure into another folder (workload_sha256 was {then[:12]}, now {source[:12]})"
            )
    begun = {in_flight: "begin"} if in_flight else {}
    return Before(journal.settled_outcomes(path) | begun, block.get("order_seed"))


FOLDER = "nccl"
# Such a large message uses several channels, so that all of them connect.
WARM_UP_ITEMS = 2**22
# Levels at which NCCL logs only failures.
QUIET = ("", "VERSION", "WARN")
MAX_LINKS = 4096


# NCCL's links from the logs of all ranks: facts for the provenance, and flags.
LinksAndFlags = tuple[Mapping[str, Any], tuple[Flag, ...]]


def listen(folder: Path, rank: int, environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Let NCCL log its start into a file; return None if the user set NCCL's logging."""
    level = environ.get("NCCL_DEBUG", "").upper()
    if level not in QUIET or "NCCL_DEBUG_FILE" in environ:
        return None
    path = folder / FOLDER / f"rank-{rank}.log"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    except OSError:
        return None
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV,NET,P2P,SHM"
    # NCCL replaces %h and %p by host and process.
    environ["NCCL_DEBUG_FILE"] = str(path).replace("%", "%%")
    return path


def gather(world: World, hosts: Sequence[str], folder: Path | None) -> LinksAndFlags:
    """Warm up NCCL on all ranks and return its links, empty without NCCL; a collective call."""
    if world.backend != "nccl" or world.world_size == 1 or folder is None:
        return {}, ()
    import torch
    from torch import distributed

    path = listen(folder, world.rank)
    try:
        distributed.all_reduce(torch.zeros(WARM_UP_ITEMS, device=world.device))
        torch.cuda.synchronize(world.device)
    except RuntimeError as error:  # the first case will fail with the same error
        sys.stderr.write(f"lockstep: the warm-up of NCCL failed: {error}\n")
    return settle(world, hosts, nccl_log.read(path) if path else NcclLog())


def settle(world: World, hosts: Sequence[str], log: NcclLog) -> LinksAndFlags:
    """Return the links from the logs of all ranks, equal on all ranks; `log` is this rank's."""
    for warning in log.warnings:
        sys.stderr.write(f"lockstep: rank {world.rank}: NCCL warns: {warning}\n")

    def merge(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        logs = []
        for fields in (answer["log"] for answer in answers):
            links = tuple(Link(**link) for link in fields["links"])
            lists = {name: tuple(value) for name, value in fields.items() if name != "version"}
            logs.append(NcclLog(fields["version"], **lists | {"links": links}))
        merged = nccl_log.merge(logs)
        if not merged.links:
            return {"facts": {}, "flags": []}
        fabrics = sorted({name for answer in answers for name in answer["fabrics"]})
        facts = {
            "nccl_log": merged.version, "networks": list(merged.networks),
            "adapters": list(merged.adapters), "transports": merged.transports,
            "links": [list(asdict(link).values()) for link in merged.links[:MAX_LINKS]],
        }  # fmt: skip
        findings = nccl_log.findings(merged, hosts, fabrics)
        return {"facts": facts, "flags": [finding.to_dict() for finding in findings]}

    own = {"log": asdict(log), "fabrics": network.fabrics()}
    settled = world.control.settle_all("transport", own, merge)
    return settled["facts"], tuple(map(flags.read, settled["flags"]))
