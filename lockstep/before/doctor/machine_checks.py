"""How a check of `lockstep doctor` is registered, and those of the machine that it runs on."""

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
# Importing both shows a pair that does not fit; the rest is what the ranks will speak with.
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
# What the kernel's clock reads while no time server disciplines it: adjtimex(2), TIME_ERROR.
CLOCK_ERROR = 5
SIZEOF_TIMEX = 512  # 208 bytes in Linux; more does no harm
# Found first wherever they are: InfiniBand, Slingshot, then bonds of Ethernet links.
FAST = ("ib", "hsn", "bond")
# Names of interfaces that lead to no other node.
LOCAL = ("lo", "docker", "br-", "veth", "virbr", "tun", "tap", "cni", "dummy", "ifb")
ON_ONE_MACHINE = ("ext4", "xfs", "btrfs", "zfs")
# type of file system -> what it is, and whether training data is well kept there
STORAGE = {
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3"), ("a network file system", False)),
    **dict.fromkeys(
        ("lustre", "gpfs", "beegfs", "ceph", "wekafs"), ("a parallel file system", True)
    ),
    "overlay": ("the writable layer of a container", False),
    **dict.fromkeys(("tmpfs", "ramfs"), ("memory", True)),
    **dict.fromkeys(ON_ONE_MACHINE, ("a local disk", True)),
}
# What is gone when a container or a machine ends.
FLEETING = ("overlay", "tmpfs", "ramfs")


@dataclass(frozen=True)
class Finding(findings.Finding):
    """What a check has found; its kind is the name of the check.

    Attributes:
        details: Further facts, a line each.
        group: What the check is listed under.
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
    """Return a finding that is as it should be."""
    return Finding("", text, "ok", details=details)


def warning(text: str, action: str, *details: str) -> Finding:
    """Return a finding that makes measuring slower or less certain."""
    return Finding("", text, "warning", action, details=details)


def missing(text: str, action: str, *details: str) -> Finding:
    """Return a finding that keeps jobs or launches from running."""
    return Finding("", text, "missing", action, details=details)


class NotNeededError(Exception):
    """What a check looks at does not matter here; the text says why."""


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
        """The cluster as Slurm describes it, or why it does not."""
        try:
            return clusters.read()
        except RuntimeError as error:
            return error

    @cached_property
    def accounts(self) -> Accounts:
        """What the user may charge on the cluster."""
        assert isinstance(self.slurm, Cluster)
        return associations.read(self.slurm.name)

    @property
    def is_login_node(self) -> bool:
        """Whether this only sends jobs: a site's Slurm answers, and this is no job of it."""
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
    """Register a check; what it cannot look at is a warning, and no end of the command."""

    def register(look: Check) -> Check:
        @functools.wraps(look)
        def run(subject: Subject) -> Finding:
            try:
                finding = look(subject)
            except NotNeededError as why:
                finding = Finding("", str(why), "not needed")
            except (OSError, RuntimeError) as error:
                text = f"it cannot be checked: {error}"
                finding = warning(text, "nothing to do if a trial job works")
            return replace(finding, kind=name, group=group)

        CHECKS[name] = run
        return run

    return register


def probe(python: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """Return what a Python can measure with, found by importing it in a process of its own.

    Raises:
        RuntimeError: Something that measuring needs does not load.
    """
    printed = processes.output([*python, "-c", PROBE], PROBE_TIMEOUT_S, folder=folder)
    try:
        facts = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"{python[0]} printed {printed[-80:]!r} and no facts") from None
    assert isinstance(facts, dict)
    return facts


def torch_in_words(facts: Mapping[str, Any]) -> str:
    """Return a probe's facts as a phrase."""
    names = {"cuda": "CUDA", "rocm": "ROCm", "nccl": "NCCL"}
    built = [f"{name} {facts[key]}" for key, name in names.items() if facts[key]]
    built += ["gloo"] if facts["gloo"] else []
    gpus = f"{facts['gpus']} GPU(s)" if facts["gpus"] else "no GPU"
    return f"torch {facts['torch']} with {', '.join(built)}; {gpus} seen"


@check("This machine", "Python")
def python(subject: Subject) -> Finding:  # noqa: ARG001, every check is asked alike
    """Which Python runs this."""
    return ok(f"{sys.version.split()[0]}, {sys.executable}")


@check("This machine", "lockstep run")
def measuring(subject: Subject) -> Finding:
    """Whether `lockstep run` can measure on this machine."""
    absent, _, action = launcher.missing_packages().partition("; ")
    if absent and subject.site is not None:
        raise NotNeededError(f"{absent}; the site's jobs bring their own")
    if absent:
        return missing(absent, f"{action}, or use an image and a site file")
    try:
        return ok(torch_in_words(probe([sys.executable])))
    except RuntimeError as error:
        return missing(f"torch does not load: {error}", "install torch and torchvision as a pair")


@check("This machine", "GPUs")
def gpus(subject: Subject) -> Finding:
    """Which GPUs this machine has, and whether their driver answers."""
    if shutil.which("nvidia-smi"):
        try:
            names = [gpu.name for gpu in nvidia.gpus()]
        except RuntimeError as error:
            return warning(f"nvidia-smi fails: {error}", "ask for the driver to be repaired")
        return ok(f"{len(names)} x {', '.join(sorted(set(names)))}")
    if Path("/dev/kfd").exists():
        return ok("AMD GPUs, by /dev/kfd")
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return warning("/dev/nvidia0 is there, nvidia-smi is not", "install the driver's tools")
    if subject.wants_gpus:
        raise NotNeededError("none on this machine; the site's nodes have them")
    raise NotNeededError("none; ranks measure on the CPU")


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
        return warning(text, "leave taskset or the cgroup that keeps the other CPUs")
    return ok(text)


@check("This machine", "Open files")
def open_files(subject: Subject) -> Finding:  # noqa: ARG001
    """How many files a process may open; DataLoader workers need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_OPEN_FILES:
        return ok(f"ulimit -n is {_limit(soft)}")
    goal = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    action = f'ulimit -n {goal}, on the nodes shell_before = "ulimit -n {goal}"'
    return warning(f"ulimit -n is {soft}; many loader workers need more", action)


@check("This machine", "Locked memory")
def locked_memory(subject: Subject) -> Finding:
    """Whether memory can be registered with InfiniBand adapters."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    text = f"ulimit -l is {_limit(soft)}"
    if soft == resource.RLIM_INFINITY:
        return ok(text)
    names_fast = any(name.startswith(("ib", "hsn")) for name in named_interfaces(subject))
    if not (network.infiniband_ports() or names_fast):
        raise NotNeededError(f"{text}; only InfiniBand needs more")
    action = 'ask for memlock unlimited, or shell_before = "ulimit -l unlimited"'
    return warning(f"{text}; NCCL cannot register buffers and uses sockets", action)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


@check("This machine", "Foreign packages")
def foreign_packages(subject: Subject) -> Finding:
    """Whether packages from elsewhere come before those that are meant."""
    folder = Path(site_packages.getusersitepackages())
    if paths := subject.environ.get("PYTHONPATH"):
        action = "unset PYTHONPATH; Lockstep's jobs set their own"
        return warning(f"PYTHONPATH is set: {paths}", action)
    if "PYTHONNOUSERSITE" in subject.environ or not folder.is_dir():
        return ok("none from PYTHONPATH or ~/.local")
    num = len(list(folder.glob("*.dist-info")))
    if not num or not site_packages.ENABLE_USER_SITE:
        return ok("none that this Python sees; jobs set PYTHONNOUSERSITE")
    text = f"{num} packages of {folder} are seen by every Python of this version"
    return warning(text, "export PYTHONNOUSERSITE=1; Lockstep's jobs do")


@check("This machine", "Clock")
def clock(subject: Subject) -> Finding:  # noqa: ARG001
    """Whether a time server keeps this machine's clock."""
    read = getattr(ctypes.CDLL(None), "adjtimex", None)
    state = read(ctypes.create_string_buffer(SIZEOF_TIMEX)) if read else -1
    if state < 0:  # it may be closed to a container
        raise NotNeededError("this system does not say whether its clock is kept")
    if state == CLOCK_ERROR:
        action = "start chronyd or ntpd; times of several nodes are compared"
        return warning("the kernel knows of no time server", action)
    return ok("kept by a time server")


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
    """Whether the interface that the site names is here."""
    here, named = interfaces(), named_interfaces(subject)
    listed = ", ".join(here) or "none but the loopback"
    absent = [n for n in named if not any(name.startswith(n) for name in [*here, "lo"])]
    if absent:
        text = f"no {', '.join(absent)} here, which the site names; there is {listed}"
        return warning(text, "name one of them, or see with --slurm whether the nodes have it")
    if named:
        return ok(f"{', '.join(named)} is here, as the site says")
    if here and here[0].startswith(FAST):
        return ok(f'{listed}; put interface = "{here[0]}" into the site file')
    return ok(listed)


@check("Network", "NCCL variables")
def nccl_variables(subject: Subject) -> Finding:
    """Whether the variables of NCCL and gloo exist, can have their values and reach the ranks."""
    set_before = _exported(subject.site.shell_before) if subject.site else {}
    in_site = subject.site.rank_environment() if subject.site else {}
    environ = dict(subject.environ) | set_before | in_site
    problems = variables.problems(environ)
    if problems:
        details = [f"{problem.message}; {problem.action}" for problem in problems]
        action = "correct them in the site's [env], or where they are exported"
        return warning(f"{len(problems)} doubtful", action, *details)
    # What steers torch, but is neither handed on into an image nor in the site's [env].
    dropped = sorted(
        name
        for name in filter(steers_torch, set_before)
        if name not in in_site and not name.startswith(COMMUNICATION_PREFIXES)
    )
    if subject.site and subject.site.container and dropped:
        text = f"the image does not get {', '.join(dropped)} of shell_before"
        return warning(text, "set them in the site's [env]")
    names = [name for name in environ if name.startswith(COMMUNICATION_PREFIXES)]
    if not names:
        raise NotNeededError("none is set")
    return ok(f"{len(names)} set, all known")


def _exported(lines: str) -> dict[str, str]:
    """Return the variables that shell lines export and set, with the values that are written."""
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
    """Where training data lies."""
    if subject.data is None:
        raise NotNeededError("no --data given; the built-in data are made in memory or in scratch")
    return _data_finding(subject.data, "--data")


@check("Storage", "Scratch")
def scratch_storage(subject: Subject) -> Finding:
    """Where the site's jobs keep data files."""
    scratch = subject.site.scratch if subject.site else None
    if scratch is None:
        raise NotNeededError("none is named; data files lie beside the results")
    # It may name a variable that only a job has, or a disk that only a node has.
    if not Path(scratch).exists():
        raise NotNeededError(f"{scratch} is not on this machine; the nodes may have it")
    return _data_finding(Path(scratch), "scratch")


def _data_finding(path: Path, what: str) -> Finding:
    if not path.exists():
        return missing(f"{path} does not exist", f"make the folder, or give another to {what}")
    _, text, is_good = _storage(path, path)
    if not is_good:
        action = "put data on a parallel file system or a local disk: the loader measures it too"
        return warning(text, action)
    return _enough(path, text)


@check("Storage", "Results")
def results_storage(subject: Subject) -> Finding:
    """Where results go: whether one can write there, and whether it stays."""
    wanted = subject.results
    path = next(p for p in (wanted.absolute(), *wanted.absolute().parents) if p.exists())
    kind, text, _ = _storage(path, wanted)
    try:
        skew_s = _clock_skew_s(path)
    except OSError as error:
        return missing(f"{path}: {error.strerror}", "give --to a folder that you may write to")
    if kind in FLEETING:
        return warning(text, "give --to a folder that stays when this machine ends")
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        text = f"{text}; its clock is {skew_s:+.1f} s from this machine's"
        return warning(text, "ask for both clocks to be kept by a time server")
    finding = _enough(path, text)
    if finding.level == "ok" and subject.site is not None and kind in ON_ONE_MACHINE:
        text = f"{text}; nodes see it only if this machine shares it with them"
        ask = f"ask one: srun ls -d {shlex.quote(str(path))}"
        return warning(text, f"{ask}; else give --to a folder all share")
    return finding


def _clock_skew_s(folder: Path) -> float:
    """Return by how many seconds the file system's clock is ahead of this machine's."""
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
    """Return the type of the file system, all of it in words, and whether data is well kept."""
    kind = file_system(path) or "unknown"
    meaning, is_good = STORAGE.get(kind, ("of a type not known here", True))
    if kind.startswith("fuse"):  # s3fs, sshfs, rclone and their like
        meaning, is_good = "a file system by FUSE, as for objects", False
    free = f"{shutil.disk_usage(path).free / GB:.0f} GB free"
    return kind, f"{wanted}: {kind}, {meaning}; {free}", is_good
