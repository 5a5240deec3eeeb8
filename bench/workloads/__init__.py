"""The models that are measured, behind one protocol and one table.

A workload knows nothing of pytest, ranks or timing. It is named `NAME` or `NAME:key=value,...`
(`resnet18`, `mlp:width=512`, `gpt:size=toy`), or by the name of any torchvision classification
model. One of your own is a callable that returns a `Workload`, named `package.module:callable`
(options follow: `package.module:callable:key=value`) or registered under the entry-point group
`lockstep.workloads`. Importing this package needs no torch.
"""

import difflib
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

ENTRY_POINT_GROUP = "lockstep.workloads"


@dataclass(frozen=True)
class Workload:
    """One model and its data, small enough to read at a glance.

    Attributes:
        name: The workload as it was asked for, options included.
        build: Makes the model, parameters seeded by torch's global generator.
        make_batch: Takes a number of items, a device and a generator on that device; returns
            inputs and targets whose first dimension is the number of items.
        loss: Takes the model's outputs and the targets, returns a scalar.
        sample_unit: What throughput counts: images, tokens.
        samples_per_item: Samples in one item of a batch (tokens per sequence; else 1).
    """

    name: str
    build: "Callable[[], torch.nn.Module]"
    make_batch: (
        "Callable[[int, torch.device, torch.Generator | None], tuple[torch.Tensor, torch.Tensor]]"
    )
    loss: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
    sample_unit: str = "images"
    samples_per_item: int = 1


class Builder(Protocol):
    """What the table names: options in, a workload out."""

    def __call__(self, **options: int | str) -> Workload:
        """Make the workload, or raise ValueError for an option's value."""


TABLE = {
    "gpt": "bench.workloads.gpt:gpt",
    "mlp": "bench.workloads.mlp:mlp",
    "mnist_cnn": "bench.workloads.mnist_cnn:mnist_cnn",
    "resnet18": "bench.workloads.resnet:resnet18",
    "resnet18_cifar": "bench.workloads.resnet:resnet18_cifar",
    "resnet50": "bench.workloads.resnet:resnet50",
}


def make(spec: str) -> Workload:
    """Return the workload a spec names.

    Raises:
        ValueError: No such workload, or an option it does not take.
    """
    name, options = parse(spec)
    builder = _find_builder(name)
    _check_options(spec, builder, options)
    workload = builder(**options)
    if not isinstance(workload, Workload):
        raise ValueError(
            f"workload {spec!r} made a {type(workload).__name__}; it must return a "
            "bench.workloads.Workload"
        )
    return Workload(**{**vars(workload), "name": spec})


def parse(spec: str) -> tuple[str, dict[str, int | str]]:
    """Split `NAME:key=value,key=value` into the name and its options.

    Raises:
        ValueError: The spec is not of that form.
    """
    name, _, tail = spec.rpartition(":")
    if name in TABLE and tail and "=" not in tail:
        raise ValueError(f"workload {spec!r}: {tail!r} is not key=value")
    if not name or "=" not in tail:
        return spec, {}
    options: dict[str, int | str] = {}
    for part in filter(None, tail.split(",")):
        key, equals, value = part.partition("=")
        if not (equals and key and value):
            raise ValueError(f"workload {spec!r}: {part!r} is not key=value")
        options[key] = int(value) if re.fullmatch(r"\d+", value) else value
    return name, options


def _find_builder(name: str) -> Builder:
    if name in TABLE:
        return _load(TABLE[name])
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return entry.load()  # type: ignore[no-any-return]
    if ":" in name:
        return _load(name)
    return _load("bench.workloads.torchvision_models:builder")(name)  # type: ignore[call-arg,return-value]


def unknown(name: str, others: list[str]) -> ValueError:
    """Return the error for a name nobody has, with its nearest neighbours."""
    known = sorted({*TABLE, *others})
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(TABLE)}"
    return ValueError(
        f"no workload {name!r}: {hint} (also any torchvision classification model, "
        "or package.module:callable)"
    )


def _load(target: str) -> Builder:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        return getattr(module, attribute)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ValueError(f"workload {target!r} cannot be loaded: {error}") from error


def _check_options(spec: str, builder: Builder, options: dict[str, int | str]) -> None:
    allowed = inspect.signature(builder).parameters
    for key, value in options.items():
        if key not in allowed:
            takes = ", ".join(allowed) or "none"
            raise ValueError(f"workload {spec!r} takes no option {key!r}; its options: {takes}")
        if isinstance(allowed[key].default, int) and not isinstance(value, int):
            raise ValueError(f"workload {spec!r}: {key}={value} is not a whole number >= 0")
