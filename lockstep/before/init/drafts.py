"""The first site and campaign files, filled in from Slurm and this machine.

A key with an unknown value is a comment or, if the site file needs the key, a placeholder that
other commands refuse.
"""

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from lockstep import content
from lockstep.before.doctor.machine_checks import FAST, interfaces
from lockstep.campaign.campaign import Campaign
from lockstep.core import processes, studies
from lockstep.core.formats import clock, one_line, parse_limit
from lockstep.machine import nvidia
from lockstep.slurm import associations
from lockstep.slurm import cluster as clusters
from lockstep.slurm import site as sites
from lockstep.slurm.associations import Accounts
from lockstep.slurm.cluster import MIB_PER_GIB, Cluster, Kind, Partition
from lockstep.slurm.site import FILL_IN

COMMENT_COLUMN = 40
MAX_LADDER_NODES = 4
MAX_RANKS = 8  # on a laptop
USUAL_TIME = "02:00:00"
STUDIES = tuple(name for name, study in studies.STUDIES.items() if study.is_usual)


def line(key: str, value: Any, comment: str = "", *, is_set: bool = True) -> str:
    """Return a key's line with a comment; without `is_set`, the whole line is a comment."""
    # TOML writes lists and strings as JSON does.
    text = f"{'' if is_set else '# '}{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text:<{COMMENT_COLUMN}}  # {one_line(comment)}" if comment else text


def campaign_file(
    ranks_per_node: int, num_nodes: int, *, has_gpus: bool, is_cluster: bool = False
) -> str:
    """Return a first campaign for up to `num_nodes` nodes."""
    world_sizes = ladder(ranks_per_node, min(num_nodes, MAX_LADDER_NODES))
    # The strong study's batch of size "cluster" would not fit on one GPU.
    size = "node" if has_gpus else "laptop"
    fields = {"schema": 1, "name": "x", "studies": STUDIES, "world_sizes": world_sizes}
    usual = Campaign.model_validate(fields | {"size": size}).measured_size().global_batch
    # All world sizes must divide the batch, so it is set if the size's own batch does not fit.
    common = math.lcm(*world_sizes)
    batch = -(-usual // common) * common
    parts = [
        "# This first campaign measures how training scales, and what limits the scaling.",
        "schema = 1",
        line("name", "first", "name of the results folder"),
        line("studies", STUDIES, "what to measure"),
        line("world_sizes", world_sizes, "numbers of ranks"),
        line("repeats", 3, "number of launches of each world size, in random order"),
        line("size", size, "how much to measure: smoke, laptop, node or cluster"),
        line(
            "workload",
            "resnet50",
            "model to train; the default depends on the key size",
            is_set=False,
        ),
        line("precision", "bf16", "fp32 by default", is_set=False),
        line(
            "global_batch",
            batch,
            "samples of all ranks per update, for the study strong",
            is_set=batch != usual,
        ),
    ]
    if is_cluster:
        cuts = '"ladder" makes a job per repeat, "job" a job per world size, "array" a job per case'
        limit = "time limit of one launch; the default is time in the site file"
        parts += [
            "\n[jobs]",
            line("allocation", "ladder", cuts),
            line("preflight", True, "a first job checks that the nodes answer"),
            line("collect", True, "a last job makes the report"),
            line("launch_time", "00:15:00", limit, is_set=False),
        ]
    return "\n".join(parts) + "\n"


def ranks_per_node(kind: Kind) -> int:
    """Return the ranks of a node: one per GPU; on CPUs one per socket, but at least two."""
    return kind.num_gpus or min(kind.num_cpus, max(2, kind.num_sockets))


def ladder(ranks_per_node: int, num_nodes: int) -> list[int]:
    """Return world sizes that double, first within a node and then in whole nodes."""
    within = [2**i for i in range(ranks_per_node.bit_length()) if 2**i < ranks_per_node]
    nodes = [2**i for i in range(num_nodes.bit_length()) if 2**i <= num_nodes]
    return [*within, *(ranks_per_node * number for number in nodes)]


@dataclass(frozen=True)
class Surroundings:
    """The facts of this machine for a site file."""

    interfaces: tuple[str, ...]  # the fastest first
    images: tuple[Path, ...]  # the newest first
    has_apptainer: bool
    venv: Path | None  # this Python's environment, if it has torch
    modules: tuple[str, ...]  # modules of PyTorch
    suite: Path | None  # the checkout of Lockstep; None if Lockstep is installed
    scratch: str | None
    num_cores: int
    num_gpus: int


def read_surroundings(folder: Path, environ: Mapping[str, str]) -> Surroundings:
    """Return the facts of this machine, with the images in `folder` and the current folder."""
    places = (folder, Path.cwd())
    images = {path.resolve() for place in places for path in place.glob("*.sif") if path.is_file()}
    root = content.IMPORTABLE_FROM
    is_venv = sys.prefix != sys.base_prefix and find_spec("torch") is not None
    modules: tuple[str, ...] = ()
    if {"LMOD_CMD", "MODULESHOME"} & set(environ):
        with suppress(RuntimeError):
            listing = processes.output(["bash", "-lc", "module -t avail 2>&1"], timeout_s=30)
            names = (text.strip().removesuffix("(default)") for text in listing.splitlines())
            pattern = re.compile(r"[\w./+-]*pytorch[\w./+-]*\w", re.IGNORECASE)
            modules = tuple(name for name in names if pattern.fullmatch(name))
    num_gpus = 0
    with suppress(RuntimeError):
        num_gpus = len(nvidia.gpus())
    return Surroundings(
        interfaces=tuple(interfaces()),
        images=tuple(sorted(images, key=lambda path: -path.stat().st_mtime)),
        has_apptainer=shutil.which("apptainer") is not None,
        venv=Path(sys.prefix) if is_venv else None,
        modules=modules,
        # site-packages, with an installed Lockstep, must not go on a job's PYTHONPATH.
        suite=root if (root / "pyproject.toml").is_file() else None,
        scratch=environ.get("SCRATCH"),
        num_cores=psutil.cpu_count(logical=False) or 1,
        num_gpus=num_gpus,
    )


def choose(cluster: Cluster, accounts: Accounts) -> Partition:
    """Return the partition to measure on: preferably with GPUs, then the default partition."""
    with_nodes = [partition for partition in cluster.partitions if partition.nodes]
    usable = [p for p in with_nodes if p.is_up and (not accounts.names or _accounts(p, accounts))]
    usable = usable or with_nodes
    if not usable:
        raise RuntimeError(
            f"cluster {cluster.name} shows you no partition with nodes; ask the cluster's "
            "support which partition to use, or start from a built-in site with lockstep init "
            "--site example"
        )
    return min(usable, key=lambda partition: (not partition.has_gpus, not partition.is_default))


def site_file(cluster: Cluster, accounts: Accounts, around: Surroundings) -> str:
    """Return the site file of a cluster; raise RuntimeError if it has no partition with nodes."""
    chosen = choose(cluster, accounts)
    kind = chosen.kinds[0][0]
    most, of_time, _, _ = largest_job(cluster, accounts, chosen, kind)
    time, bound = min(USUAL_TIME, most or USUAL_TIME, key=parse_limit), of_time or most
    name, *others = around.interfaces or ("ib0",)
    where = f"every node must have the network interface {name}"
    if others:
        interfaces = _short(others)
        where = f"this machine also has the interfaces {interfaces}"
    is_fast = name.startswith(FAST) and bool(around.interfaces)
    parts = [
        *_inventory(cluster, chosen),
        "schema = 1",
        line("name", cluster.name),
        line("partition", chosen.name),
        *_account(chosen, accounts),
        line("reservation", "NAME", "reserved nodes", is_set=False),
        *_hardware(chosen, kind),
        line(
            "time",
            time,
            f"time limit of a job, at most {bound}" if bound else "time limit of a job",
        ),
        *([line("max_array_size", cluster.max_array_size)] if cluster.max_array_size else []),
        line("interface", name, where, is_set=is_fast),
        line("scratch", around.scratch or "/scratch/ME", "for data files", is_set=False),
        line(
            "extra_directives",
            ["--exclusive"],
            "reserve whole nodes, so that no other job disturbs the timing",
        ),
        *_software(around),
        "\n[env]",
        line("NCCL_DEBUG", "WARN", is_set=kind.num_gpus > 0),
    ]
    # --partition can choose among the partitions with equal nodes.
    for partition in cluster.partitions:
        if kind.shape in {other.shape for other, _ in partition.kinds}:
            most, of_time, nodes, of_nodes = largest_job(cluster, accounts, partition, kind)
            is_bare = re.fullmatch(r"[\w-]+", partition.name, re.ASCII)
            key = partition.name if is_bare else json.dumps(partition.name, ensure_ascii=False)
            comment = "" if most else "  # this partition has no time limit"
            parts.append(f"\n[partitions.{key}]{comment}")
            if most:
                parts.append(line("time", most, of_time or "longest time that a job may take"))
            parts.append(line("max_nodes", nodes, of_nodes or "maximum number of nodes per job"))
    return "\n".join(parts) + "\n"


def _software(around: Surroundings) -> Iterator[str]:
    shared = "this path must be on storage that all nodes see"
    if around.has_apptainer or not (around.venv or around.modules):
        yield "\n# Without an image, set modules or venv, and set suite to a checkout of Lockstep."
        yield "[container]"
        placeholder = f"{FILL_IN}path of an image, which lockstep image build makes"
        first, *others = around.images or (placeholder,)
        yield line("image", str(first), shared if around.images else "")
        yield from (line("image", str(path), is_set=False) for path in others)
        yield line("binds", ["/scratch"], "folders of the host to mount in the image", is_set=False)
        return
    if around.venv:
        yield line("venv", str(around.venv), shared)
    else:
        yield line("modules", [around.modules[-1]], f"of {_short(around.modules)}")
    yield line("suite", str(around.suite or f"{FILL_IN}path of a checkout of Lockstep"), shared)


def _inventory(cluster: Cluster, chosen: Partition) -> Iterator[str]:
    version, name = cluster.version or "of unknown version", one_line(cluster.name)
    yield f"# lockstep init wrote this file for the cluster {name} with Slurm {version}."
    yield "# A key behind a # is not set. To set such a key, remove the #."
    yield "#"
    row = "#   {:<16} {:>5}  {:<18} {:>5}  {:>8}  {}"
    yield row.format("partition", "nodes", "GPUs of a node", "CPUs", "memory", "longest job")
    for partition in cluster.partitions:
        mark = "*" if partition is chosen else ""
        for kind, number in partition.kinds:
            memory = f"{kind.memory_mib / MIB_PER_GIB:.0f} GiB"
            name, gpus = one_line(partition.name) + mark, one_line(kind.gpus)
            longest_job = partition.max_time or "no limit"
            yield row.format(name, number, gpus, kind.num_cpus, memory, longest_job)
    yield "#   * marks the partition that this file uses"


def _accounts(chosen: Partition, accounts: Accounts) -> list[str]:
    allowed = [
        name for name in accounts.names if chosen.accounts is None or name in chosen.accounts
    ]
    return sorted(allowed, key=lambda name: name != accounts.default)


def largest_job(
    cluster: Cluster, accounts: Accounts, partition: Partition, kind: Kind
) -> tuple[str | None, str, int, str]:
    """Return time and nodes of a partition's largest job, each with a phrase about its limit.

    The phrase is empty if the partition itself sets the limit, and names the account or QOS
    otherwise. The time is None without any limit.
    """
    time, of_time = partition.max_time, ""
    nodes, of_nodes = partition.num_usable_nodes, ""
    of_node = {"node": 1, "cpu": kind.num_cpus, "gres/gpu": kind.num_gpus}
    of_node[f"gres/gpu:{kind.gpu_type}"] = kind.num_gpus
    account = next(iter(_accounts(partition, accounts)), None)
    for limit in associations.limits(cluster, accounts, partition, account):
        if limit.name == "MaxWall" and (time is None or limit.value < parse_limit(time)):
            time, of_time = clock(limit.value), limit.text
        in_nodes = max(1, limit.value // (of_node.get(limit.tres) or 1))
        if of_node.get(limit.tres) and in_nodes < nodes:
            nodes, of_nodes = in_nodes, limit.text
    return time, of_time, nodes, of_nodes


def _account(chosen: Partition, accounts: Accounts) -> Iterator[str]:
    allowed = _accounts(chosen, accounts)
    account = next(iter(allowed), None)
    others = ", ".join(name for name in allowed if name != account)
    if account is None:
        needed = "project to charge, if the cluster needs a project"
        yield line("account", "PROJECT", needed, is_set=False)
    else:
        yield line("account", account, f"or {others}" if others else "project to charge")
    having = accounts.qos.get(account or "", ())
    qos = [name for name in having if chosen.qos is None or name in chosen.qos]
    yield line("qos", next(iter(qos), "NAME"), f"yours: {', '.join(qos) or 'none'}", is_set=False)


def _hardware(chosen: Partition, kind: Kind) -> Iterator[str]:
    types = {other.gpu_type for other, _ in chosen.kinds if other.num_gpus}
    yield line("gpus_per_node", kind.num_gpus, "" if kind.num_gpus else "measure on the CPUs")
    if kind.gpu_type:
        num_types = len(types)
        several = (
            f"one of the partition's {num_types} types of GPU"
            if num_types > 1
            else "the partition's only type of GPU"
        )
        yield line("gpu_type", kind.gpu_type, several, is_set=num_types > 1)
    # Name (amd_instinct_mi250x) or architecture (gfx90a) of an AMD GPU.
    if re.search(r"mi[0-9]{2}|gfx[0-9]", kind.gpu_type or "", re.IGNORECASE):
        yield line("gpu_runtime", "rocm")
    yield line("cpus_per_node", kind.num_cpus)
    if not kind.num_gpus and kind.num_cpus > 1:
        yield line("max_ranks_per_node", ranks_per_node(kind), "the ranks of a node share its CPUs")
    memory = f"{kind.memory_mib / MIB_PER_GIB:.0f} GiB"
    yield line("mem", "0", f"0 requests the whole memory of a node, {memory}")
    # A feature that only the nodes of this kind have keeps jobs on these nodes.
    is_needed = len(chosen.kinds) > 1 and len(types) < 2
    alike = [node.features for node in chosen.nodes if node.kind.shape == kind.shape]
    others = [node.features for node in chosen.nodes if node.kind.shape != kind.shape]
    unique = frozenset.intersection(*alike) - frozenset().union(*others)
    if is_needed and unique:
        why = "the partition has several kinds of nodes; jobs get nodes with this feature"
        yield line("constraint", min(unique), why)
    elif is_needed:
        why = "the partition has several kinds of nodes; name a feature that only one kind has"
        yield line("constraint", "FEATURE", why, is_set=False)
    else:
        features = sorted(frozenset().union(*alike))
        first = (features or ["FEATURE"])[0]
        yield line("constraint", first, f"of {_short(features)}", is_set=False)


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") or "no features"


def cluster_campaign(cluster: Cluster, accounts: Accounts) -> str:
    """Return a first campaign; raise RuntimeError if the cluster has no partition with nodes."""
    chosen = choose(cluster, accounts)
    kind = chosen.kinds[0][0]
    num_alike = sum(node.kind.shape == kind.shape for node in chosen.nodes)
    num_nodes = min(num_alike, largest_job(cluster, accounts, chosen, kind)[2])
    has_gpus = kind.num_gpus > 0
    return campaign_file(ranks_per_node(kind), num_nodes, has_gpus=has_gpus, is_cluster=True)


def drafts(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the files for this machine or its cluster: name -> text."""
    around = read_surroundings(folder, environ)
    if shutil.which("scontrol") is None:
        ranks = around.num_gpus or min(around.num_cores, MAX_RANKS)
        return {"campaign.toml": campaign_file(ranks, 1, has_gpus=around.num_gpus > 0)}
    cluster, accounts = clusters.read(), Accounts()
    with suppress(RuntimeError):  # without an answer the user fills in the account
        accounts = associations.read(cluster.name) if cluster.keeps_accounts else accounts
    return {
        "site.toml": site_file(cluster, accounts, around),
        "campaign.toml": cluster_campaign(cluster, accounts),
    }


def built_in(name: str) -> dict[str, str]:
    """Return the files for a built-in site: name -> text; raise ValueError for another name."""
    if name not in sites.built_in():
        known = ", ".join(sites.built_in())
        raise ValueError(f"there is no built-in site {name!r}; choose from {known}")
    site = sites.load(name, is_draft=True)
    ranks = min(site.gpus_per_node or site.cpus_per_node, site.max_ranks_per_node or MAX_RANKS)
    return {
        "site.toml": sites.built_in()[name].read_text(encoding="utf-8"),
        "campaign.toml": campaign_file(ranks, MAX_LADDER_NODES, has_gpus=site.gpus_per_node > 0),
    }
