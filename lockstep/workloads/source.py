"""What tells one workload from another of the same name: its source and its model's structure."""

import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import workloads
from lockstep.workloads import Workload
from lockstep.workloads.costs import meta_model

# Where an object lies in memory is another place in each process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def sha256(workload: Workload, case_file: Path | None = None) -> str:
    """Return a digest that differs where a workload computes something else.

    It covers the files that define the workload's functions, the model's structure (modules, names,
    shapes and types of its parameters) and the file of the case. What those files import is
    covered as far as it shows in the model's structure.

    Args:
        workload: As `workloads.make` returned it.
        case_file: The measured test's file, where it is the user's own.
    """
    of_workload: tuple[Callable[..., Any] | None, ...] = (
        *(workload.build, workload.make_batch, workload.loss, workload.optimizer),
        *(workload.scheduler, workload.comm_hook, workload.blocks, workload.step),
    )
    functions: list[Callable[..., Any]] = [workloads.builder_of(workload.name)]
    functions += [function for function in of_workload if function is not None]
    paths = {path for path in map(file_of, functions) if path} | {case_file}
    # By content: hosts and images keep equal files in other places.
    contents = sorted(of_file(path) for path in paths if path and path.is_file())
    return hashlib.sha256("".join([*contents, _structure(workload)]).encode()).hexdigest()


def of_file(path: Path) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def file_of(function: Callable[..., Any]) -> Path | None:
    """Return the Python file a function is defined in; None where it is in no file."""
    function = inspect.unwrap(getattr(function, "func", function))  # of a partial
    try:
        path = inspect.getsourcefile(function if inspect.isroutine(function) else type(function))
    except TypeError:  # compiled code
        return None
    return Path(path) if path else None


def _structure(workload: Workload) -> str:
    """Return modules, parameters and unit as a text; empty where no model can be made on meta."""
    try:
        model = meta_model(workload)
    except Exception:  # noqa: BLE001, of the user's code: the case itself will say so
        return ""
    tensors = [(name, tuple(t.shape), str(t.dtype)) for name, t in model.state_dict().items()]
    text = f"{model!r} {tensors} {workload.sample_unit} {workload.samples_per_item}"
    if workload.ddp:
        text += f" {sorted(workload.ddp.items())}"
    return _ADDRESS.sub("", text)
