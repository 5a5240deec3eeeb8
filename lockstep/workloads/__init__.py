"""The models that are measured: one protocol and one table.

A workload knows nothing of pytest, ranks or timing. It is named `NAME` or `NAME:key=value,...`
(`resnet18`, `mlp:width=512`, `gpt:size=toy`), or by the name of any torchvision classification
model. Your own is a callable that returns a `Workload`, named `package.module:callable`
(options follow: `package.module:callable:key=value`) or registered under the entry-point group
`lockstep.workloads`. Importing this package needs no torch.
"""

import difflib
import importlib
import importlib.metadata
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockstep.core.record import Data
from lockstep.core.sizes import MAX_COUNT

if TYPE_CHECKING:
    import torch

ENTRY_POINT_GROUP = "lockstep.workloads"


@dataclass(frozen=True)
class Workload:
    """One model and its data.

    Attributes:
        name: The workload, options included.
        build: Makes the model, parameters seeded by torch's global generator.
        make_batch: Takes a number of items, a device and a generator on that device; returns
            inputs and targets, tensors whose first dimension is the number of items, or dicts,
            lists and tuples of such. A model is called with a dict's names.
        loss: Takes the model's outputs and the targets, returns a scalar. None with a `step`.
        sample_unit: What throughput counts: images, tokens.
        samples_per_item: Samples in one item of a batch (tokens per sequence; else 1).
        optimizer: Takes the parameters and returns the optimizer; SGD by default.
        scheduler: Takes the optimizer and returns a schedule, stepped after each update.
        ddp: Arguments of DistributedDataParallel, such as `find_unused_parameters`.
        comm_hook: A communication hook of DDP, as `register_comm_hook` takes it.
        step: A whole update in place of ours: takes the state (`ddp`, `optimizer`, `scheduler`,
            `scaler`, `autocast()`) and a batch as `make_batch` returns it, returns the loss.
        blocks: Takes the model and returns the modules that FSDP gathers, and checkpointing
            computes again, one by one; by default the children of its outermost `Sequential` and
            `ModuleList`.
        data: `synthetic` or `real`, as a result records it; None if unknown.
        epoch_samples: Samples of the whole data set, from which the time of an epoch follows.
    """

    name: str
    build: "Callable[[], torch.nn.Module]"
    make_batch: "Callable[[int, torch.device, torch.Generator | None], tuple[Any, Any]]"
    loss: "Callable[[Any, Any], torch.Tensor] | None" = None
    sample_unit: str = "images"
    samples_per_item: int = 1
    optimizer: "Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None" = None
    scheduler: "Callable[[Any], torch.optim.lr_scheduler.LRScheduler] | None" = None
    ddp: Mapping[str, Any] = field(default_factory=dict)
    comm_hook: Callable[..., Any] | None = None
    step: "Callable[[Any, tuple[Any, Any]], torch.Tensor] | None" = None
    data: Data | None = None
    epoch_samples: int | None = None
    blocks: "Callable[[torch.nn.Module], Iterable[torch.nn.Module]] | None" = None

    def __post_init__(self) -> None:
        if self.loss is None and self.step is None:
            raise ValueError(
                f"workload {self.name} has neither a loss nor a step; pass loss= or step= to "
                "Workload(...)"
            )


# A function that takes options by name and returns a workload, or raises ValueError.
Builder = Callable[..., Workload]
TABLE = {
    "gpt": "lockstep.workloads.gpt:gpt",
    "mlp": "lockstep.workloads.mlp:mlp",
    "mnist_cnn": "lockstep.workloads.images:mnist_cnn",
    "resnet18": "lockstep.workloads.images:resnet18",
    "resnet18_cifar": "lockstep.workloads.images:resnet18_cifar",
    "resnet50": "lockstep.workloads.images:resnet50",
    "sequences": "lockstep.workloads.sequences:sequences",
}


def make(spec: str) -> Workload:
    """Return the workload that a spec names.

    Raises:
        ValueError: There is no such workload, or it does not take an option.
    """
    name, options = parse(spec)
    builder = _find_builder(name)
    _check_options(spec, builder, options)
    try:
        workload: object = builder(**options)
    except ValueError as error:  # about an option's value
        why = _first_line(error) or "raised ValueError"
        raise ValueError(f"workload {spec!r}: {why}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the user's code, which may also exit
        raise _refusal(spec, f"raised {_describe(error)}") from error
    if not isinstance(workload, Workload):
        raise _refusal(spec, f"made a {type(workload).__name__}")
    return Workload(**{**vars(workload), "name": spec})


def builder_of(spec: str) -> Builder:
    return _find_builder(parse(spec)[0])


def _refusal(spec: str, problem: str) -> ValueError:
    """Return the error for a user's own code that does not make a workload."""
    return ValueError(
        f"workload {spec!r} {problem}; name a function that returns a "
        "lockstep.workloads.Workload; each parameter that is not given as key=value needs a "
        "default"
    )


def _describe(error: BaseException) -> str:
    return ": ".join(filter(None, (type(error).__name__, _first_line(error))))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


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
            return _load(f"{entry.module}:{entry.attr}")
    if ":" in name:
        return _load(name)
    return _load("lockstep.workloads.images:builder")(name)  # type: ignore[return-value]


def unknown(name: str, others: list[str]) -> ValueError:
    """Return the error for an unknown name, with its nearest neighbours."""
    names = sorted({*TABLE, *others})
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(TABLE)}."
    return ValueError(
        f"there is no workload {name!r}; {hint} You may also give any torchvision classification "
        "model, or package.module:callable"
    )


def _load(target: str) -> Builder:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        return operator.attrgetter(attribute)(module)  # type: ignore[no-any-return]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the user's code, which may also exit
        raise _refusal(target, f"cannot be loaded: {_describe(error)}") from error


def _check_options(spec: str, builder: Builder, options: dict[str, int | str]) -> None:
    try:
        allowed = inspect.signature(builder).parameters
    except (TypeError, ValueError):
        kind = type(builder).__name__
        raise _refusal(spec, f"is of type {kind}, which is not a Python function") from None
    for key, value in options.items():
        if key not in allowed:
            takes = ", ".join(allowed) or "none"
            raise ValueError(f"workload {spec!r} has no option {key!r}; choose from {takes}")
        if isinstance(allowed[key].default, int) and not isinstance(value, int):
            raise ValueError(f"workload {spec!r}: {key}={value} is not a whole number of 0 or more")
        is_ours = str(getattr(builder, "__module__", "")).startswith(__name__)
        if is_ours and isinstance(value, int) and value > MAX_COUNT:
            raise ValueError(
                f"workload {spec!r}: {key}={value} is more than the maximum of {MAX_COUNT}"
            )
