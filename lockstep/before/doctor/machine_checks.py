"""The registry of all checks of `lockstep doctor`, and the checks of this machine."""

import json
import os
import re
import resource
import shlex
import shutil
import site as site_packages
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from lockstep.before.lint import variables
from lockstep.before.lint.shell import split_words
from lockstep.campaign import launcher
from lockstep.core import findings, processes
from lockstep.core.files import default_folder
from lockstep.core.processes import COMMUNICATION_PREFIXES, INTERFACE_NAMES
from lockstep.machine import network, nvidia
from lockstep.machine.network import file_system
from lockstep.slurm import associations
from lockstep.slurm import cluster as clusters
from lockstep.slurm.associations import Accounts
from lockstep.slurm.cluster import Cluster
from lockstep.slurm.site import Site

GB = 10**9
# The first import of torch from a cold, shared file system takes more than a minute.
PROBE_TIMEOUT_S = 300
# The import fails if torch and torchvision do not match; ranks need the other packages.
PROBE = """
import importlib.metadata as installed, json
import torch, torchvision, numpy, psutil, pytest, pytest_benchmark
nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
needs = [need for need in installed.requires("torch") or () if need.startswith("nvidia-nccl")]
print(json.dumps({
    "torch": torch.__version__,
    "pytest-benchmark": installed.version("pytest-benchmark"),
    "cuda": torch.version.cuda,
    "rocm": torch.version.hip,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
    "built_for_nccl": needs[0].partition("==")[2].partition(";")[0].strip() if needs else None,
    "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
    "gpus": torch.cuda.device_count(),
}))
"""
# Major version of CUDA -> that of the oldest driver that runs it, by table 1 of NVIDIA's
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
LEAST_FREE_BYTES = 2 * GB
LEAST_OPEN_FILES = 4096
# Preferred interfaces, fastest first: InfiniBand, Slingshot, then bonds of Ethernet links.
FAST = ("ib", "hsn", "bond")
# Beginnings of names of interfaces that lead to no other node.
LOCAL = ("lo", "docker", "br-", "veth", "virbr", "tun", "tap", "cni", "dummy", "ifb")
ON_ONE_MACHINE = ("ext4", "xfs", "btrfs", "zfs")
# type of file system -> description, and whether it is good for training data
STORAGE = {
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3"), ("a network file system", False)),
    **dict.fromkeys(
        ("lustre", "gpfs", "beegfs", "ceph", "wekafs"), ("a parallel file system", True)
    ),
    **dict.fromkeys(ON_ONE_MACHINE, ("a local disk", True)),
    **dict.fromkeys(("tmpfs", "ramfs"), ("memory", True)),
    "overlay": ("the writable layer of a container", False),
}
# File systems that disappear with the container or the machine.
FLEETING = ("overlay", "tmpfs", "ramfs")


@dataclass(frozen=True)
class Finding(findings.Finding):
    """The result of one check; its `kind` is the name of the check.

    Attributes:
        details: Further facts, a line each.
        group: Heading of the check in the list.
    """

    details: tuple[str, ...] = ()
    group: str = ""

    def record(self) -> dict[str, Any]:
        return {
            "group": self.group, "check": self.kind, "status": self.level, "says": self.text,
            "action": self.action or None, "details": self.details,
        }  # fmt: skip


def ok(text: str, *details: str) -> Finding:
    return Finding("", text, "ok", details=details)


def warning(text: str, action: str, *details: str) -> Finding:
    return Finding("", text, "warning", action, details=details)


def missing(text: str, action: str, *details: str) -> Finding:
    return Finding("", text, "missing", action, details=details)


class NotNeededError(Exception):
    """A check does not apply here; the text is the reason."""


@dataclass(frozen=True)
class Subject:
    """The machine, folders and site to check.

    Attributes:
        data: Folder of training data, or None.
        asks_nodes: Whether to start a small job on two nodes.
    """

    environ: Mapping[str, str]
    results: Path
    site: Site | None = None
    data: Path | None = None
    asks_nodes: bool = False

    @cached_property
    def slurm(self) -> Cluster | RuntimeError:
        try:
            return clusters.read()
        except RuntimeError as error:
            return error

    @cached_property
    def accounts(self) -> Accounts:
        assert isinstance(self.slurm, Cluster)
        return associations.read(self.slurm.name)

    @property
    def wants_gpus(self) -> bool:
        return self.site is not None and self.site.gpus_per_node > 0


Check = Callable[[Subject], Finding]
# name -> check, and whether it may take half a minute or more; in the order of the checks
CHECKS: dict[str, tuple[Check, bool]] = {}


def check(group: str, name: str, *, is_long: bool = False) -> Callable[[Check], Check]:
    """Register a check; an error in the check becomes a warning and does not end the command."""

    def register(look: Check) -> Check:
        def run(subject: Subject) -> Finding:
            try:
                finding = look(subject)
            except NotNeededError as why:
                finding = Finding("", str(why), "not needed")
            except (OSError, RuntimeError) as error:
                text = f"the check {name} could not run: {error}"
                finding = warning(
                    text, "run a small test job; if it succeeds, ignore this failed check"
                )
            return replace(finding, kind=name, group=group)

        CHECKS[name] = run, is_long
        return run

    return register


def probe(python: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """Return the versions and backends of a Python's torch, read in a separate process."""
    printed = processes.output([*python, "-c", PROBE], PROBE_TIMEOUT_S, folder=folder)
    try:
        facts = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError):
        text = f"{python[0]} printed {printed[-80:]!r} instead of the versions of its packages"
        raise RuntimeError(text) from None
    assert isinstance(facts, dict)
    return facts


def torch_in_words(facts: Mapping[str, Any]) -> str:
    names = {"cuda": "CUDA", "rocm": "ROCm", "nccl": "NCCL"}
    built = [f"{name} {facts[key]}" for key, name in names.items() if facts[key]]
    built += ["gloo"] if facts["gloo"] else []
    gpus = f"{facts['gpus']} GPU(s)" if facts["gpus"] else "no GPU"
    version, backends = facts["torch"], ", ".join(built) or "no backend"
    return f"torch {version} with {backends}; torch sees {gpus}"


def judge_versions(facts: Mapping[str, Any], *details: str) -> Finding:
    """Return whether this machine's driver and the loaded NCCL suit the torch of `probe`."""
    text = torch_in_words(facts)
    cuda = str(facts["cuda"]).partition(".")[0]
    drivers: list[str] = []
    with suppress(RuntimeError):  # without nvidia-smi there is no driver to judge
        drivers = [gpu.driver or "" for gpu in nvidia.gpus()]
    for driver in drivers:
        major = driver.partition(".")[0]
        if major.isdecimal() and int(major) < LEAST_DRIVER.get(cuda, 0):
            least = f"{LEAST_DRIVER[cuda]} or newer"
            reason = (
                f"CUDA {cuda} needs NVIDIA driver {least}, but this machine has driver {driver}"
            )
            action = (
                "ask the machine's support for a newer NVIDIA driver, or use a torch that is "
                "built for an older CUDA"
            )
            return warning(f"{text}; {reason}", action)
    loaded, built_for = facts["nccl"], facts.get("built_for_nccl")
    if loaded and built_for and _numbers(loaded) < _numbers(built_for):
        action = "remove the older NCCL from LD_LIBRARY_PATH and LD_PRELOAD"
        reason = f"torch was built for NCCL {built_for}, but loads the older NCCL {loaded}"
        return warning(f"{text}; {reason}", action)
    return ok(text, *details)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


@check("This machine", "lockstep run", is_long=True)
def local_torch(subject: Subject) -> Finding:
    problem, _, action = launcher.missing_packages().partition("; ")
    if problem and subject.site is not None:
        raise NotNeededError(f"{problem}; the site's jobs use another Python")
    if problem:
        return missing(
            problem, f"{action}, or measure in an image: set container.image in a site file"
        )
    try:
        facts = probe([sys.executable])
    except RuntimeError as error:
        action = "install versions of torch and torchvision that match"
        return missing(f"torch cannot be imported: {error}", action)
    return judge_versions(facts, f"Python {sys.version.split()[0]}, {sys.executable}")


@check("This machine", "GPUs")
def gpus(subject: Subject) -> Finding:
    if shutil.which("nvidia-smi"):
        try:
            names = [gpu.name for gpu in nvidia.gpus()]
        except RuntimeError as error:
            action = "ask the machine's support to repair the driver"
            return warning(f"nvidia-smi fails: {error}", action)
        return ok(f"{len(names)} x {', '.join(sorted(set(names)))}")
    if Path("/dev/kfd").exists():
        return ok("AMD GPUs (/dev/kfd exists)")
    if any(Path("/dev").glob("nvidia[0-9]*")):
        text = "/dev/nvidia* exists, but nvidia-smi is not on PATH"
        return warning(text, "install the driver's tools, which include nvidia-smi")
    if subject.wants_gpus:
        raise NotNeededError("this machine has no GPU, but the site's nodes have GPUs")
    raise NotNeededError("this machine has no GPU, so ranks measure on the CPU")


@check("This machine", "Threads")
def threads(subject: Subject) -> Finding:
    cores, may_use = psutil.cpu_count() or 1, len(os.sched_getaffinity(0))
    wanted = subject.environ.get("OMP_NUM_THREADS")
    setting = wanted or "unset"
    text = f"{may_use} of {cores} CPUs are usable; OMP_NUM_THREADS is {setting}"
    if wanted is not None and not (wanted.isdecimal() and int(wanted) <= may_use):
        return warning(text, f"set OMP_NUM_THREADS to {may_use} or less, or unset it")
    if may_use < cores and "SLURM_JOB_ID" not in subject.environ:
        action = "start Lockstep without the taskset or cgroup that hides the other CPUs"
        return warning(text, action)
    return ok(text)


@check("This machine", "Open files")
def open_files(subject: Subject) -> Finding:  # noqa: ARG001
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_OPEN_FILES:
        return ok(f"ulimit -n is {_limit(soft)}")
    goal = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    action = (
        f'run ulimit -n {goal} in your shell, and for jobs set shell_before = "ulimit -n {goal}" '
        "in the site file"
    )
    return warning(f"ulimit -n is {soft}, which is too low for many loader workers", action)


@check("This machine", "Locked memory")
def locked_memory(subject: Subject) -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limit = _limit(soft)
    if soft == resource.RLIM_INFINITY:
        return ok(f"ulimit -l is {limit}")
    names_fast = any(name.startswith(("ib", "hsn")) for name in named_interfaces(subject))
    if not (network.infiniband_ports() or names_fast):
        raise NotNeededError(f"ulimit -l is {limit}; only InfiniBand needs a higher limit")
    action = (
        "ask the cluster's support for unlimited locked memory, or set shell_before = "
        '"ulimit -l unlimited" in the site file'
    )
    text = f"ulimit -l is {limit}, so NCCL cannot register buffers and uses sockets"
    return warning(text, action)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


@check("This machine", "Foreign packages")
def foreign_packages(subject: Subject) -> Finding:
    folder = Path(site_packages.getusersitepackages())
    if paths := subject.environ.get("PYTHONPATH"):
        action = "unset PYTHONPATH; Lockstep's jobs set PYTHONPATH themselves"
        return warning(f"PYTHONPATH is set: {paths}", action)
    num = len(list(folder.glob("*.dist-info"))) if site_packages.ENABLE_USER_SITE else 0
    if "PYTHONNOUSERSITE" in subject.environ or not num:
        return ok("Python uses no packages from PYTHONPATH or ~/.local")
    text = f"every Python of this version also imports from {folder}, which holds {num} packages"
    return warning(
        text, "run export PYTHONNOUSERSITE=1 in your shell; Lockstep's jobs do this themselves"
    )


def interfaces(classes: Path = network.CLASSES) -> list[str]:
    """Return the network interfaces that may lead to other nodes, the fastest first."""
    links = [
        link
        for link in network.interfaces(classes)
        if not (link.is_down or link.name.startswith(LOCAL))
    ]
    links.sort(key=lambda link: -(link.speed_gbit_per_s or 0))
    links.sort(key=lambda link: [not link.name.startswith(start) for start in FAST])
    return [link.name for link in links]


def named_interfaces(subject: Subject) -> list[str]:
    environ = subject.site.rank_environment() if subject.site else {}
    values = [environ.get(name, "") for name in INTERFACE_NAMES]
    # For NCCL ^ excludes interfaces, and = means exact names; otherwise a name is a prefix.
    lists = [value.removeprefix("=").split(",") for value in values if not value.startswith("^")]
    named = (name.partition(":")[0] for names in lists for name in names)
    return list(dict.fromkeys(filter(None, named)))


@check("Network", "Interface")
def interface(subject: Subject) -> Finding:
    here, named = interfaces(), named_interfaces(subject)
    interfaces_here = ", ".join(here) or "only the loopback interface"
    absent = [n for n in named if not any(name.startswith(n) for name in [*here, "lo"])]
    if absent:
        names = ", ".join(absent)
        text = f"the site file names the interfaces {names}, but this machine has {interfaces_here}"
        action = (
            "set interface in the site file to an interface of the nodes, or check the nodes "
            "with lockstep doctor --slurm"
        )
        return warning(text, action)
    if named:
        names = ", ".join(named)
        return ok(f"this machine has the interfaces {names}, which the site file names")
    if here and here[0].startswith(FAST):
        return ok(
            f'this machine has {interfaces_here}; set interface = "{here[0]}" in the site file'
        )
    return ok(f"this machine has {interfaces_here}")


@check("Network", "NCCL variables")
def nccl_variables(subject: Subject) -> Finding:
    environ = dict(subject.environ)
    if subject.site:
        for line in subject.site.shell_before.splitlines():
            words = [word.rstrip(";") for word in split_words(line)]
            if "export" in words:
                environ |= dict(word.split("=", 1) for word in words if "=" in word)
        environ |= subject.site.rank_environment()
    problems = variables.problems(environ)
    if problems:
        details = [f"{problem.message}; {problem.action}" for problem in problems]
        action = "correct these variables under [env] in the site file, or in your shell"
        return warning(f"{len(problems)} problem(s) with variables", action, *details)
    names = [name for name in environ if name.startswith(COMMUNICATION_PREFIXES)]
    if not names:
        raise NotNeededError("no environment variable of NCCL, Gloo or torch is set")
    num_set = len(names)
    return ok(f"{num_set} variable(s) of NCCL, Gloo or torch are set, all to valid values")


@check("Storage", "Data")
def data_storage(subject: Subject) -> Finding:
    scratch = subject.site.scratch if subject.site else None
    path = subject.data or (Path(scratch) if scratch else default_folder("data"))
    if not path.exists() and not (subject.data or scratch):
        raise NotNeededError(f"the default folder {path} does not exist, and no --data is given")
    if not path.exists() and subject.data:
        return missing(
            f"{path} does not exist", "create the folder, or choose another folder with --data"
        )
    if not path.exists():  # perhaps a variable of jobs, or a disk of the nodes
        raise NotNeededError(f"the site's scratch folder {path} does not exist on this machine")
    _, text, is_good = _storage(path, path)
    if not is_good:
        action = "move the data to a parallel file system or a local disk, which load faster"
        return warning(text, action)
    return _enough(path, text)


@check("Storage", "Results")
def results_storage(subject: Subject) -> Finding:
    wanted = subject.results
    path = next(p for p in (wanted.absolute(), *wanted.absolute().parents) if p.exists())
    kind, storage, _ = _storage(path, wanted)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        return missing(f"{path}: {error.strerror}", "choose a writable results folder with --to")
    if kind in FLEETING:
        action = (
            "choose with --to a results folder that remains after this machine or container has "
            "ended"
        )
        return warning(storage, action)
    finding = _enough(path, storage)
    if finding.level == "ok" and subject.site is not None and kind in ON_ONE_MACHINE:
        text = f"{storage}; the cluster's nodes see this folder only if this machine exports it"
        folder = shlex.quote(str(path))
        action = (
            f"run srun ls -d {folder}; if this fails, choose a folder on shared storage with --to"
        )
        return warning(text, action)
    return finding


def _enough(path: Path, text: str) -> Finding:
    if shutil.disk_usage(path).free < LEAST_FREE_BYTES:
        least_gb = LEAST_FREE_BYTES // GB
        action = f"free {least_gb} GB on the file system of {path}, or choose another folder"
        return warning(text, action)
    return ok(text)


def _storage(path: Path, wanted: Path) -> tuple[str, str, bool]:
    """Return a file system's type, a sentence, and whether it is good for training data."""
    kind = file_system(path) or "unknown"
    meaning, is_good = STORAGE.get(kind, ("a file system that Lockstep does not know", True))
    if kind.startswith("fuse"):  # such as s3fs, sshfs or rclone
        meaning, is_good = "a FUSE file system, such as one for object storage", False
    free = f"{shutil.disk_usage(path).free / GB:.0f} GB free"
    return kind, f"{wanted}: {kind}, {meaning}; {free}", is_good
