"""Checks of the machine that the command runs on: Python, GPUs, limits, network, storage."""

import ctypes
import os
import resource
import shlex
import shutil
import site as site_packages
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psutil

from lockstep.before.doctor.checks import (
    GB,
    Finding,
    Subject,
    missing,
    not_needed,
    ok,
    probe,
    torch_in_words,
    warning,
)
from lockstep.core.processes import INTERFACE_NAMES
from lockstep.machine import network, nvidia
from lockstep.machine.network import file_system

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
    "nfs": ("a network file system", False),
    "nfs4": ("a network file system", False),
    "cifs": ("a network file system", False),
    "smb3": ("a network file system", False),
    "lustre": ("a parallel file system", True),
    "gpfs": ("a parallel file system", True),
    "beegfs": ("a parallel file system", True),
    "ceph": ("a parallel file system", True),
    "wekafs": ("a parallel file system", True),
    "overlay": ("the writable layer of a container", False),
    "tmpfs": ("memory", True),
    "ramfs": ("memory", True),
    **dict.fromkeys(ON_ONE_MACHINE, ("a local disk", True)),
}
# What is gone when a container or a machine ends.
FLEETING = ("overlay", "tmpfs", "ramfs")


def python(subject: Subject) -> Finding:  # noqa: ARG001, every check is asked alike
    """Which Python runs this."""
    return ok(f"{sys.version.split()[0]}, {sys.executable}")


def measuring(subject: Subject) -> Finding:
    """Whether `lockstep run` can measure on this machine."""
    needed = ("torch", "torchvision", "pytest", "pytest_benchmark")
    absent = [name for name in needed if find_spec(name) is None]
    if absent and subject.site is not None:
        return not_needed(f"no {', '.join(absent)} here; the site's jobs bring their own")
    if absent:
        return missing(
            f"no {', '.join(absent)} for this Python",
            "pip install '/path/to/checkout[bench]', or use an image and a site file",
        )
    try:
        return ok(torch_in_words(probe([sys.executable])))
    except RuntimeError as error:
        return missing(f"torch does not load: {error}", "install torch and torchvision as a pair")


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
        return not_needed("none on this machine; the site's nodes have them")
    return not_needed("none; ranks measure on the CPU")


def threads(subject: Subject) -> Finding:
    """How many cores and threads this process may use."""
    cores, may_use = psutil.cpu_count() or 1, len(os.sched_getaffinity(0))
    wanted = subject.environ.get("OMP_NUM_THREADS")
    says = f"{may_use} of {cores} CPUs usable, OMP_NUM_THREADS {wanted or 'unset'}"
    if wanted is not None and not wanted.isdecimal():
        return warning(says, "set OMP_NUM_THREADS to a number, or unset it")
    if wanted is not None and int(wanted) > may_use:
        return warning(says, f"set OMP_NUM_THREADS to {may_use} or less, or unset it")
    if may_use < cores and "SLURM_JOB_ID" not in subject.environ:
        return warning(says, "leave taskset or the cgroup that keeps the other CPUs")
    return ok(says)


def open_files(subject: Subject) -> Finding:  # noqa: ARG001
    """How many files a process may open; DataLoader workers need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_OPEN_FILES:
        return ok(f"ulimit -n is {_limit(soft)}")
    goal = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    return warning(
        f"ulimit -n is {soft}; many loader workers need more",
        f'ulimit -n {goal}, on the nodes shell_before = "ulimit -n {goal}"',
    )


def locked_memory(subject: Subject) -> Finding:
    """Whether memory can be registered with InfiniBand adapters."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    says = f"ulimit -l is {_limit(soft)}"
    if soft == resource.RLIM_INFINITY:
        return ok(says)
    if not network.infiniband_ports() and not (
        any(name.startswith(("ib", "hsn")) for name in named_interfaces(subject))
    ):
        return not_needed(f"{says}; only InfiniBand needs more")
    return warning(
        f"{says}; NCCL cannot register buffers and uses sockets",
        'ask for memlock unlimited, or shell_before = "ulimit -l unlimited"',
    )


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def foreign_packages(subject: Subject) -> Finding:
    """Whether packages from elsewhere come before those that are meant."""
    folder = Path(site_packages.getusersitepackages())
    if paths := subject.environ.get("PYTHONPATH"):
        return warning(
            f"PYTHONPATH is set: {paths}", "unset PYTHONPATH; Lockstep's jobs set their own"
        )
    if "PYTHONNOUSERSITE" in subject.environ or not folder.is_dir():
        return ok("none from PYTHONPATH or ~/.local")
    num = len(list(folder.glob("*.dist-info")))
    if not num or not site_packages.ENABLE_USER_SITE:
        return ok("none that this Python sees; jobs set PYTHONNOUSERSITE")
    return warning(
        f"{num} packages of {folder} are seen by every Python of this version",
        "export PYTHONNOUSERSITE=1; Lockstep's jobs do",
    )


def clock(subject: Subject) -> Finding:  # noqa: ARG001
    """Whether a time server keeps this machine's clock."""
    read = getattr(ctypes.CDLL(None), "adjtimex", None)
    state = read(ctypes.create_string_buffer(SIZEOF_TIMEX)) if read else -1
    if state < 0:  # it may be closed to a container
        return not_needed("this system does not say whether its clock is kept")
    if state == CLOCK_ERROR:
        return warning(
            "the kernel knows of no time server",
            "start chronyd or ntpd; times of several nodes are compared",
        )
    return ok("kept by a time server")


def interfaces(classes: Path = network.CLASSES) -> list[str]:
    """Return the network interfaces that may lead to other nodes, the fast ones first."""
    links = [
        link
        for link in network.interfaces(classes)
        if (not link.is_down and (not link.name.startswith(LOCAL)))
    ]
    order = sorted(links, key=lambda link: (_rank(link.name), -(link.speed_gbit_per_s or 0)))
    return [link.name for link in order]


def _rank(name: str) -> int:
    return next((i for i, start in enumerate(FAST) if name.startswith(start)), len(FAST))


def named_interfaces(subject: Subject) -> list[str]:
    """Return the interfaces that the site names."""
    site = subject.site
    if site is None:
        return []
    environ = site.rank_environment()
    values = [environ.get(name, "") for name in INTERFACE_NAMES]
    # NCCL reads ^ as "none of these" and = as "exactly these"; a name is else a prefix.
    lists = [value.removeprefix("=").split(",") for value in values if not value.startswith("^")]
    named = (name.partition(":")[0] for names in lists for name in names)
    return list(dict.fromkeys(filter(None, named)))


def interface(subject: Subject) -> Finding:
    """Whether the interface that the site names is here."""
    here, named = interfaces(), named_interfaces(subject)
    listed = ", ".join(here) or "none but the loopback"
    everything = [*here, "lo"]
    absent = [n for n in named if not any(name.startswith(n) for name in everything)]
    if absent:
        return warning(
            f"no {', '.join(absent)} here, which the site names; there is {listed}",
            "name one of them, or see with --slurm whether the nodes have it",
        )
    if named:
        return ok(f"{', '.join(named)} is here, as the site says")
    if here and _rank(here[0]) < len(FAST):
        return ok(f'{listed}; put interface = "{here[0]}" into the site file')
    return ok(listed)


def data_storage(subject: Subject) -> Finding:
    """Where training data lies."""
    if subject.data is None:
        return not_needed("no --data given; the built-in data are made in memory or in scratch")
    return _data_finding(subject.data, "--data")


def scratch_storage(subject: Subject) -> Finding:
    """Where the site's jobs keep data files."""
    scratch = subject.site.scratch if subject.site else None
    if scratch is None:
        return not_needed("none is named; data files lie beside the results")
    # It may name a variable that only a job has, or a disk that only a node has.
    if not Path(scratch).exists():
        return not_needed(f"{scratch} is not on this machine; the nodes may have it")
    return _data_finding(Path(scratch), "scratch")


def _data_finding(path: Path, what: str) -> Finding:
    if not path.exists():
        return missing(f"{path} does not exist", f"make the folder, or give another to {what}")
    kind, meaning, is_good = _storage(path)
    says = f"{path}: {kind}, {meaning}; {_free(path)}"
    if not is_good:
        return warning(
            says, "put data on a parallel file system or a local disk: the loader measures it too"
        )
    return _enough(path, says)


def results_storage(subject: Subject) -> Finding:
    """Where results go: whether one can write there, and whether it stays."""
    path = _existing(subject.results)
    kind, meaning, _ = _storage(path)
    says = f"{subject.results}: {kind}, {meaning}; {_free(path)}"
    try:
        skew_s = _clock_skew_s(path)
    except OSError as error:
        return missing(f"{path}: {error.strerror}", "give --to a folder that you may write to")
    if kind in FLEETING:
        return warning(says, "give --to a folder that stays when this machine ends")
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        return warning(
            f"{says}; its clock is {skew_s:+.1f} s from this machine's",
            "ask for both clocks to be kept by a time server",
        )
    finding = _enough(path, says)
    if finding.status == "ok" and subject.site is not None and kind in ON_ONE_MACHINE:
        return warning(
            f"{says}; nodes see it only if this machine shares it with them",
            f"ask one: srun ls -d {shlex.quote(str(path))}; else give --to a folder all share",
        )
    return finding


def _existing(path: Path) -> Path:
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def _clock_skew_s(folder: Path) -> float:
    """Return by how many seconds the file system's clock is ahead of this machine's."""
    before = time.time()
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".lockstep-") as file:
        written = Path(file.name).stat().st_mtime
    after = time.time()
    # A kernel stamps files by its last tick, a little before now.
    return written - after if written > after else min(0.0, written - before)


def _enough(path: Path, says: str) -> Finding:
    if shutil.disk_usage(path).free < LEAST_FREE_BYTES:
        return warning(says, f"free at least {LEAST_FREE_BYTES // GB} GB, or use another folder")
    return ok(says)


def _free(path: Path) -> str:
    return f"{shutil.disk_usage(path).free / GB:.0f} GB free"


def _storage(path: Path) -> tuple[str, str, bool]:
    """Return the type of the file system, what it is, and whether data is well kept there."""
    kind = file_system(path) or "unknown"
    if kind.startswith("fuse"):  # s3fs, sshfs, rclone and their like
        return (kind, "a file system by FUSE, as for objects", False)
    return (kind, *STORAGE.get(kind, ("of a type not known here", True)))
