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
from typing import Any

import numpy as np
import torch

from lockstep.machine import memory
from lockstep.measure.reach import Binding, Reached

# Of free memory copies take no more than half, or they would change what is measured; on the host,
# those of models apart, of this rank's share.
SHARE = 0.5

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
