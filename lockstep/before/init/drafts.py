"""The first site and campaign files, filled in from what Slurm and the machine show.

A key that cannot be found is a comment or, where nothing works without it, a placeholder that
loading refuses.
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
from lockstep.core.files import write_atomically
from lockstep.core.formats import clock, one_line, parse_limit
from lockstep.machine import nvidia
from lockstep.slurm import associations
from lockstep.slurm import cluster as clusters
from lockstep.slurm import site as sites
from lockstep.slurm.associations import Accounts, Limit
from lockstep.slurm.cluster import MIB_PER_GIB, Cluster, Kind, Partition
from lockstep.slurm.site import FILL_IN

COMMENT_COLUMN = 40


@dataclass(frozen=True)
class Draft:
    """A file to write.

    Attributes:
        to_fill_in: Keys that only a person can set.
    """

    text: str
    to_fill_in: tuple[str, ...] = ()


def line(key: str, value: Any, comment: str = "", *, is_set: bool = True) -> str:
    """Return a key's line with a comment; where the key is not set, the whole line is one."""
    text = f"{'' if is_set else '# '}{key} = {toml(value)}"
    return f"{text:<{COMMENT_COLUMN}}  # {one_line(comment)}" if comment else text


def toml(value: Any) -> str:
    """Return a value as TOML writes it; its strings are JSON's."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False)


MAX_LADDER_NODES = 4
STUDIES = tuple(name for name, study in studies.STUDIES.items() if study.is_usual)


def campaign_file(
    ranks_per_node: int, num_nodes: int, *, has_gpus: bool, is_cluster: bool = False
) -> Draft:
    """Return a first campaign of nodes."""
    world_sizes = ladder(ranks_per_node, min(num_nodes, MAX_LADDER_NODES))
    # Not "cluster": its batch of the strong study is too large for the first rung, one GPU.
    size = "node" if has_gpus else "laptop"
    fields = {"schema": 1, "name": "x", "studies": STUDIES, "world_sizes": world_sizes}
    usual = Campaign.model_validate(fields | {"size": size}).measured_size().global_batch
    # A batch that all world sizes divide, set where the size's own does not.
    common = math.lcm(*world_sizes)
    batch = -(-usual // common) * common
    parts = [
        "# A first campaign: how training scales, and what limits it.",
        "schema = 1",
        line("name", "first", "name of the results folder"),
        line("studies", STUDIES, "the questions to answer"),
        line("world_sizes", world_sizes, "numbers of ranks"),
        line("repeats", 3, "launches of each world size, in random order"),
        line("size", size, "smoke, laptop, node or cluster"),
        line("workload", "resnet50", "the model; by default that of the size", is_set=False),
        line("precision", "bf16", "fp32 by default", is_set=False),
        line("global_batch", batch, "over all ranks, in the strong study", is_set=batch != usual),
    ]
    if is_cluster:
        jobs = "ladder: a job per repeat; job: per world size; array: per case"
        parts += [
            "",
            "[jobs]",
            line("allocation", "ladder", jobs),
            line("preflight", True, "first check that the nodes answer"),
            line("collect", True, "make the report at the end"),
            line(
                "launch_time",
                "00:15:00",
                "limit of one launch; by default the site's time",
                is_set=False,
            ),
        ]
    return Draft("\n".join(parts) + "\n")


def ranks_per_node(kind: Kind) -> int:
    """Return a rank for each GPU; on CPUs one for each socket, and two to have a ladder."""
    return kind.num_gpus or min(kind.num_cpus, max(2, kind.num_sockets))


def ladder(ranks_per_node: int, num_nodes: int) -> list[int]:
    """Return world sizes that double: within a node, and then in whole nodes."""
    within = [2**i for i in range(ranks_per_node.bit_length()) if 2**i < ranks_per_node]
    nodes = [2**i for i in range(num_nodes.bit_length()) if 2**i <= num_nodes]
    return [*within, *(ranks_per_node * number for number in nodes)]


@dataclass(frozen=True)
class Surroundings:
    """What the machine shows.

    Attributes:
        interfaces: Network interfaces, the fast ones first.
        images: Apptainer images, the newest first.
        venv: The environment of this Python, if it is one that has torch.
    """

    interfaces: tuple[str, ...]
    images: tuple[Path, ...]
    has_apptainer: bool
    venv: Path | None
    modules: tuple[str, ...]
    suite: Path | None
    scratch: str | None
    num_cores: int
    num_gpus: int


def look_around(folder: Path, environ: Mapping[str, str]) -> Surroundings:
    """Return what the machine shows; images are looked for in the folder and here."""
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
        # Of an installed Lockstep it is site-packages, which no job may put on PYTHONPATH.
        suite=root if (root / "pyproject.toml").is_file() else None,
        scratch=environ.get("SCRATCH"),
        num_cores=psutil.cpu_count(logical=False) or 1,
        num_gpus=num_gpus,
    )


USUAL_TIME = "02:00:00"


def read_accounts(cluster: Cluster) -> Accounts:
    """Return what this user may charge; nothing where Slurm keeps no accounts or says nothing."""
    try:
        return associations.read(cluster.name) if cluster.keeps_accounts else Accounts()
    except RuntimeError:
        return Accounts()


def choose(cluster: Cluster, accounts: Accounts) -> Partition:
    """Return the partition to measure on: of those with GPUs the default, or the first.

    Raises:
        RuntimeError: Slurm shows no partition with nodes.
    """
    with_nodes = [each for each in cluster.partitions if each.nodes]
    usable = [
        each
        for each in with_nodes
        if each.is_up and (each.accounts is None or not accounts.names or _allowed(each, accounts))
    ] or with_nodes
    if not usable:
        raise RuntimeError(
            f"cluster {cluster.name} shows you no partition with nodes; ask the cluster's "
            "support which you may use, or start from a built-in site: lockstep init --site example"
        )
    return min(usable, key=lambda each: (not each.has_gpus, not each.is_default))


def site_file(cluster: Cluster, accounts: Accounts, around: Surroundings) -> Draft:
    """Return the site file of a cluster.

    Raises:
        RuntimeError: Slurm shows no partition with nodes.
    """
    chosen = choose(cluster, accounts)
    kind = chosen.kinds[0][0]
    most, limit = longest(chosen, _limits(cluster, accounts, chosen))
    time = min(USUAL_TIME, most or USUAL_TIME, key=parse_limit)
    at_most = limit.text if limit else most or "without limit"
    name, *others = around.interfaces or ("ib0",)
    seen = f"also here: {_short(others)}" if others else "of this machine; check a node"
    is_fast = name.startswith(FAST) and bool(around.interfaces)
    parts = [
        *_inventory(cluster, chosen),
        "schema = 1",
        line("name", cluster.name),
        line("partition", chosen.name),
        *_account(chosen, accounts),
        line("reservation", "NAME", "reserved nodes", is_set=False),
        *_hardware(chosen, kind),
        line("time", time, f"limit of one job, at most {at_most}"),
        *([line("max_array_size", cluster.max_array_size)] if cluster.max_array_size else []),
        line("interface", name, seen, is_set=is_fast),
        line("scratch", around.scratch or "/scratch/ME", "for data files", is_set=False),
        line("extra_directives", ["--exclusive"], "other jobs would disturb the timing"),
    ]
    to_fill_in: tuple[str, ...] = ()
    if around.has_apptainer or not (around.venv or around.modules):
        to_fill_in = () if around.images else ("image",)
        placeholder = f"{FILL_IN}path of an image; lockstep image build makes one"
        image = str(around.images[0]) if around.images else placeholder
        parts += [
            "\n# Instead of an image: `modules` or `venv`, and `suite`, the path of Lockstep.",
            "[container]",
            line("image", image, "on storage that all nodes see" if around.images else ""),
            *(line("image", str(path), is_set=False) for path in around.images[1:]),
            line("binds", ["/scratch"], "further folders of the host", is_set=False),
        ]
    else:
        to_fill_in = () if around.suite else ("suite",)
        if around.venv:
            parts.append(line("venv", str(around.venv), "on storage that all nodes see"))
        else:
            listed = f"of {_short(around.modules)}"
            parts.append(line("modules", [around.modules[-1]], listed))
        placeholder = f"{FILL_IN}path of a checkout of Lockstep"
        suite = str(around.suite or placeholder)
        parts.append(line("suite", suite, "on storage that all nodes see"))
    parts += ["\n[env]", line("NCCL_DEBUG", "WARN", is_set=kind.num_gpus > 0)]
    # The others whose nodes are alike: --partition chooses among them.
    for partition in cluster.partitions:
        if kind.shape in {other.shape for other, _ in partition.kinds}:
            limits = _limits(cluster, accounts, partition)
            most, of_time = longest(partition, limits)
            nodes, of_nodes = most_nodes(partition, kind, limits)
            is_bare = re.fullmatch(r"[\w-]+", partition.name, re.ASCII)
            key = partition.name if is_bare else toml(partition.name)
            unlimited = "" if most else "  # no time limit"
            parts.append(f"\n[partitions.{key}]{unlimited}")
            if most:
                parts.append(line("time", most, of_time.text if of_time else "its longest job"))
            parts.append(line("max_nodes", nodes, of_nodes.text if of_nodes else "of one job"))
    return Draft("\n".join(parts) + "\n", to_fill_in)


def _inventory(cluster: Cluster, chosen: Partition) -> Iterator[str]:
    """Yield the cluster's partitions as comments, a kind of node each."""
    version = cluster.version or "of unknown version"
    yield f"# `lockstep init` has read this from {one_line(cluster.name)}, Slurm {version}."
    yield "# A key after a # is not set: remove the # to set it."
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
    yield "#   * this partition is used below"


def _allowed(chosen: Partition, accounts: Accounts) -> list[str]:
    """Return the user's accounts that a partition takes, the default one first."""
    allowed = [
        name for name in accounts.names if chosen.accounts is None or name in chosen.accounts
    ]
    return sorted(allowed, key=lambda name: name != accounts.default)


def _limits(cluster: Cluster, accounts: Accounts, partition: Partition) -> tuple[Limit, ...]:
    """Return what limits a job that charges the account of the site file, and names no QOS."""
    account = next(iter(_allowed(partition, accounts)), None)
    return associations.limits(cluster, accounts, partition, account)


def longest(partition: Partition, limits: Sequence[Limit]) -> tuple[str | None, Limit | None]:
    """Return the time of a partition's longest job, and whose limit that is if not its own."""
    most_s = parse_limit(partition.max_time) if partition.max_time else math.inf
    shorter = [limit for limit in limits if limit.name == "MaxWall" and limit.value < most_s]
    return (clock(shorter[0].value), shorter[0]) if shorter else (partition.max_time, None)


def most_nodes(
    partition: Partition, kind: Kind, limits: Sequence[Limit]
) -> tuple[int, Limit | None]:
    """Return the nodes of a partition's largest job, and whose limit that is if not its own."""
    of_node = {
        "node": 1,
        "cpu": kind.num_cpus,
        "gres/gpu": kind.num_gpus,
        f"gres/gpu:{kind.gpu_type}": kind.num_gpus,
    }
    counted = [limit for limit in limits if of_node.get(limit.tres)]
    nodes = [(max(1, limit.value // of_node[limit.tres]), limit) for limit in counted]
    fewest = min(nodes, key=lambda pair: pair[0], default=None)
    if fewest is None or fewest[0] >= partition.num_usable_nodes:
        return partition.num_usable_nodes, None
    return fewest


def _account(chosen: Partition, accounts: Accounts) -> Iterator[str]:
    allowed = _allowed(chosen, accounts)
    account = next(iter(allowed), None)
    others = ", ".join(name for name in allowed if name != account)
    if account is None:
        yield line(
            "account", "PROJECT", "project to charge, if the cluster needs one", is_set=False
        )
    else:
        yield line("account", account, f"or {others}" if others else "project to charge")
    having = accounts.qos.get(account or "", ())
    qos = [name for name in having if chosen.qos is None or name in chosen.qos]
    yield line("qos", next(iter(qos), "NAME"), f"yours: {', '.join(qos) or 'none'}", is_set=False)


def _hardware(chosen: Partition, kind: Kind) -> Iterator[str]:
    types = {other.gpu_type for other, _ in chosen.kinds if other.num_gpus}
    yield line("gpus_per_node", kind.num_gpus, "" if kind.num_gpus else "measure on the CPUs")
    if kind.gpu_type:
        several = f"the partition has {len(types)} types" if len(types) > 1 else "the only type"
        yield line("gpu_type", kind.gpu_type, several, is_set=len(types) > 1)
    # AMD's Instinct, by its name (amd_instinct_mi250x) or its architecture.
    if re.search(r"mi[0-9]{2}|gfx[0-9]", kind.gpu_type or "", re.IGNORECASE):
        yield line("gpu_runtime", "rocm")
    yield line("cpus_per_node", kind.num_cpus)
    if not kind.num_gpus and kind.num_cpus > 1:
        yield line("max_ranks_per_node", ranks_per_node(kind), "each has its share of CPUs")
    yield line("mem", "0", f"all of a node's {kind.memory_mib / MIB_PER_GIB:.0f} GiB")
    # A feature may keep jobs on nodes of one kind.
    is_needed = len(chosen.kinds) > 1 and len(types) < 2
    alike = [node.features for node in chosen.nodes if node.kind.shape == kind.shape]
    others = [node.features for node in chosen.nodes if node.kind.shape != kind.shape]
    unique = frozenset.intersection(*alike) - frozenset().union(*others)
    if is_needed and unique:
        yield line("constraint", min(unique), "nodes of one kind; the partition has several")
    elif is_needed:
        yield line("constraint", "FEATURE", "the partition has several kinds", is_set=False)
    else:
        features = sorted(frozenset().union(*alike))
        first = (features or ["FEATURE"])[0]
        yield line("constraint", first, f"of {_short(features)}", is_set=False)


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") or "no features"


def cluster_campaign(cluster: Cluster, accounts: Accounts) -> Draft:
    """Return a first campaign of a cluster.

    Raises:
        RuntimeError: Slurm shows no partition with nodes.
    """
    chosen = choose(cluster, accounts)
    kind = chosen.kinds[0][0]
    num_alike = sum(node.kind.shape == kind.shape for node in chosen.nodes)
    most, _ = most_nodes(chosen, kind, _limits(cluster, accounts, chosen))
    return campaign_file(
        ranks_per_node(kind), min(num_alike, most), has_gpus=kind.num_gpus > 0, is_cluster=True
    )


MAX_RANKS = 8  # of a laptop


def drafts(folder: Path, environ: Mapping[str, str]) -> dict[str, Draft]:
    """Return the files for the place where this runs: name -> draft.

    Raises:
        RuntimeError: Slurm is installed and does not answer, or shows no partition with nodes.
    """
    around = look_around(folder, environ)
    if shutil.which("scontrol") is None:
        ranks = around.num_gpus or min(around.num_cores, MAX_RANKS)
        return {"campaign.toml": campaign_file(ranks, 1, has_gpus=around.num_gpus > 0)}
    cluster = clusters.read()
    accounts = read_accounts(cluster)
    return {
        "site.toml": site_file(cluster, accounts, around),
        "campaign.toml": cluster_campaign(cluster, accounts),
    }


def built_in(name: str) -> dict[str, Draft]:
    """Return the files of a site that ships with the suite: name -> draft.

    Raises:
        ValueError: There is no such site.
    """
    if name not in sites.built_in():
        raise ValueError(f"no built-in site {name!r}; choose from {', '.join(sites.built_in())}")
    site = sites.load(name)
    ranks = min(site.gpus_per_node or site.cpus_per_node, site.max_ranks_per_node or MAX_RANKS)
    return {
        "site.toml": Draft(sites.built_in()[name].read_text(encoding="utf-8")),
        "campaign.toml": campaign_file(ranks, MAX_LADDER_NODES, has_gpus=site.gpus_per_node > 0),
    }


def write(folder: Path, files: Mapping[str, Draft], *, force: bool) -> None:
    """Write the files; all of them, or none where one exists already.

    Raises:
        ValueError: A file exists and is not to be replaced.
        OSError: It cannot be written.
    """
    existing = [str(folder / name) for name in files if (folder / name).exists()]
    if existing and not force:
        verb = "exists" if len(existing) == 1 else "exist"
        raise ValueError(
            f"{' and '.join(existing)} {verb} already; replace with --force, or print with "
            "--dry-run"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, draft in files.items():
        write_atomically(folder / name, draft.text)
