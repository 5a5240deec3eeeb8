"""What a user's step changes, kept, and put back as it was.

Everything is put back in place: a tensor takes its old values, a container its old members, a
variable its old object, so every reference of the user's stays valid and an optimizer without state
is one without state again. What is printed, written or drawn from an iterator stays so.
"""

import copy
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch

from lockstep.own_loop.reach import Binding, Reached
from lockstep.vocabulary.system.files import MIB

# Tensors outside of models and optimizers are kept up to so much in all, the smallest first, and so
# are arrays: what is larger is data, which no step changes.
MOST_BYTES = 256 * MIB
# Of a GPU's free memory copies take no more than half, or they would change what is measured.
SHARE = 0.5

Item = TypeVar("Item")
Restore = Callable[[], object]


class Snapshot:
    """All that was reached from a step, as it is now.

    Args:
        reached: What to keep; it may be changed as often as one likes, and put back.
    """

    def __init__(self, reached: Reached) -> None:
        kept, left = _smallest(reached.tensors, lambda named: _bytes(named[1]))
        arrays, _ = _smallest(reached.arrays, lambda array: array.nbytes)
        self._data = dict(left)
        self._versions = {name: tensor._version for name, tensor in self._data.items()}  # noqa: SLF001
        self._restores = [
            *map(_container, reached.containers),
            *map(_binding, reached.bindings),
            *_tensors([*reached.state, *(tensor for _, tensor in kept)]),
            *map(_array, arrays),
            *map(_generator, reached.generators),
            *_global_generators(),
        ]

    def restore(self) -> list[str]:
        """Put everything back.

        Returns:
            Names of the data that the step has changed all the same, of which there is no copy.
        """
        for restore in self._restores:
            restore()
        return [name for name, t in self._data.items() if t._version != self._versions[name]]  # noqa: SLF001


def _smallest(items: Sequence[Item], size: Callable[[Item], int]) -> tuple[list[Item], list[Item]]:
    """Return the items that are kept, and the others."""
    ordered = sorted(items, key=size)
    num_kept = sum(total <= MOST_BYTES for total in accumulate(map(size, ordered)))
    return ordered[:num_kept], ordered[num_kept:]


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
        if not all(map(operator.is_, held, members)):  # what came back stands last
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
    """Return what gives tensors their values and gradients back, each once."""
    each = list({id(tensor): tensor for tensor in tensors if _has_values(tensor)}.values())
    gradients = [tensor.grad for tensor in each if tensor.is_leaf and tensor.grad is not None]
    stays = {device: _fits(device, [*each, *gradients]) for device in {t.device for t in each}}
    yield from (_values(tensor, stays[tensor.device]) for tensor in each)
    yield from (_gradient(tensor, stays[tensor.device]) for tensor in each if tensor.is_leaf)


def _has_values(tensor: torch.Tensor) -> bool:
    # A lazy parameter has no shape yet.
    return tensor.device.type != "meta" and not torch.nn.parameter.is_lazy(tensor)


def _fits(device: torch.device, tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether copies of a device's tensors may lie beside them, and not on the host."""
    if device.type != "cuda":
        return True
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return sum(_bytes(t) for t in tensors if t.device == device) <= SHARE * free_bytes


def _values(tensor: torch.Tensor, stays: bool) -> Restore:
    values = tensor.detach().clone() if stays else tensor.detach().to("cpu", copy=True)
    # `data`: a graph that the user has yet to go back through must not find its tensors changed.
    return lambda: tensor.data.copy_(values)


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


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # a sparse gradient has no nbytes
