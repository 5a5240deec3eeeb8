"""What a step of a user's own reaches: models, optimizers, counters, tensors, iterators.

Python tells: a function's closure, its defaults and the globals that it names, a method's object,
what those hold, and so on. It distinguishes three things. `STATE` is whatever has a `state_dict` to
load again: a model, an optimizer, a scheduler, a scaler, with all that is below it. `OWN` is what
the user wrote: the variables of functions and the attributes of objects whose code lies outside of
the installed packages; and a trainer around them, which counts steps in attributes. `FOREIGN` is
any other object: it is looked through for a model or an optimizer, and otherwise left alone, as
threads of its own may work with it.

A `Snapshot` of it puts everything back in place: a tensor takes its old values, a container its old
members, a variable its old object, so every reference of the user's stays valid and an optimizer
without state is one without state again. What is printed, written or drawn from an iterator stays.
"""

import contextlib
import copy
import functools
import inspect
import io
import logging
import operator
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from lockstep.machine import memory

# A model in a trainer's wrapper in an object in a closure lies five steps down.
MAX_DEPTH = 8
# What a step looks up in a longer list is data, not a model; and so is what comes after so many
# objects, which are met in the order of their depth.
MAX_WALKED = 10_000
MAX_MET = 200_000
# By torch's custom, what has state to save has these.
STATE_METHODS = ("state_dict", "load_state_dict")
# Trainers around a step.
FRAMEWORKS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "transformers")
RANDOM = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
CONTAINERS = (dict, list, set, deque)
# Nothing of a step's state is below these, and much that is not.
_LEAVES = (
    *(type, type(None), str, bytes, int, float, complex, Path, io.IOBase, logging.Logger),
    *(types.ModuleType, types.BuiltinFunctionType, threading.Thread),
    *(torch.dtype, torch.device, torch.Size),
)
# What lies in these was installed, not written for this script.
_PACKAGES = {"site-packages", "dist-packages"}


# Of free memory copies take no more than half, or they would change what is measured; on the host,
# those of models apart, of this rank's share.
SHARE = 0.5


class Belongs(IntEnum):
    """To whom an object belongs; see the module's docstring."""

    FOREIGN = 0
    OWN = 1
    STATE = 2


@dataclass(frozen=True)
class Binding:
    """A variable of a function: a cell of its closure, or a global that it names.

    Attributes:
        read: Returns what it is bound to; raises ValueError where it is bound to nothing yet.
        write: Binds it to something.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]


@dataclass(frozen=True)
class Reached:
    """What was found, each once.

    Attributes:
        state: Tensors of models and optimizers.
        containers: What may gain, lose or change members: dicts (those of objects' attributes
            among them), lists, sets, deques.
        iterators: Names of those that a step may draw from, which nothing can put back.
        compiled: Names of what torch.compile has compiled.
    """

    state: list[torch.Tensor] = field(default_factory=list)
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    arrays: list[tuple[str, "np.ndarray[Any, Any]"]] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)
    iterators: list[str] = field(default_factory=list)
    models: list[nn.Module] = field(default_factory=list)
    schedules: list[LRScheduler] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)


def reach(**roots: Any) -> Reached:
    """Return what is reached from objects of the user's, name -> object."""
    walk = _Walk()
    for name, value in roots.items():
        walk.add(name, value, Belongs.OWN, 0)
    return walk.run()


@dataclass(frozen=True)
class _Visit:
    name: str
    value: Any
    belongs: Belongs
    depth: int


class _Walk:
    """A walk in breadth, so that everything is met at its least depth."""

    def __init__(self) -> None:
        self._found = Reached()
        self._todo: deque[_Visit] = deque()
        # What was met, as whose; holding the object keeps its id from being used again.
        self._met: dict[int, tuple[Belongs, Any]] = {}
        self._kept: set[int] = set()

    def add(self, name: str, value: Any, belongs: Belongs, depth: int) -> None:
        """Visit an object later, unless it is a leaf, too deep, or met already."""
        belongs = max(belongs, _owner(value))
        is_far = depth > MAX_DEPTH or len(self._met) > MAX_MET
        if isinstance(value, _LEAVES) or (belongs < Belongs.STATE and is_far):
            return
        met = self._met.get(id(value))
        if met is None or met[0] < belongs:
            self._met[id(value)] = (belongs, value)
            self._todo.append(_Visit(name, value, belongs, depth))

    def run(self) -> Reached:
        """Visit all there is."""
        while self._todo:
            visit = self._todo.popleft()
            next(act for kind, act in self._ACTS if isinstance(visit.value, kind))(self, visit)
        return self._found

    def _tensor(self, visit: _Visit) -> None:
        if visit.belongs == Belongs.STATE:  # kept twice where met again as a model's: no harm
            self._found.state.append(visit.value)
        elif visit.belongs:
            self._found.tensors.append((visit.name, visit.value))

    def _array(self, visit: _Visit) -> None:
        if visit.belongs and visit.value.flags.writeable:
            self._found.arrays.append((visit.name, visit.value))

    def _generator(self, visit: _Visit) -> None:
        self._found.generators.append(visit.value)

    def _container(self, visit: _Visit) -> None:
        self._keep(self._found.containers, visit, visit.value)
        self._members(visit)

    def _members(self, visit: _Visit) -> None:
        # An optimizer's state has parameters for keys.
        if len(visit.value) > MAX_WALKED and visit.belongs < Belongs.STATE:
            return
        if isinstance(visit.value, dict):
            for key, value in list(visit.value.items()):
                self._below(visit, key, visit.name)
                self._below(visit, value, key if isinstance(key, str) else visit.name)
        else:
            for value in list(visit.value):
                self._below(visit, value, visit.name)

    def _function(self, visit: _Visit) -> None:
        function = visit.value
        if hasattr(function, "_torchdynamo_orig_callable"):
            self._found.compiled.append(visit.name)
        is_own = _is_own(function.__globals__.get("__name__"))
        belongs = Belongs.OWN if is_own else Belongs.FOREIGN
        variables = _closure(function) | (_globals(function) if is_own else {})
        for name, binding in variables.items():
            if is_own:
                self._found.bindings.append(binding)
            self._below(visit, binding.read(), name, belongs)
        for value in (function.__defaults__, function.__kwdefaults__, function.__dict__):
            self._below(visit, value, visit.name, belongs)

    def _method(self, visit: _Visit) -> None:
        self._below(visit, visit.value.__self__, visit.name, Belongs.OWN)
        self._below(visit, visit.value.__func__, visit.name)

    def _partial(self, visit: _Visit) -> None:
        for value in (visit.value.func, visit.value.args, visit.value.keywords):
            self._below(visit, value, visit.name)

    def _loader(self, visit: _Visit) -> None:
        for name in ("generator", "sampler", "batch_sampler"):  # its data are too large to keep
            self._below(visit, getattr(visit.value, name, None), name, Belongs.FOREIGN)

    def _thing(self, visit: _Visit) -> None:
        value: Any = visit.value
        kind: Any = type(value)
        if isinstance(value, nn.Module):
            self._found.models.append(value)
            if hasattr(value, "_orig_mod") or value._compiled_call_impl is not None:  # noqa: SLF001
                self._found.compiled.append(visit.name)
        if isinstance(value, LRScheduler):
            self._found.schedules.append(value)
        if isinstance(value, Iterator) and visit.belongs:
            self._found.iterators.append(visit.name)
        belongs = _owner(value)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._keep(self._found.containers, replace(visit, belongs=belongs), attributes)
            for name, held in list(attributes.items()):
                self._below(visit, held, name, belongs)
        if _is_own(kind.__module__):
            for name, method in _methods(kind).items():
                self._below(visit, method, name, Belongs.OWN)

    def _below(self, visit: _Visit, value: Any, name: str, belongs: Belongs | None = None) -> None:
        belongs = visit.belongs if belongs is None else belongs
        self.add(name, value, belongs, visit.depth + (belongs < Belongs.STATE))

    def _keep(self, kept: list[Any], visit: _Visit, value: Any) -> None:
        if visit.belongs and id(value) not in self._kept:
            self._kept.add(id(value))
            kept.append(value)

    # The first that fits says how an object is looked at.
    _ACTS: tuple[tuple[Any, Callable[[Any, _Visit], None]], ...] = (
        (torch.Tensor, _tensor),
        (np.ndarray, _array),
        (RANDOM, _generator),
        (CONTAINERS, _container),
        ((tuple, frozenset), _members),
        (types.FunctionType, _function),
        (types.MethodType, _method),
        (partial, _partial),
        (DataLoader, _loader),
        (object, _thing),
    )


def _owner(value: object) -> Belongs:
    kind = type(value)
    if all(hasattr(kind, name) for name in STATE_METHODS):
        return Belongs.STATE
    is_own = kind.__module__.partition(".")[0] in FRAMEWORKS or _is_own(kind.__module__)
    return Belongs.OWN if is_own else Belongs.FOREIGN


@functools.cache
def _methods(kind: type) -> dict[str, types.FunctionType]:
    return dict(inspect.getmembers(kind, inspect.isfunction))


@functools.cache
def _is_own(module_name: str | None) -> bool:
    """Tell whether a module is the user's: no part of Python, of a package, or of Lockstep."""
    root = (module_name or "").partition(".")[0]
    if root == "__main__":
        return True
    file = getattr(sys.modules.get(module_name or ""), "__file__", None)
    if file is None or root == "lockstep" or root in sys.stdlib_module_names:
        return False
    path = Path(file).resolve()
    return not (_PACKAGES & set(path.parts))


def _closure(function: types.FunctionType) -> dict[str, Binding]:
    bindings = {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # it is bound to nothing yet
            cell.cell_contents  # noqa: B018, there is no other way to ask
            bindings[name] = Binding(
                partial(getattr, cell, "cell_contents"), partial(setattr, cell, "cell_contents")
            )
    return bindings


def _globals(function: types.FunctionType) -> dict[str, Binding]:
    namespace = function.__globals__
    return {
        name: Binding(partial(namespace.get, name), partial(namespace.__setitem__, name))
        for name in sorted(_names(function.__code__))
        if name in namespace
    }


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function looks up, and those that functions within it do."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*inner)


Restore = Callable[[], object]


class Snapshot:
    """All that was reached from a step, as it is now.

    Attributes:
        left: Bytes of the data that are too large to keep a copy of, by name.
    """

    def __init__(self, reached: Reached, ranks_per_node: int = 1) -> None:
        data = [*reached.tensors, *reached.arrays]
        left = _too_large(data, memory.free_bytes(torch.device("cpu"), ranks_per_node))
        kept = [(name, each) for name, each in data if name not in left]
        self.left = left
        self._restores = [
            *map(_container, reached.containers),
            *map(_binding, reached.bindings),
            *_tensors([*reached.state, *(t for _, t in kept if isinstance(t, torch.Tensor))]),
            *(_array(each) for _, each in kept if isinstance(each, np.ndarray)),
            *map(_generator, reached.generators),
            *_global_generators(),
        ]

    def restore(self) -> None:
        """Put everything back, also what comes after something that cannot be.

        Raises:
            ExceptionGroup: What could not be put back.
        """
        failed = []
        for restore in self._restores:
            try:
                restore()
            except Exception as error:  # noqa: BLE001, raised once the others are put back
                failed.append(error)
        if failed:
            raise ExceptionGroup("what the step changed is not all put back", failed)


def _too_large(data: Sequence[tuple[str, Any]], free_bytes: int) -> dict[str, int]:
    """Return the bytes of what no copy is kept of, by name: the largest, where memory is short."""
    ordered = sorted(((_bytes(each), name) for name, each in data))
    sums = accumulate(size for size, _ in ordered)
    return {
        name: size
        for total, (size, name) in zip(sums, ordered, strict=True)
        if total > SHARE * free_bytes
    }


def _container(held: Any) -> Restore:
    """Return what gives a dict, list, set or deque its members back."""
    if isinstance(held, dict):
        return _dict(held)
    members = list(held)

    def restore() -> None:
        if len(held) == len(members) and all(map(operator.is_, held, members)):
            return
        held.clear()
        (held.update if isinstance(held, set) else held.extend)(members)

    return restore


def _dict(held: dict[Any, Any]) -> Restore:
    members = dict(held)

    def restore() -> None:
        # Never empty in between: it may be the attributes of an object that other threads use.
        for key in [key for key in held if key not in members]:
            del held[key]
        for key, value in members.items():
            if key not in held or held[key] is not value:
                held[key] = value
        if not all(map(operator.is_, held, members)):  # what came back is last
            held.clear()
            held.update(members)

    return restore


def _binding(binding: Binding) -> Restore:
    bound = binding.read()

    def restore() -> None:
        if binding.read() is not bound:
            binding.write(bound)

    return restore


def _tensors(tensors: Iterable[torch.Tensor]) -> Iterator[Restore]:
    """Return what gives tensors their values and gradients back, each once.

    Copies lie beside them where their device has room, else on the host.
    """
    each = list({
        id(tensor): tensor
        for tensor in tensors
        # A lazy parameter has no shape yet.
        if tensor.device.type != "meta" and not torch.nn.parameter.is_lazy(tensor)
    }.values())  # fmt: skip
    gradients = [tensor.grad for tensor in each if tensor.is_leaf and tensor.grad is not None]
    stays = {}
    for device in {tensor.device for tensor in each}:
        stays[device] = True
        if device.type == "cuda":
            free_bytes, _ = torch.cuda.mem_get_info(device)
            needed = sum(_bytes(t) for t in [*each, *gradients] if t.device == device)
            stays[device] = needed <= SHARE * free_bytes
    yield from (_values(tensor, stays[tensor.device]) for tensor in each)
    yield from (_gradient(tensor, stays[tensor.device]) for tensor in each if tensor.is_leaf)


def _values(tensor: torch.Tensor, stays: bool) -> Restore:
    kept = _once(tensor.detach())
    values = kept.clone() if stays else kept.to("cpu", copy=True)
    # `data`: a graph that the user has yet to go back through must not find its tensors changed.
    return lambda: _once(tensor.data).copy_(values)


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose expanded dimensions, in which one value is repeated, are narrowed."""
    if tensor.layout == torch.strided:
        for dim, stride in enumerate(tensor.stride()):
            tensor = tensor.narrow(dim, 0, min(tensor.size(dim), 1)) if stride == 0 else tensor
    return tensor


def _gradient(tensor: torch.Tensor, stays: bool) -> Restore:
    gradient = tensor.grad
    if gradient is not None and gradient.layout != torch.strided:  # it has no values of its own
        kept = gradient.clone()
        return lambda: setattr(tensor, "grad", kept.clone())
    values = None if gradient is None else _values(gradient, stays)

    def restore() -> None:
        tensor.grad = gradient
        if values:
            values()

    return restore


def _array(array: "np.ndarray[Any, Any]") -> Restore:
    values = array.copy()
    return lambda: array.__setitem__(..., values) if array.flags.writeable else None


def _generator(generator: Any) -> Restore:
    """Return what gives a generator of random numbers its state back; see `reach.RANDOM`."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return lambda: generator.set_state(state)
    if isinstance(generator, random.Random):
        numbers = generator.getstate()
        return lambda: generator.setstate(numbers)
    if isinstance(generator, np.random.RandomState):
        old = generator.get_state()
        return lambda: generator.set_state(old)
    kept = copy.deepcopy(generator.bit_generator.state)
    return lambda: setattr(generator.bit_generator, "state", kept)


def _global_generators() -> Iterator[Restore]:
    """Return what gives the generators that a process has anyway their state back."""
    numbers, old = random.getstate(), np.random.get_state()  # noqa: NPY002, users draw from it
    host = torch.get_rng_state()
    yield lambda: random.setstate(numbers)
    yield lambda: np.random.set_state(old)  # noqa: NPY002
    yield lambda: torch.set_rng_state(host)
    if torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(devices)


def _bytes(data: Any) -> int:
    if isinstance(data, np.ndarray):
        return data.nbytes
    return int(_once(data).numel() * data.element_size())  # a sparse gradient has no nbytes
