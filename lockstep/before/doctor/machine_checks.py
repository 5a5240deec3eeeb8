"""The registry of the checks of `lockstep doctor`, and the checks of the machine it runs on."""

import ctypes
import functools
import json
import os
import resource
import shlex
import shutil
import site as site_packages
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from lockstep.before.lint import variables
from lockstep.before.lint.shell import split_words
from lockstep.campaign import launcher
from lockstep.core import findings, processes
from lockstep.core.processes import COMMUNICATION_PREFIXES, INTERFACE_NAMES, steers_torch
from lockstep.machine import network, nvidia
from lockstep.machine.network import file_system
from lockstep.slurm import associations
from lockstep.slurm import cluster as clusters
from lockstep.slurm.associations import Accounts
from lockstep.slurm.cluster import Cluster
from lockstep.slurm.site import Site

GB = 10**9
# The first import of torch from a cold, shared file system takes a minute and more.
PROBE_TIMEOUT_S = 300
# Importing torch and torchvision shows a mismatched pair; the rest is needed by the ranks.
PROBE = """
import importlib.metadata as installed, json
import torch, torchvision, numpy, psutil, pytest, pytest_benchmark
nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
print(json.dumps({
    "torch": torch.__version__,
    "pytest-benchmark": installed.version("pytest-benchmark"),
    "cuda": torch.version.cuda,
    "rocm": torch.version.hip,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
    "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
    "gpus": torch.cuda.device_count(),
}))
"""
LEAST_FREE_BYTES = 2 * GB
LEAST_OPEN_FILES = 4096
MAX_CLOCK_SKEW_S = 1.0
# Return value of adjtimex(2) while no time server disciplines the clock: TIME_ERROR.
CLOCK_ERROR = 5
SIZEOF_TIMEX = 512  # 208 bytes in Linux; more does no harm
# Preferred interfaces, fastest first: InfiniBand, Slingshot, then bonds of Ethernet links.
FAST = ("ib", "hsn", "bond")
# Names of interfaces that lead to no other node.
LOCAL = ("lo", "docker", "br-", "veth", "virbr", "tun", "tap", "cni", "dummy", "ifb")
ON_ONE_MACHINE = ("ext4", "xfs", "btrfs", "zfs")
# type of file system -> description, and whether it suits training data
STORAGE = {
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3"), ("a network file system", False)),
    **dict.fromkeys(
        ("lustre", "gpfs", "beegfs", "ceph", "wekafs"), ("a parallel file system", True)
    ),
    "overlay": ("the writable layer of a container", False),
    **dict.fromkeys(("tmpfs", "ramfs"), ("memory", True)),
    **dict.fromkeys(ON_ONE_MACHINE, ("a local disk", True)),
}
# File systems that vanish with the container or the machine.
FLEETING = ("overlay", "tmpfs", "ramfs")


@dataclass(frozen=True)
class Finding(findings.Finding):
    """The result of one check; its kind is the name of the check.

    Attributes:
        details: Further facts, a line each.
        group: Heading under which the check is listed.
    """

    details: tuple[str, ...] = ()
    group: str = ""

    def record(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "group": self.group, "check": self.kind, "status": self.level, "says": self.text,
            "action": self.action or None, "details": self.details,
        }  # fmt: skip


def ok(text: str, *details: str) -> Finding:
    """Return a finding without a problem."""
    return Finding("", text, "ok", details=details)


def warning(text: str, action: str, *details: str) -> Finding:
    """Return a problem that makes measuring slower or less certain."""
    return Finding("", text, "warning", action, details=details)


def missing(text: str, action: str, *details: str) -> Finding:
    """Return a problem that keeps jobs or launches from running."""
    return Finding("", text, "missing", action, details=details)


class NotNeededError(Exception):
    """A check does not apply here; the text says why."""


@dataclass(frozen=True)
class Subject:
    """What is examined.

    Attributes:
        data: Folder of training data, if one is given.
        asks_nodes: Whether a small job may be started.
    """

    environ: Mapping[str, str]
    results: Path
    site: Site | None = None
    data: Path | None = None
    asks_nodes: bool = False

    @cached_property
    def slurm(self) -> Cluster | RuntimeError:
        """The cluster as Slurm describes it, or the error of Slurm's command."""
        try:
            return clusters.read()
        except RuntimeError as error:
            return error

    @cached_property
    def accounts(self) -> Accounts:
        """The user's accounts on the cluster."""
        assert isinstance(self.slurm, Cluster)
        return associations.read(self.slurm.name)

    @property
    def is_login_node(self) -> bool:
        """Whether this machine only submits: a site's Slurm answers, and this is not its job."""
        is_job = "SLURM_JOB_ID" in self.environ
        return self.site is not None and isinstance(self.slurm, Cluster) and not is_job

    @property
    def wants_gpus(self) -> bool:
        """Whether the site's ranks use GPUs."""
        return self.site is not None and self.site.gpus_per_node > 0


# All checks in the order in which they are made: name -> check.
CHECKS: dict[str, Callable[[Subject], Finding]] = {}
Check = Callable[[Subject], Finding]


def check(group: str, name: str) -> Callable[[Check], Check]:
    """Register a check; an error within it becomes a warning and does not end the command."""

    def register(look: Check) -> Check:
        @functools.wraps(look)
        def run(subject: Subject) -> Finding:
            try:
                finding = look(subject)
            except NotNeededError as why:
                finding = Finding("", str(why), "not needed")
            except (OSError, RuntimeError) as error:
                text = f"this check failed: {error}"
                finding = warning(text, "nothing to do if a test job works")
            return replace(finding, kind=name, group=group)

        CHECKS[name] = run
        return run

    return register


def probe(python: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """Return the versions and backends of a Python's torch, imported in a separate process.

    Raises:
        RuntimeError: Something that measuring needs does not load.
    """
    printed = processes.output([*python, "-c", PROBE], PROBE_TIMEOUT_S, folder=folder)
    try:
        facts = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(
            f"{python[0]} printed {printed[-80:]!r} instead of its versions"
        ) from None
    assert isinstance(facts, dict)
    return facts


def torch_in_words(facts: Mapping[str, Any]) -> str:
    """Return the facts of `probe` as a phrase."""
    names = {"cuda": "CUDA", "rocm": "ROCm", "nccl": "NCCL"}
    built = [f"{name} {facts[key]}" for key, name in names.items() if facts[key]]
    built += ["gloo"] if facts["gloo"] else []
    gpus = f"{facts['gpus']} GPU(s)" if facts["gpus"] else "no GPU"
    return f"torch {facts['torch']} with {', '.join(built)}; {gpus} seen"


@check("This machine", "Python")
def python(subject: Subject) -> Finding:  # noqa: ARG001, every check is asked alike
    """Version and path of this Python."""
    return ok(f"{sys.version.split()[0]}, {sys.executable}")


@check("This machine", "lockstep run")
def measuring(subject: Subject) -> Finding:
    """Whether `lockstep run` can measure on this machine."""
    absent, _, action = launcher.missing_packages().partition("; ")
    if absent and subject.site is not None:
        raise NotNeededError(f"{absent}; the site's jobs use their own")
    if absent:
        return missing(absent, f"{action}, or use an image and a site file")
    try:
        return ok(torch_in_words(probe([sys.executable])))
    except RuntimeError as error:
        return missing(
            f"torch cannot be imported: {error}", "install a matching pair of torch and torchvision"
        )


@check("This machine", "GPUs")
def gpus(subject: Subject) -> Finding:
    """Which GPUs this machine has, and whether their driver answers."""
    if shutil.which("nvidia-smi"):
        try:
            names = [gpu.name for gpu in nvidia.gpus()]
        except RuntimeError as error:
            return warning(
                f"nvidia-smi fails: {error}", "ask the machine's support to repair the driver"
            )
        return ok(f"{len(names)} x {', '.join(sorted(set(names)))}")
    if Path("/dev/kfd").exists():
        return ok("AMD GPUs (/dev/kfd exists)")
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return warning(
            "/dev/nvidia0 exists, but nvidia-smi is not on PATH", "install the driver's tools"
        )
    if subject.wants_gpus:
        raise NotNeededError("this machine has no GPU; the site's nodes have them")
    raise NotNeededError("this machine has no GPU; ranks measure on the CPU")


@check("This machine", "Threads")
def threads(subject: Subject) -> Finding:
    """How many cores and threads this process may use."""
    cores, may_use = psutil.cpu_count() or 1, len(os.sched_getaffinity(0))
    wanted = subject.environ.get("OMP_NUM_THREADS")
    text = f"{may_use} of {cores} CPUs usable, OMP_NUM_THREADS {wanted or 'unset'}"
    if wanted is not None and not wanted.isdecimal():
        return warning(text, "set OMP_NUM_THREADS to a number, or unset it")
    if wanted is not None and int(wanted) > may_use:
        return warning(text, f"set OMP_NUM_THREADS to {may_use} or less, or unset it")
    if may_use < cores and "SLURM_JOB_ID" not in subject.environ:
        return warning(text, "start without taskset or the cgroup that hides the other CPUs")
    return ok(text)


@check("This machine", "Open files")
def open_files(subject: Subject) -> Finding:  # noqa: ARG001
    """How many files a process may open; DataLoader workers need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_OPEN_FILES:
        return ok(f"ulimit -n is {_limit(soft)}")
    goal = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    action = f'run ulimit -n {goal}; for the nodes set shell_before = "ulimit -n {goal}"'
    return warning(f"ulimit -n is {soft}, too low for many loader workers", action)


@check("This machine", "Locked memory")
def locked_memory(subject: Subject) -> Finding:
    """Whether ulimit allows to register memory with InfiniBand adapters."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    text = f"ulimit -l is {_limit(soft)}"
    if soft == resource.RLIM_INFINITY:
        return ok(text)
    names_fast = any(name.startswith(("ib", "hsn")) for name in named_interfaces(subject))
    if not (network.infiniband_ports() or names_fast):
        raise NotNeededError(f"{text}; only InfiniBand needs a higher limit")
    action = 'ask for memlock unlimited, or set shell_before = "ulimit -l unlimited"'
    return warning(f"{text}; NCCL cannot register buffers and uses sockets", action)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


@check("This machine", "Foreign packages")
def foreign_packages(subject: Subject) -> Finding:
    """Whether PYTHONPATH or ~/.local adds packages to those of the environment."""
    folder = Path(site_packages.getusersitepackages())
    if paths := subject.environ.get("PYTHONPATH"):
        action = "unset PYTHONPATH; Lockstep's jobs set their own"
        return warning(f"PYTHONPATH is set: {paths}", action)
    if "PYTHONNOUSERSITE" in subject.environ or not folder.is_dir():
        return ok("none from PYTHONPATH or ~/.local")
    num = len(list(folder.glob("*.dist-info")))
    if not num or not site_packages.ENABLE_USER_SITE:
        return ok("none visible to this Python; jobs set PYTHONNOUSERSITE")
    text = f"{num} packages in {folder} are visible to every Python of this version"
    return warning(text, "export PYTHONNOUSERSITE=1, as Lockstep's jobs do")


@check("This machine", "Clock")
def clock(subject: Subject) -> Finding:  # noqa: ARG001
    """Whether a time server synchronises this machine's clock."""
    read = getattr(ctypes.CDLL(None), "adjtimex", None)
    state = read(ctypes.create_string_buffer(SIZEOF_TIMEX)) if read else -1
    if state < 0:  # it may be closed to a container
        raise NotNeededError("this system does not report whether its clock is synchronised")
    if state == CLOCK_ERROR:
        action = "start chronyd or ntpd: Lockstep compares times of several nodes"
        return warning("no time server synchronises the clock", action)
    return ok("synchronised by a time server")


def interfaces(classes: Path = network.CLASSES) -> list[str]:
    """Return the network interfaces that may lead to other nodes, the fast ones first."""
    links = [
        link
        for link in network.interfaces(classes)
        if not (link.is_down or link.name.startswith(LOCAL))
    ]
    order = sorted(links, key=lambda link: (_rank(link.name), -(link.speed_gbit_per_s or 0)))
    return [link.name for link in order]


def _rank(name: str) -> int:
    return next((i for i, start in enumerate(FAST) if name.startswith(start)), len(FAST))


def named_interfaces(subject: Subject) -> list[str]:
    """Return the interfaces that the site names."""
    environ = subject.site.rank_environment() if subject.site else {}
    values = [environ.get(name, "") for name in INTERFACE_NAMES]
    # NCCL reads ^ as "none of these" and = as "exactly these"; a name is else a prefix.
    lists = [value.removeprefix("=").split(",") for value in values if not value.startswith("^")]
    named = (name.partition(":")[0] for names in lists for name in names)
    return list(dict.fromkeys(filter(None, named)))


@check("Network", "Interface")
def interface(subject: Subject) -> Finding:
    """Whether this machine has the interface that the site file names."""
    here, named = interfaces(), named_interfaces(subject)
    listed = ", ".join(here) or "only the loopback"
    absent = [n for n in named if not any(name.startswith(n) for name in [*here, "lo"])]
    if absent:
        text = f"the site file names {', '.join(absent)}, but this machine has {listed}"
        return warning(text, "name one of these, or check the nodes with --slurm")
    if named:
        return ok(f"{', '.join(named)} is here, as the site file names it")
    if here and here[0].startswith(FAST):
        return ok(f'{listed}; put interface = "{here[0]}" into the site file')
    return ok(listed)


@check("Network", "NCCL variables")
def nccl_variables(subject: Subject) -> Finding:
    """Whether the variables of NCCL and gloo exist, have valid values and reach the ranks."""
    set_before = _exported(subject.site.shell_before) if subject.site else {}
    in_site = subject.site.rank_environment() if subject.site else {}
    environ = dict(subject.environ) | set_before | in_site
    problems = variables.problems(environ)
    if problems:
        details = [f"{problem.message}; {problem.action}" for problem in problems]
        action = "correct the variables in the site's [env], or where they are exported"
        return warning(f"{len(problems)} problem(s)", action, *details)
    # What steers torch, but is neither handed on into an image nor in the site's [env].
    dropped = sorted(
        name
        for name in filter(steers_torch, set_before)
        if name not in in_site and not name.startswith(COMMUNICATION_PREFIXES)
    )
    if subject.site and subject.site.container and dropped:
        text = f"{', '.join(dropped)} of shell_before does not reach the image"
        return warning(text, "set it in the site's [env]")
    names = [name for name in environ if name.startswith(COMMUNICATION_PREFIXES)]
    if not names:
        raise NotNeededError("no variable is set")
    return ok(f"{len(names)} set, all valid")


def _exported(lines: str) -> dict[str, str]:
    """Return the variables that shell lines both set and export: name -> value as written."""
    names: set[str] = set()
    values: dict[str, str] = {}
    for line in lines.splitlines():
        words = [word.rstrip(";") for word in split_words(line)]
        if "export" in words:
            names |= {word.partition("=")[0] for word in words[words.index("export") :]}
        values |= dict(word.split("=", 1) for word in words if "=" in word)
    return {name: value for name, value in values.items() if name in names}


@check("Storage", "Data")
def data_storage(subject: Subject) -> Finding:
    """File system and free space of the training data."""
    if subject.data is None:
        raise NotNeededError("no --data given; built-in data are generated in memory or in scratch")
    return _data_finding(subject.data, "--data")


@check("Storage", "Scratch")
def scratch_storage(subject: Subject) -> Finding:
    """File system and free space of the site's scratch folder."""
    scratch = subject.site.scratch if subject.site else None
    if scratch is None:
        raise NotNeededError(
            "the site names no scratch; data files are written next to the results"
        )
    # It may name a variable that only a job has, or a disk that only a node has.
    if not Path(scratch).exists():
        raise NotNeededError(f"{scratch} does not exist here; the nodes may have it")
    return _data_finding(Path(scratch), "scratch")


def _data_finding(path: Path, what: str) -> Finding:
    if not path.exists():
        return missing(f"{path} does not exist", f"create the folder, or give another to {what}")
    _, text, is_good = _storage(path, path)
    if not is_good:
        action = "move data to a parallel file system or a local disk: loading is measured, too"
        return warning(text, action)
    return _enough(path, text)


@check("Storage", "Results")
def results_storage(subject: Subject) -> Finding:
    """Whether the results folder is writable, permanent, shared and has space."""
    wanted = subject.results
    path = next(p for p in (wanted.absolute(), *wanted.absolute().parents) if p.exists())
    kind, text, _ = _storage(path, wanted)
    try:
        skew_s = _clock_skew_s(path)
    except OSError as error:
        return missing(f"{path}: {error.strerror}", "give --to a writable folder")
    if kind in FLEETING:
        return warning(text, "give --to a folder that outlives this machine or container")
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        text = f"{text}; its clock differs by {skew_s:+.1f} s from this machine's"
        return warning(text, "ask for both clocks to be synchronised by a time server")
    finding = _enough(path, text)
    if finding.level == "ok" and subject.site is not None and kind in ON_ONE_MACHINE:
        text = f"{text}; the nodes see it only if this machine exports it"
        ask = f"check on a node: srun ls -d {shlex.quote(str(path))}"
        return warning(text, f"{ask}; otherwise give --to a folder on shared storage")
    return finding


def _clock_skew_s(folder: Path) -> float:
    """Return how far the file system's clock is ahead of this machine's, in s."""
    before = time.time()
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".lockstep-") as file:
        written = Path(file.name).stat().st_mtime
    after = time.time()
    # A kernel stamps files by its last tick, a little before now.
    return written - after if written > after else min(0.0, written - before)


def _enough(path: Path, text: str) -> Finding:
    if shutil.disk_usage(path).free < LEAST_FREE_BYTES:
        return warning(text, f"free at least {LEAST_FREE_BYTES // GB} GB, or use another folder")
    return ok(text)


def _storage(path: Path, wanted: Path) -> tuple[str, str, bool]:
    """Return the file system's type, a sentence about it, and whether it suits training data."""
    kind = file_system(path) or "unknown"
    meaning, is_good = STORAGE.get(kind, ("a type that Lockstep does not know", True))
    if kind.startswith("fuse"):  # s3fs, sshfs, rclone and their like
        meaning, is_good = "a FUSE file system, such as one for object storage", False
    free = f"{shutil.disk_usage(path).free / GB:.0f} GB free"
    return kind, f"{wanted}: {kind}, {meaning}; {free}", is_good
