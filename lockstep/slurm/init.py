"""The first site and campaign files of a place, filled in from what Slurm and the machine say.

A key that cannot be found stands there as a comment, or, where nothing works without it, as a
placeholder that loading refuses.
"""

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from lockstep import content
from lockstep.campaign.campaign import Campaign, seconds
from lockstep.slurm import associations
from lockstep.slurm import cluster as clusters
from lockstep.slurm import site as sites
from lockstep.slurm.associations import Accounts, Limit
from lockstep.slurm.cluster import MIB_PER_GIB, Cluster, Kind, Partition
from lockstep.slurm.doctor.checks import output
from lockstep.slurm.doctor.machine_checks import FAST, interfaces
from lockstep.slurm.limits import clock
from lockstep.vocabulary.journal import write_atomically

USUAL_TIME = "02:00:00"
MAX_LADDER_NODES = 4
MAX_RANKS = 8  # of a laptop
COMMENT_COLUMN = 40
STUDIES = ("strong", "weak", "precision", "bucket", "collective")


@dataclass(frozen=True)
class Surroundings:
    """What the machine shows beside Slurm.

    Attributes:
        interfaces: Network interfaces, the fast ones first.
        images: Apptainer images found, the newest first.
        has_apptainer: Whether Apptainer is on PATH.
        venv: The environment of this Python, if it is one that has torch.
        modules: Modules that bring PyTorch.
        suite: The checkout that this runs from, if it is one.
        scratch: What the variable SCRATCH names.
        num_cores: Cores of this machine.
        num_gpus: GPUs of this machine.
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


@dataclass(frozen=True)
class Draft:
    """A file to write.

    Attributes:
        text: What it will say.
        to_fill_in: Keys that only a person knows.
    """

    text: str
    to_fill_in: tuple[str, ...] = ()


def drafts(folder: Path, environ: Mapping[str, str]) -> dict[str, Draft]:
    """Return the files for the place where this runs: name -> draft.

    Args:
        folder: Where they will be written.
        environ: Variables of this process.

    Raises:
        RuntimeError: Slurm is installed and does not answer, or shows no partition with nodes.
    """
    around = look_around(folder, environ)
    if shutil.which("scontrol") is None:
        return {"campaign.toml": local_campaign(around)}
    cluster = clusters.read()
    own = read_accounts(cluster)
    return {
        "site.toml": site_file(cluster, own, around),
        "campaign.toml": cluster_campaign(cluster, own),
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


def write(folder: Path, made: Mapping[str, Draft], *, force: bool) -> None:
    """Write the files; all of them, or none where one is there already.

    Args:
        folder: Where to; made if need be.
        made: Name -> draft.
        force: Whether to replace files.

    Raises:
        ValueError: A file is there and is not to be replaced.
        OSError: It cannot be written.
    """
    there = [str(folder / name) for name in made if (folder / name).exists()]
    if there and not force:
        verb = "exists" if len(there) == 1 else "exist"
        raise ValueError(
            f"{' and '.join(there)} {verb} already; --force replaces, --dry-run prints what it "
            "would say"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, draft in made.items():
        write_atomically(folder / name, draft.text)


def look_around(folder: Path, environ: Mapping[str, str]) -> Surroundings:
    """Return what the machine shows.

    Args:
        folder: Where the files will be written; images are looked for there and here.
        environ: Variables of this process.
    """
    seen = (path for place in (folder, Path.cwd()) for path in place.glob("*.sif"))
    found = {path.resolve() for path in seen if path.is_file()}
    root = content.IMPORTABLE_FROM
    is_venv = sys.prefix != sys.base_prefix and find_spec("torch") is not None
    return Surroundings(
        interfaces=tuple(interfaces()),
        images=tuple(sorted(found, key=lambda path: -path.stat().st_mtime)),
        has_apptainer=shutil.which("apptainer") is not None,
        venv=Path(sys.prefix) if is_venv else None,
        modules=tuple(_modules(environ)),
        # Of an installed Lockstep it is site-packages, which no job may put on PYTHONPATH.
        suite=root if (root / "pyproject.toml").is_file() else None,
        scratch=environ.get("SCRATCH"),
        num_cores=psutil.cpu_count(logical=False) or 1,
        num_gpus=_num_gpus(),
    )


def _modules(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that bring PyTorch, where there are modules."""
    if not {"LMOD_CMD", "MODULESHOME"} & set(environ):
        return
    try:
        listed = output(["bash", "-lc", "module -t avail 2>&1"])
    except RuntimeError:
        return
    names = (line.strip().removesuffix("(default)") for line in listed.splitlines())
    yield from (name for name in names if re.fullmatch(r"[\w./+-]*pytorch[\w./+-]*\w", name, re.I))


def _num_gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        return len(output(["nvidia-smi", "--list-gpus"]).splitlines())
    except RuntimeError:
        return 0


def read_accounts(cluster: Cluster) -> Accounts:
    """Return what this user may charge; nothing where Slurm keeps no accounts or says nothing."""
    try:
        return associations.read(cluster.name) if cluster.keeps_accounts else Accounts()
    except RuntimeError:
        return Accounts()


def choose(cluster: Cluster, own: Accounts) -> Partition:
    """Return the partition to measure on: of those with GPUs the default, or the first.

    Raises:
        RuntimeError: Slurm shows no partition with nodes.
    """
    known = [partition for partition in cluster.partitions if partition.nodes]
    open_ = [one for one in known if one.is_up and _is_open(one, own)] or known
    if not open_:
        raise RuntimeError(
            f"cluster {cluster.name} shows no partition with nodes; ask which you may use, or "
            "start from a built-in site: lockstep init --site example"
        )
    return min(open_, key=lambda one: (not one.has_gpus, not one.is_default))


def _is_open(partition: Partition, own: Accounts) -> bool:
    if partition.accounts is None or not own.names:
        return True
    return bool(set(partition.accounts) & set(own.names))


def site_file(cluster: Cluster, own: Accounts, around: Surroundings) -> Draft:
    """Return the site file of a cluster.

    Raises:
        RuntimeError: Slurm shows no partition with nodes.
    """
    chosen = choose(cluster, own)
    kind = chosen.kinds[0][0]
    parts = [
        *_inventory(cluster, chosen),
        "schema = 1",
        _line("name", cluster.name),
        _line("partition", chosen.name),
        *_account(chosen, own),
        _line("reservation", "NAME", "nodes that are kept for you", is_set=False),
        *_hardware(chosen, kind),
        _time(*longest(chosen, _limits(cluster, own, chosen))),
        *([_line("max_array_size", cluster.max_array_size)] if cluster.max_array_size else []),
        *_interface(around),
        _line("scratch", around.scratch or "/scratch/ME", "for data files", is_set=False),
        _line("extra_directives", ["--exclusive"], "other jobs would change what is timed"),
        *(_image(around) if _wants_image(around) else _native(around)),
        *_tables(cluster, own, kind),
    ]
    text = "\n".join(parts) + "\n"
    return Draft(text, tuple(re.findall(rf'^(\w+) = "{sites.FILL_IN}', text, re.MULTILINE)))


def _inventory(cluster: Cluster, chosen: Partition) -> Iterator[str]:
    """Yield the cluster's partitions as comments, a kind of node each."""
    version = cluster.version or "of unknown version"
    yield f"# What `lockstep init` has found of {_plain(cluster.name)}, Slurm {version}."
    yield "# A key behind a # is off: take the # away to set it."
    yield "#"
    row = "#   {:<16} {:>5}  {:<18} {:>5}  {:>8}  {}"
    yield row.format("partition", "nodes", "GPUs of a node", "CPUs", "memory", "longest job")
    for partition in cluster.partitions:
        mark = "*" if partition is chosen else ""
        for kind, number in partition.kinds:
            memory = f"{kind.memory_mib / MIB_PER_GIB:.0f} GiB"
            yield row.format(
                _plain(partition.name) + mark, number, _plain(kind.gpus), kind.num_cpus, memory,
                partition.max_time or "no limit",
            )  # fmt: skip
    yield "#   * is the one below"


def _allowed(chosen: Partition, own: Accounts) -> list[str]:
    """Return the user's accounts that a partition takes, the default one first."""
    allowed = [name for name in own.names if chosen.accounts is None or name in chosen.accounts]
    return sorted(allowed, key=lambda name: name != own.default)


def _limits(cluster: Cluster, own: Accounts, partition: Partition) -> tuple[Limit, ...]:
    """Return what limits a job that charges the account of the site file, and names no QOS."""
    account = next(iter(_allowed(partition, own)), None)
    return associations.limits(cluster, own, partition, account)


def longest(partition: Partition, found: Sequence[Limit]) -> tuple[str | None, Limit | None]:
    """Return the time of a partition's longest job, and whose limit that is if not its own."""
    own_s = seconds(partition.max_time) if partition.max_time else math.inf
    shorter = [one for one in found if one.name == "MaxWall" and one.value < own_s]
    return (clock(shorter[0].value), shorter[0]) if shorter else (partition.max_time, None)


def most_nodes(
    partition: Partition, kind: Kind, found: Sequence[Limit]
) -> tuple[int, Limit | None]:
    """Return the nodes of a partition's largest job, and whose limit that is if not its own."""
    of_node = {
        "node": 1,
        "cpu": kind.num_cpus,
        "gres/gpu": kind.num_gpus,
        f"gres/gpu:{kind.gpu_type}": kind.num_gpus,
    }
    counted = [one for one in found if of_node.get(one.tres)]
    known = [(max(1, one.value // of_node[one.tres]), one) for one in counted]
    fewest = min(known, key=lambda pair: pair[0], default=None)
    if fewest is None or fewest[0] >= partition.num_usable_nodes:
        return partition.num_usable_nodes, None
    return fewest


def _account(chosen: Partition, own: Accounts) -> Iterator[str]:
    allowed = _allowed(chosen, own)
    account = next(iter(allowed), None)
    others = ", ".join(name for name in allowed if name != account)
    if account is None:
        yield _line("account", "PROJECT", "what pays, if jobs must say so", is_set=False)
    else:
        yield _line("account", account, f"or {others}" if others else "the project that pays")
    having = own.qos.get(account or "", ())
    qos = [name for name in having if chosen.qos is None or name in chosen.qos]
    yield _line("qos", next(iter(qos), "NAME"), f"yours: {', '.join(qos) or 'none'}", is_set=False)


def _hardware(chosen: Partition, kind: Kind) -> Iterator[str]:
    types = {other.gpu_type for other, _ in chosen.kinds if other.num_gpus}
    yield _line("gpus_per_node", kind.num_gpus, "" if kind.num_gpus else "measure on the CPUs")
    if kind.gpu_type:
        several = f"the partition has {len(types)} types" if len(types) > 1 else "the only type"
        yield _line("gpu_type", kind.gpu_type, several, is_set=len(types) > 1)
    # AMD's Instinct, by its name (amd_instinct_mi250x) or its architecture.
    if re.search(r"mi[0-9]{2}|gfx[0-9]", kind.gpu_type or "", re.IGNORECASE):
        yield _line("gpu_runtime", "rocm")
    yield _line("cpus_per_node", kind.num_cpus)
    if not kind.num_gpus and kind.num_cpus > 1:
        yield _line("max_ranks_per_node", _ranks_per_node(kind), "each has its share of CPUs")
    yield _line("mem", "0", f"all of a node's {kind.memory_mib / MIB_PER_GIB:.0f} GiB")
    yield from _constraint(chosen, kind, is_needed=len(chosen.kinds) > 1 and len(types) < 2)


def _constraint(chosen: Partition, kind: Kind, *, is_needed: bool) -> Iterator[str]:
    """Yield what keeps jobs on nodes of one kind, where a feature can."""
    alike = [node.features for node in chosen.nodes if node.kind.shape == kind.shape]
    others = [node.features for node in chosen.nodes if node.kind.shape != kind.shape]
    own = frozenset.intersection(*alike) - frozenset().union(*others)
    if is_needed and own:
        yield _line("constraint", min(own), "nodes of one kind; the partition has several")
    elif is_needed:
        yield _line("constraint", "FEATURE", "the partition has several kinds", is_set=False)
    else:
        known = sorted(frozenset().union(*alike))
        yield _line("constraint", (known or ["FEATURE"])[0], f"of {_short(known)}", is_set=False)


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") or "no features"


def _time(most: str | None, limit: Limit | None) -> str:
    time = min(USUAL_TIME, most or USUAL_TIME, key=seconds)
    return _line("time", time, f"of one job, at most {_bound(most or 'without limit', limit)}")


def _bound(text: str, limit: Limit | None) -> str:
    """Return a bound with what sets it, where that is not the partition."""
    return limit.text if limit else text


def _interface(around: Surroundings) -> Iterator[str]:
    """Yield the interface to speak through: set where it is a fast one by its name."""
    name, *others = around.interfaces or ("ib0",)
    seen = f"here are also {_short(others)}" if others else "as on this machine; are nodes alike?"
    yield _line("interface", name, seen, is_set=name.startswith(FAST) and bool(around.interfaces))


def _wants_image(around: Surroundings) -> bool:
    return around.has_apptainer or not (around.venv or around.modules)


def _image(around: Surroundings) -> Iterator[str]:
    placeholder = f"{sites.FILL_IN}path of an image; lockstep image build makes one"
    image = str(around.images[0]) if around.images else placeholder
    yield "\n# Or instead of an image `modules` or `venv`, with `suite`, the path of Lockstep."
    yield "[container]"
    yield _line("image", image, "on storage that all nodes see" if around.images else "")
    yield from (_line("image", str(path), is_set=False) for path in around.images[1:])
    yield _line("binds", ["/scratch"], "further folders of the host", is_set=False)


def _native(around: Surroundings) -> Iterator[str]:
    if around.venv:
        yield _line("venv", str(around.venv), "on storage that all nodes see")
    else:
        yield _line("modules", [around.modules[-1]], f"of {_short(around.modules)}")
    placeholder = f"{sites.FILL_IN}path of a checkout of Lockstep"
    yield _line("suite", str(around.suite or placeholder), "on storage that all nodes see")


def _tables(cluster: Cluster, own: Accounts, kind: Kind) -> Iterator[str]:
    yield "\n[env]"
    yield _line("NCCL_DEBUG", "WARN", is_set=kind.num_gpus > 0)
    # The others whose nodes are alike: --partition chooses among them.
    for partition in cluster.partitions:
        if kind.shape in {other.shape for other, _ in partition.kinds}:
            found = _limits(cluster, own, partition)
            time, of_time = longest(partition, found)
            nodes, of_nodes = most_nodes(partition, kind, found)
            unlimited = "" if time else "  # its jobs may take any time"
            yield f"\n[partitions.{_key(partition.name)}]{unlimited}"
            if time:
                yield _line("time", time, _bound("its longest job", of_time))
            yield _line("max_nodes", nodes, _bound("of one job", of_nodes))


def campaign_file(
    ranks_per_node: int, num_nodes: int, *, has_gpus: bool, is_cluster: bool = False
) -> Draft:
    """Return a first campaign of nodes.

    Args:
        ranks_per_node: Ranks of one node.
        num_nodes: Nodes that a job can have.
        has_gpus: Whether the ranks use GPUs.
        is_cluster: Whether Slurm's jobs measure it.
    """
    world_sizes = ladder(ranks_per_node, min(num_nodes, MAX_LADDER_NODES))
    # Not "cluster": its batch of the strong study is too large for the first rung, one GPU.
    size = "node" if has_gpus else "laptop"
    parts = [
        "# The first campaign of this place: how training scales, and what holds it back.",
        "schema = 1",
        _line("name", "first", "of its folder of results"),
        _line("studies", STUDIES, "the questions"),
        _line("world_sizes", world_sizes, "how many ranks; the ladder"),
        _line("repeats", 3, "launches of each, in random order"),
        _line("size", size, "how much: smoke, laptop, node or cluster"),
        _line("workload", "resnet50", "the model; the size's by default", is_set=False),
        _line("precision", "bf16", "fp32 by default", is_set=False),
        *_global_batch(size, world_sizes),
        *(_jobs() if is_cluster else ()),
    ]
    return Draft("\n".join(parts) + "\n")


def cluster_campaign(cluster: Cluster, own: Accounts) -> Draft:
    """Return a first campaign of a cluster.

    Raises:
        RuntimeError: Slurm shows no partition with nodes.
    """
    chosen = choose(cluster, own)
    kind = chosen.kinds[0][0]
    num_alike = sum(node.kind.shape == kind.shape for node in chosen.nodes)
    most, _ = most_nodes(chosen, kind, _limits(cluster, own, chosen))
    return campaign_file(
        _ranks_per_node(kind), min(num_alike, most), has_gpus=kind.num_gpus > 0, is_cluster=True
    )


def _ranks_per_node(kind: Kind) -> int:
    """Return a rank for each GPU; on CPUs one for each socket, and two to have a ladder."""
    return kind.num_gpus or min(kind.num_cpus, max(2, kind.num_sockets))


def _jobs() -> Iterator[str]:
    """Yield the table of what goes into which job."""
    yield from ("", "[jobs]")
    yield _line("allocation", "ladder", "a job each repeat; job: each world size; array: each case")
    yield _line("preflight", True, "first show that the nodes answer")
    yield _line("collect", True, "and make the report in the end")
    yield _line("launch_time", "00:15:00", "of one launch; the site's time if off", is_set=False)


def _global_batch(size: str, world_sizes: Sequence[int]) -> Iterator[str]:
    """Yield a batch that all world sizes divide, where the size's own is none."""
    given = {"schema": 1, "name": "x", "studies": STUDIES, "world_sizes": world_sizes, "size": size}
    usual = Campaign.model_validate(given).measured_size().global_batch
    common = math.lcm(*world_sizes)
    batch = -(-usual // common) * common
    yield _line("global_batch", batch, "of all ranks, in the strong study", is_set=batch != usual)


def ladder(ranks_per_node: int, num_nodes: int) -> list[int]:
    """Return world sizes that double: within a node, and then in whole nodes."""
    within = [2**i for i in range(ranks_per_node.bit_length()) if 2**i < ranks_per_node]
    nodes = [2**i for i in range(num_nodes.bit_length()) if 2**i <= num_nodes]
    return [*within, *(ranks_per_node * number for number in nodes)]


def local_campaign(around: Surroundings) -> Draft:
    """Return a first campaign of this machine alone."""
    ranks = around.num_gpus or min(around.num_cores, MAX_RANKS)
    return campaign_file(ranks, 1, has_gpus=around.num_gpus > 0)


def _line(key: str, value: Any, comment: str = "", *, is_set: bool = True) -> str:
    """Return a key's line, with what one should know of it; a comment where it is not set."""
    text = f"{'' if is_set else '# '}{key} = {_toml(value)}"
    return f"{text:<{COMMENT_COLUMN}}  # {_plain(comment)}" if comment else text


def _toml(value: Any) -> str:
    """Return a value as TOML writes it; its strings are JSON's."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    """Return a name as a key of TOML."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _toml(name)


def _plain(text: str) -> str:
    """Return a text that cannot end its comment."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
