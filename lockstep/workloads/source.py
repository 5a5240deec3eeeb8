"""A digest that distinguishes workloads of the same name by source and model structure."""

import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import workloads
from lockstep.workloads import Workload
from lockstep.workloads.costs import meta_model

# Addresses of objects differ between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def sha256(workload: Workload, case_file: Path | None = None) -> str:
    """Return a digest that differs if a workload computes something else.

    It covers the files that define the workload's functions, the model's structure (modules, names,
    shapes and types of parameters) and the file of a user's own test. Code that those files import
    is covered only as far as it shows in the structure.
    """
    of_workload: tuple[Callable[..., Any] | None, ...] = (
        *(workload.build, workload.make_batch, workload.loss, workload.optimizer),
        *(workload.scheduler, workload.comm_hook, workload.blocks, workload.step),
    )
    functions: list[Callable[..., Any]] = [workloads.builder_of(workload.name)]
    functions += [function for function in of_workload if function is not None]
    paths = {path for path in map(file_of, functions) if path} | {case_file}
    # Content alone counts: hosts and images keep equal files in different places.
    contents = sorted(of_file(path) for path in paths if path and path.is_file())
    return hashlib.sha256("".join([*contents, _structure(workload)]).encode()).hexdigest()


def of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def file_of(function: Callable[..., Any]) -> Path | None:
    """Return the Python file that defines a function, or None."""
    function = inspect.unwrap(getattr(function, "func", function))  # of a partial
    try:
        path = inspect.getsourcefile(function if inspect.isroutine(function) else type(function))
    except TypeError:  # compiled code
        return None
    return Path(path) if path else None


def _structure(workload: Workload) -> str:
    """Return modules, parameters and unit as a text; empty if unknown."""
    try:
        model = meta_model(workload)
    except Exception:  # noqa: BLE001, of the user's code; the case itself fails by it
        return ""
    tensors = [(name, tuple(t.shape), str(t.dtype)) for name, t in model.state_dict().items()]
    text = f"{model!r} {tensors} {workload.sample_unit} {workload.samples_per_item}"
    if workload.ddp:
        text += f" {sorted(workload.ddp.items())}"
    return _ADDRESS.sub("", text)
