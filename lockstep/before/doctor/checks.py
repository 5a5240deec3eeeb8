"""What a check of `lockstep doctor` is asked about, and the record it returns."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lockstep.core import processes
from lockstep.slurm import associations
from lockstep.slurm import cluster as clusters
from lockstep.slurm.associations import Accounts
from lockstep.slurm.cluster import Cluster
from lockstep.slurm.site import Site

Status = Literal["ok", "warning", "missing", "not needed"]
COMMAND_TIMEOUT_S = 30
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


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        says: The fact, with its value.
        details: Further facts, a line each.
    """

    status: Status
    says: str
    action: str | None = None
    details: tuple[str, ...] = ()


def ok(says: str, *details: str) -> Finding:
    """Return a finding that is as it should be."""
    return Finding("ok", says, None, details)


def warning(says: str, action: str, *details: str) -> Finding:
    """Return a finding that makes measuring slower or less certain."""
    return Finding("warning", says, action, details)


def missing(says: str, action: str, *details: str) -> Finding:
    """Return a finding that keeps jobs or launches from running."""
    return Finding("missing", says, action, details)


def not_needed(says: str) -> Finding:
    """Return a finding that does not matter here."""
    return Finding("not needed", says)


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
    def accounts(self) -> Accounts | RuntimeError:
        """What the user may charge on the cluster, or why Slurm does not say."""
        assert isinstance(self.slurm, Cluster)
        try:
            return associations.read(self.slurm.name)
        except RuntimeError as error:
            return error

    @property
    def is_login_node(self) -> bool:
        """Whether this only sends jobs: a site's Slurm answers, and this is no job of it."""
        is_job = "SLURM_JOB_ID" in self.environ
        return self.site is not None and isinstance(self.slurm, Cluster) and not is_job

    @property
    def wants_gpus(self) -> bool:
        """Whether the site's ranks use GPUs."""
        return self.site is not None and self.site.gpus_per_node > 0


def output(
    command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S, folder: Path | None = None
) -> str:
    """Return what a command prints.

    Raises:
        RuntimeError: It is not there, fails, or does not answer in time.
    """
    return processes.output(command, timeout_s, folder=folder)


def probe(python: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """Return what a Python can measure with, found by importing it in a process of its own.

    Raises:
        RuntimeError: Something that measuring needs does not load.
    """
    printed = output([*python, "-c", PROBE], PROBE_TIMEOUT_S, folder)
    try:
        facts = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"{python[0]} printed {printed[-80:]!r} and no facts") from None
    assert isinstance(facts, dict)
    return facts


def torch_in_words(facts: Mapping[str, Any]) -> str:
    """Return a probe's facts as a phrase."""
    built = [f"CUDA {facts['cuda']}" if facts["cuda"] else None]
    built += [f"ROCm {facts['rocm']}" if facts["rocm"] else None]
    built += [f"NCCL {facts['nccl']}" if facts["nccl"] else None, "gloo" if facts["gloo"] else None]
    gpus = f"{facts['gpus']} GPU(s)" if facts["gpus"] else "no GPU"
    return f"torch {facts['torch']} with {', '.join(filter(None, built))}; {gpus} seen"
