"""Batches of any form: a tensor, or tensors nested in dicts, lists, tuples and dataclasses.

Every tensor has its items along the first dimension; other values, such as None or a number, stay
as they are.
"""

import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch

MAX_CHANNELS = 4  # of an image: red, green, blue and alpha


def map_tensors(change: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Return the tree with each tensor changed; an immutable mapping becomes a dict."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, MutableMapping):  # keep the type, whose methods a step may call
        made = copy.copy(tree)
        made.update({name: map_tensors(change, part) for name, part in tree.items()})
        return made
    if isinstance(tree, Mapping):
        return {name: map_tensors(change, part) for name, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(change, part) for part in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(map_tensors(change, part) for part in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        same = copy.copy(tree)
        for field in fields(tree):
            object.__setattr__(same, field.name, map_tensors(change, getattr(tree, field.name)))
        return same
    return tree


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    for part in parts(tree):
        yield from leaves(part)


def parts(tree: Any) -> list[Any]:
    """Return the members of a mapping, a sequence or a dataclass."""
    if isinstance(tree, Mapping):
        return list(tree.values())
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in fields(tree)]
    return list(tree) if isinstance(tree, list | tuple) else []


def num_items(tree: Any) -> int:
    sizes = sorted({len(leaf) for leaf in leaves(tree)})
    if len(sizes) != 1:
        raise ValueError(
            "the tensors of a batch must have equal first dimensions, but the first dimensions "
            f"are {sizes or 'none'}; give each tensor as many items as the first argument of "
            "make_batch says"
        )
    return sizes[0]


def pieces(tree: Any, number: int) -> list[Any]:
    """Return a batch cut into `number` equal parts."""
    length = num_items(tree) // number
    return [slice_items(tree, part * length, (part + 1) * length) for part in range(number)]


def slice_items(tree: Any, start: int, stop: int) -> Any:
    return map_tensors(lambda leaf: leaf[start:stop], tree)


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Return a model's outputs; a dict gives keyword arguments, as for HuggingFace."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def list_candidates(step: Callable[..., Any]) -> list[Any]:
    """Return candidates for a function's batch: variables and arguments with several parts."""
    if isinstance(step, partial):
        return [*filter(parts, [*step.args, *step.keywords.values()]), *list_candidates(step.func)]
    if not inspect.isfunction(step):
        return []
    known = inspect.getclosurevars(step)
    return [*filter(parts, [*known.nonlocals.values(), *known.globals.values()])]


def seen_items(
    step: Callable[..., Any], first: tuple[Any, ...], samples: int, *, one_each: bool = True
) -> int | None:
    """Return the items of a visible batch, if they clearly differ from `samples`; else None.

    Without a first batch, or if a sample is not an item (`one_each`), only a batch with `samples`
    parts is checked: a user may have given len() of a pair or a dict.
    """
    for batch in first or list_candidates(step):
        items = other_items(batch, samples)
        if items and ((first and one_each) or len(parts(batch)) == samples):
            return items
    return None


def other_items(batch: Any, samples: int) -> int | None:
    """Return the items of a batch, if they clearly differ from `samples`; else None.

    They do if two tensors or more agree on one first dimension and none has the other number. They
    do not if `samples` counts tokens, (B, T), or if items lie in the second dimension, (T, B), are
    packed into one row, begin at offsets, (B + 1,), or are listed.
    """
    tensors = [leaf for leaf in leaves(batch) if not leaf.is_nested and leaf.dim()]
    shapes = [tuple(leaf.shape) for leaf in tensors if not leaf.requires_grad]
    agreeing = Counter(shape[0] for shape in shapes).most_common(1)
    size, times = agreeing[0] if agreeing else (1, 0)
    fits = (
        any(samples in (shape[0], math.prod(shape[:2])) for shape in shapes)
        or all(shape[1:2] == (samples,) for shape in shapes)
        or any(
            leaf.shape == (samples + 1,)
            and (leaf.dtype in (torch.int32, torch.int64) and leaf.equal(leaf.cummax(0).values))
            for leaf in tensors
        )
        or _lists_items(batch, samples)
        or (size <= MAX_CHANNELS and all(len(shape) > 2 for shape in shapes))
    )
    return size if times > 1 and size > 1 and not fits else None


def _lists_items(tree: Any, samples: int, *, is_part: bool = False) -> bool:
    """Return whether `samples` items are listed; two tensors may be input and target."""
    members = parts(tree)
    forms = {str(m.shape) if isinstance(m, torch.Tensor) else type(m) for m in members}
    is_list = isinstance(tree, list | tuple) and len(members) == samples and len(forms) == 1
    if is_list and (samples > 2 or (is_part and not isinstance(members[0], torch.Tensor))):
        return True
    return any(_lists_items(member, samples, is_part=True) for member in members)
