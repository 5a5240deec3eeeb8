"""Everything that a user's step can reach: models, optimizers, counters, tensors, iterators.

The search follows a function's closure, its defaults and the globals that it names, a method's
object, their members, and so on. An object belongs to one of three kinds. `STATE` is whatever has a
`state_dict` to load again: a model, an optimizer, a scheduler, a scaler, with all that is below it.
`OWN` is what the user wrote: variables of functions and attributes of objects whose code lies
outside of the installed packages; and a trainer around them, which counts steps in attributes.
`FOREIGN` is any other object: it is searched for a model or an optimizer, and otherwise left alone,
since threads of its own may use it.

A `Snapshot` restores it all in place: a tensor gets its old values, a container its old members, a
variable its old object, so that all references of the user stay valid. It does not undo output,
nor draws from an iterator.
"""

import contextlib
import copy
import inspect
import io
import logging
import operator
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from lockstep.machine import memory
from lockstep.measure.state import random_states

# A model in a trainer's wrapper in an object in a closure lies at depth five.
MAX_DEPTH = 8
# A longer container is taken for data and not searched. After so many objects, the nearest first,
# only those with `STATE` are searched.
MAX_WALKED = 10_000
MAX_MET = 200_000
# Methods by which an object counts as `STATE`.
STATE_METHODS = ("state_dict", "load_state_dict")
# Packages whose trainers count as the user's own objects.
FRAMEWORKS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "transformers")
RANDOM = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
CONTAINERS = (dict, list, set, deque)
# Objects that are not searched: they lead to no state of a step.
_LEAVES = (
    *(type, type(None), str, bytes, int, float, complex, Path, io.IOBase, logging.Logger),
    *(types.ModuleType, types.BuiltinFunctionType, threading.Thread),
    *(torch.dtype, torch.device, torch.Size),
)
# Folders of installed packages.
_PACKAGES = {"site-packages", "dist-packages"}
# Copies take at most this share of a rank's free memory, since more would change the measured step.
# On the host, copies of models are not counted.
SHARE = 0.5


class Belongs(IntEnum):
    """The owner of an object; see the module's docstring."""

    FOREIGN = 0
    OWN = 1
    STATE = 2


@dataclass(frozen=True)
class Binding:
    """A variable of a function: a cell of its closure, or a global that it names."""

    read: Callable[[], Any]
    write: Callable[[Any], None]


@dataclass(frozen=True)
class Reached:
    """All objects reached, each once."""

    state: list[torch.Tensor] = field(default_factory=list)  # of models and optimizers
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    arrays: list[tuple[str, "np.ndarray[Any, Any]"]] = field(default_factory=list)
    # Dicts (those of objects' attributes among them), lists, sets, deques.
    containers: list[Any] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)
    # Names of those that a step may advance, which cannot be restored.
    iterators: list[str] = field(default_factory=list)
    models: list[nn.Module] = field(default_factory=list)
    schedules: list[LRScheduler] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)  # names of what torch.compile has compiled


def reach(**roots: Any) -> Reached:
    """Return everything reached from objects of the user, name -> object."""
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
    """A breadth-first search: it reaches every object at its least depth."""

    def __init__(self) -> None:
        self._reached = Reached()
        self._todo: deque[_Visit] = deque()
        # Objects met, with their owner; the reference keeps an id from being used again.
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
        while self._todo:
            visit = self._todo.popleft()
            next(act for kind, act in self._VISITORS if isinstance(visit.value, kind))(self, visit)
        return self._reached

    def _tensor(self, visit: _Visit) -> None:
        if visit.belongs == Belongs.STATE:  # may be added twice, which is harmless
            self._reached.state.append(visit.value)
        elif visit.belongs:
            self._reached.tensors.append((visit.name, visit.value))

    def _array(self, visit: _Visit) -> None:
        if visit.belongs and visit.value.flags.writeable:
            self._reached.arrays.append((visit.name, visit.value))

    def _generator(self, visit: _Visit) -> None:
        self._reached.generators.append(visit.value)

    def _container(self, visit: _Visit) -> None:
        self._keep(self._reached.containers, visit, visit.value)
        self._members(visit)

    def _members(self, visit: _Visit) -> None:
        # The keys of an optimizer's state are parameters.
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
            self._reached.compiled.append(visit.name)
        is_own = _is_own(function.__globals__.get("__name__"))
        belongs = Belongs.OWN if is_own else Belongs.FOREIGN
        variables = _closure(function) | (_globals(function) if is_own else {})
        for name, binding in variables.items():
            if is_own:
                self._reached.bindings.append(binding)
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
        for name in ("generator", "sampler", "batch_sampler"):  # its data are too large to search
            self._below(visit, getattr(visit.value, name, None), name, Belongs.FOREIGN)

    def _object(self, visit: _Visit) -> None:
        value: Any = visit.value
        kind: Any = type(value)
        if isinstance(value, nn.Module):
            self._reached.models.append(value)
            if hasattr(value, "_orig_mod") or value._compiled_call_impl is not None:  # noqa: SLF001
                self._reached.compiled.append(visit.name)
        if isinstance(value, LRScheduler):
            self._reached.schedules.append(value)
        if isinstance(value, Iterator) and visit.belongs:
            self._reached.iterators.append(visit.name)
        belongs = _owner(value)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._keep(self._reached.containers, replace(visit, belongs=belongs), attributes)
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

    # The first type that an object has decides how the object is visited.
    _VISITORS: tuple[tuple[Any, Callable[[Any, _Visit], None]], ...] = (
        (torch.Tensor, _tensor),
        (np.ndarray, _array),
        (RANDOM, _generator),
        (CONTAINERS, _container),
        ((tuple, frozenset), _members),
        (types.FunctionType, _function),
        (types.MethodType, _method),
        (partial, _partial),
        (DataLoader, _loader),
        (object, _object),
    )


def _owner(value: object) -> Belongs:
    kind = type(value)
    if all(hasattr(kind, name) for name in STATE_METHODS):
        return Belongs.STATE
    is_own = kind.__module__.partition(".")[0] in FRAMEWORKS or _is_own(kind.__module__)
    return Belongs.OWN if is_own else Belongs.FOREIGN


@cache
def _methods(kind: type) -> dict[str, types.FunctionType]:
    return dict(inspect.getmembers(kind, inspect.isfunction))


@cache
def _is_own(module_name: str | None) -> bool:
    """Return whether a module is the user's: not of Python, of a package, or of Lockstep."""
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
        with contextlib.suppress(ValueError):  # the cell is empty
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
    """Return the names that a function and the functions within it look up."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inner)


Restore = Callable[[], object]


class Snapshot:
    """A copy of everything reached from a step."""

    def __init__(self, reached: Reached, ranks_per_node: int = 1) -> None:
        data = [*reached.tensors, *reached.arrays]
        ordered = sorted((_bytes(values), name) for name, values in data)
        sums = accumulate(size for size, _ in ordered)
        most = SHARE * memory.free_bytes(torch.device("cpu"), ranks_per_node)
        self.left = {  # data too large to copy
            name: size for total, (size, name) in zip(sums, ordered, strict=True) if total > most
        }
        kept = [values for name, values in data if name not in self.left]
        self._restores: list[Restore] = [
            *map(_container, reached.containers),
            *map(_binding, reached.bindings),
            *_tensors([*reached.state, *(t for t in kept if isinstance(t, torch.Tensor))]),
            *(_array(values) for values in kept if isinstance(values, np.ndarray)),
            *map(_generator, reached.generators),
            *(partial(restore, state) for restore, state in random_states()),
        ]

    def restore(self) -> None:
        """Restore everything that can be restored.

        Raises:
            ExceptionGroup: The errors of what could not be restored.
        """
        failed = []
        for restore in self._restores:
            try:
                restore()
            except Exception as error:  # noqa: BLE001, raised after the others are restored
                failed.append(error)
        if failed:
            raise ExceptionGroup("some objects that the step changed could not be restored", failed)


def _container(held: Any) -> Restore:
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
        # Never empty the dict meanwhile: other threads may use the object whose attributes it has.
        for key in [key for key in held if key not in members]:
            del held[key]
        for key, value in members.items():
            if key not in held or held[key] is not value:
                held[key] = value
        if not all(map(operator.is_, held, members)):  # the order differs
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
    """Return functions that restore values and gradients; a repeated tensor counts once.

    Copies lie on the tensors' device if it has room, else on the host.
    """
    unique = list({
        id(tensor): tensor
        for tensor in tensors
        # A lazy parameter has no shape yet.
        if tensor.device.type != "meta" and not torch.nn.parameter.is_lazy(tensor)
    }.values())  # fmt: skip
    gradients = [tensor.grad for tensor in unique if tensor.is_leaf and tensor.grad is not None]
    stays = {}
    for device in {tensor.device for tensor in unique}:
        stays[device] = True
        if device.type == "cuda":
            free_bytes, _ = torch.cuda.mem_get_info(device)
            needed = sum(_bytes(t) for t in [*unique, *gradients] if t.device == device)
            stays[device] = needed <= SHARE * free_bytes
    yield from (_values(tensor, stays[tensor.device]) for tensor in unique)
    yield from (_gradient(tensor, stays[tensor.device]) for tensor in unique if tensor.is_leaf)


def _values(tensor: torch.Tensor, stays: bool) -> Restore:
    kept = _without_repeats(tensor.detach())
    values = kept.clone() if stays else kept.to("cpu", copy=True)
    # `data`, so that a later backward through the user's graph does not see a changed tensor.
    return lambda: _without_repeats(tensor.data).copy_(values)


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor with one element in each expanded dimension."""
    if tensor.layout == torch.strided:
        for dim, stride in enumerate(tensor.stride()):
            tensor = tensor.narrow(dim, 0, min(tensor.size(dim), 1)) if stride == 0 else tensor
    return tensor


def _gradient(tensor: torch.Tensor, stays: bool) -> Restore:
    gradient = tensor.grad
    if gradient is not None and gradient.layout != torch.strided:  # no values to copy into
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
    """Return a function that restores a generator of random numbers; see `RANDOM`."""
    if isinstance(generator, np.random.Generator):
        kept = copy.deepcopy(generator.bit_generator.state)
        return lambda: setattr(generator.bit_generator, "state", kept)
    read, write = "get_state", "set_state"
    if isinstance(generator, random.Random):
        read, write = "getstate", "setstate"
    return partial(getattr(generator, write), getattr(generator, read)())


def _bytes(data: Any) -> int:
    if isinstance(data, np.ndarray):
        return data.nbytes
    return int(
        _without_repeats(data).numel() * data.element_size()
    )  # a sparse gradient has no nbytes
