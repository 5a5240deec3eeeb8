"""Where a result comes from: the software, the machine, the image and the settings of a launch.

A fact that cannot be read is None: a missing git, a driver that does not answer or an unreadable
image never stops a measurement. Only functions about ranks and torch import torch.
"""

import hashlib
import os
import platform
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from lockstep import content
from lockstep.core import processes
from lockstep.core.processes import ENVIRONMENT_NAMES, hostname, steers_torch
from lockstep.machine import hardware, network, nvidia
from lockstep.machine.network import read_text

if TYPE_CHECKING:
    import torch

DISTRIBUTION = "lockstep-bench"

SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH")
HIDDEN = "***"
SLURM_NAMES = (
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST", "SLURM_NNODES",
    "SLURM_STEP_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID",
)  # fmt: skip
# Facts that a launch has only if its ranks use GPUs, even if torch was built for CUDA.
GPU_FACTS = ("cuda", "cudnn", "nccl", "driver", "gpu_topology", "nvlink")
# Code that decides what is measured.
MEASURING_ROOMS = (
    *("core", "machine", "ranks", "measure", "workloads", "trainer", "launch"),
    "campaign/program.py",
)
# Apptainer writes the time and the source of an image's build here.
IMAGE_LABELS = Path("/.singularity.d/labels.json")


def rank_facts(rank: int, local_rank: int, device: "torch.device") -> dict[str, Any]:
    """Return the facts of one rank: its numbers, device and usable cores."""
    import torch

    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    uuid = getattr(gpu, "uuid", None)
    return {
        "rank": rank, "local_rank": local_rank, "host": hostname(), "pid": os.getpid(),
        "device": str(device), "device_name": gpu.name if gpu else cpu_model(),
        "cpu_model": cpu_model(), "gpu_uuid": f"GPU-{uuid}" if uuid else None,
        "driver": driver_version() if gpu else None, "cores": usable_cores(),
        "num_threads": torch.get_num_threads(),
    }  # fmt: skip


def rank_software() -> dict[str, Any]:
    """Return the software that must be equal on all ranks."""
    import torch

    return {
        "image built": _sha256(IMAGE_LABELS),
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "suite": suite_sha256(),
    }


def suite_sha256() -> str:
    """Return the digest of the suite's measuring code, as this rank reads it."""
    digest = hashlib.sha256()
    places = [content.ROOT / "bench", *(content.PACKAGE / room for room in MEASURING_ROOMS)]
    files = [[place] if place.suffix else sorted(place.rglob("*.py")) for place in places]
    for path in chain.from_iterable(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def launch_facts(seed: int, command: Sequence[str], project: Path | None = None) -> dict[str, Any]:
    """Return the facts of the launch on rank 0; `project` is the user's test or workload file."""
    return (
        common_facts(seed, command)
        | project_facts(project)
        | torch_facts()
        | nvidia.links()
        | image_facts(os.environ)
        | {"launcher": launcher(os.environ)}
        | {"dropped_environment": os.environ.get("LOCKSTEP_DROPPED", "").split()}
    )


def common_facts(seed: int, command: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a launch that need neither torch nor an image."""
    return (
        {"lockstep_version": lockstep_version(), "seed": seed, "command": hide_secrets(command)}
        | git_facts(content.IMPORTABLE_FROM)
        | software_facts()
        | machine_facts()
        | {"suite_sha256": suite_sha256()}
        | {"slurm": slurm_facts(os.environ), "environment": environment(os.environ)}
    )


def launch_provenance(
    launch: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the provenance of a launch, from rank 0's facts and those of each rank.

    Its GPU facts are None if every rank runs on a CPU. Different drivers or devices are all listed,
    so that the launch is never pooled with a uniform one.
    """
    drivers = sorted({rank["driver"] for rank in ranks if rank["driver"]})
    on_gpu = any(rank["device"] != "cpu" for rank in ranks)
    names = sorted({rank["device_name"] for rank in ranks})
    gpu = hardware.find(names[0]) if len(names) == 1 and launch.get("backend") == "nccl" else None
    return {
        **launch,
        "driver": ", ".join(drivers) or None,
        "transport": None,
        **({} if on_gpu else dict.fromkeys(GPU_FACTS)),
        "gpu_link_gb_per_s": gpu.link_gb_per_s if gpu else None,
        "device_names": names,
        "ranks": [dict(rank) for rank in ranks],
    }


def software_facts() -> dict[str, Any]:
    """Return the versions of the interpreter, the libraries around torch, and the system."""
    packages = ("torchvision", "numpy", "pytest", "pytest-benchmark")
    return {
        "python": platform.python_version(),
        **{name.replace("-", "_"): package_version(name) for name in packages},
        "os": os_name(), "kernel": platform.release(), "driver": driver_version(),
    }  # fmt: skip


def torch_facts() -> dict[str, Any]:
    """Return torch's versions, threads and back end, and the rate of the back end's network."""
    import torch

    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    backend = torch.distributed.get_backend() if distributed else None
    nccl: str | None = None
    with suppress(AttributeError, RuntimeError):  # a torch without NCCL
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": _cudnn_version(torch.backends.cudnn.version()),
        "nccl": nccl,
        "backend": backend,
        "wire_gb_per_s": backend and network.wire_gb_per_s(backend, os.environ),
        "threads_per_rank": torch.get_num_threads(),
    }


def machine_facts() -> dict[str, Any]:
    """Return this host's name, processor, logical cores and memory in bytes."""
    return {
        "hostname": hostname(),
        "cpu_model": cpu_model(),
        "cores_per_node": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def lockstep_version() -> str | None:
    """Return the version of the running code: of its checkout, or else of the installation."""
    pyproject = content.IMPORTABLE_FROM / "pyproject.toml"
    if pyproject.is_file():
        return str(tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["version"])
    return package_version(DISTRIBUTION)


def package_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def git_facts(root: Path) -> dict[str, Any]:
    """Return commit and dirtiness of the suite's checkout, or else of its image's source.

    Dirty means that tracked files differ from the commit.
    """
    top = processes.run_git(root, "rev-parse", "--show-toplevel")
    # An installation inside somebody else's checkout must not borrow that checkout's commit.
    if top is None or Path(top) != root.resolve():
        return _image_commit(root)
    commit, is_dirty = processes.git_state(root)
    return {"git_commit": commit, "git_dirty": is_dirty}


def project_facts(file: Path | None) -> dict[str, Any]:
    """Return commit and dirtiness of the repository of a user's own test or workload file.

    Both are None for a file that git ignores; an untracked file makes the commit dirty.
    """
    unknown = {"project_commit": None, "project_dirty": None}
    if file is None:
        return unknown
    commit, is_dirty = processes.git_state(file.parent)
    if commit is None or processes.run_git(file.parent, "check-ignore", str(file)) is not None:
        return unknown
    is_added = processes.run_git(file.parent, "ls-files", "--error-unmatch", str(file)) is not None
    return {"project_commit": commit, "project_dirty": is_dirty or not is_added}


def _image_commit(root: Path) -> dict[str, Any]:
    """Return the commit that an image was built from, with `-dirty` after it if files differed.

    The file `COMMIT` lies in the suite's folder. An image's variable `LOCKSTEP_COMMIT` does not
    count for a checkout that is bound into the image.
    """
    text = read_text(root / "COMMIT")
    if text is None and not (root / ".git").exists():
        text = os.environ.get("LOCKSTEP_COMMIT")
    name = re.fullmatch(r"([0-9a-f]{7,64})(-dirty)?", text or "")
    if not name:
        return {"git_commit": None, "git_dirty": None}
    return {"git_commit": name[1], "git_dirty": name[2] is not None}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that control torch and its communication, without secrets."""
    return {
        name: _hide_home(variables[name])
        for name in sorted(variables)
        if steers_torch(name) and not names_a_secret(name)
    }


def hide_secrets(command: Sequence[str]) -> list[str]:
    """Return a command line without values of secrets and without the home folder's path.

    `--label=token=x`, `--api-key=x`, and `x` after a word `--api-key`, are secrets by their names.
    """
    shown: list[str] = []
    follows = False
    for word in map(_hide_home, command):
        *names, value = word.split("=")
        secret = next((i for i, name in enumerate(names, 1) if names_a_secret(name)), 0)
        open_word = "=".join((*names[:secret], HIDDEN)) if secret else word
        shown.append(HIDDEN if follows else open_word)
        follows = not names and word.startswith("--") and names_a_secret(value)
    return shown


def _hide_home(text: str) -> str:
    """Return a text with the user's home folder as `~`, as its path contains the user's name."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111, which raises without a home
    return re.sub(rf"(?<![\w/]){re.escape(home)}(?=/|$)", "~", text) if len(home) > 1 else text


def names_a_secret(name: str) -> bool:
    return name not in ENVIRONMENT_NAMES and any(word in name.upper() for word in SECRET_WORDS)


def launcher(variables: Mapping[str, str]) -> str | None:
    by_torchrun = "torchrun" if "TORCHELASTIC_RUN_ID" in variables else None
    return variables.get("LOCKSTEP_LAUNCHER", by_torchrun)


def slurm_facts(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: variables[name] for name in SLURM_NAMES if name in variables}


def image_facts(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Return path and SHA-256 of the container image; None outside a container.

    A job script hashes the image once and exports `LOCKSTEP_IMAGE_SHA256`, so that launches need
    not read gigabytes; the variable counts only inside a container. For a runtime that does not
    name its image, the script exports `LOCKSTEP_IMAGE` as well.
    """
    names = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "LOCKSTEP_IMAGE")
    path = next(filter(None, map(variables.get, names)), None)
    if not path:
        return {"image_path": None, "image_sha256": None}
    digest = variables.get("LOCKSTEP_IMAGE_SHA256") or _sha256(Path(path))
    return {"image_path": path, "image_sha256": digest}


def _sha256(path: Path) -> str | None:
    """Return a file's SHA-256, or None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def usable_cores() -> list[int]:
    """Return the cores that this process may run on; all, if the system has no masks."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_model() -> str:
    """Return the processor's name, or else the architecture."""
    line = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    return line[1].strip() if line else platform.processor() or platform.machine()


def os_name() -> str:
    """Return the distribution's name and version, or else the platform."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)


def driver_version() -> str | None:
    """Return the NVIDIA driver's version, from NVML or the kernel module; None if absent."""
    if version := nvidia.driver_version():
        return version
    text = read_text("/proc/driver/nvidia/version") or ""
    line = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return line[1] if line else None


def _cudnn_version(number: int | None) -> str | None:
    """Return cuDNN's version as a text: 91002 is 9.10.2, and 8902 was 8.9.2."""
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"
