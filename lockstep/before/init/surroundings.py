"""What a machine shows besides Slurm: interfaces, images, environments, cores and GPUs."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from lockstep import content
from lockstep.before.doctor.checks import output
from lockstep.before.doctor.machine_checks import interfaces
from lockstep.machine.gpus import nvidia_smi


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
    return Surroundings(
        interfaces=tuple(interfaces()),
        images=tuple(sorted(images, key=lambda path: -path.stat().st_mtime)),
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
        listing = output(["bash", "-lc", "module -t avail 2>&1"])
    except RuntimeError:
        return
    names = (text.strip().removesuffix("(default)") for text in listing.splitlines())
    yield from (name for name in names if re.fullmatch(r"[\w./+-]*pytorch[\w./+-]*\w", name, re.I))


def _num_gpus() -> int:
    try:
        return len(nvidia_smi.gpus())
    except RuntimeError:
        return 0
