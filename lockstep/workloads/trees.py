"""Batches of any form: a tensor, or tensors nested in dicts, lists, tuples and dataclasses.

Every tensor of a batch has its items along the first dimension; whatever else is in it, such as
None or a number, goes along as it is.
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

MAX_CHANNELS = 4  # of an image, red, green, blue and how transparent it is


def mapped(change: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Return the tree with each tensor changed; a mapping that cannot be changed becomes a dict."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, MutableMapping):  # of the same type, whose methods a step may call
        made = copy.copy(tree)
        made.update({name: mapped(change, part) for name, part in tree.items()})
        return made
    if isinstance(tree, Mapping):
        return {name: mapped(change, part) for name, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(change, part) for part in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(change, part) for part in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        same = copy.copy(tree)
        for each in fields(tree):
            object.__setattr__(same, each.name, mapped(change, getattr(tree, each.name)))
        return same
    return tree


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a tree."""
    if isinstance(tree, torch.Tensor):
        yield tree
    for part in parts(tree):
        yield from leaves(part)


def parts(tree: Any) -> list[Any]:
    """Return what a mapping, a sequence or a dataclass holds."""
    if isinstance(tree, Mapping):
        return list(tree.values())
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, each.name) for each in fields(tree)]
    return list(tree) if isinstance(tree, list | tuple) else []


def num_items(tree: Any) -> int:
    """Return how many items a batch holds.

    Raises:
        ValueError: It holds no tensor, or tensors of different lengths.
    """
    found = sorted({len(leaf) for leaf in leaves(tree)})
    if len(found) != 1:
        raise ValueError(
            f"a batch's tensors have {found or 'no'} items along their first dimension; give each "
            "as many as make_batch is asked for"
        )
    return found[0]


def pieces(tree: Any, number: int) -> list[Any]:
    """Return a batch cut into so many equal parts along its items."""
    length = num_items(tree) // number
    return [sliced(tree, part * length, (part + 1) * length) for part in range(number)]


def sliced(tree: Any, start: int, stop: int) -> Any:
    """Return some of a batch's items."""
    return mapped(lambda leaf: leaf[start:stop], tree)


def called(model: Callable[..., Any], inputs: Any) -> Any:
    """Return what a model makes of inputs: of a dict by its names, as HuggingFace's models take."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def held(step: Callable[..., Any]) -> list[Any]:
    """Return what a function may hold as its batch: variables and arguments of several parts."""
    if isinstance(step, partial):
        return [*filter(parts, [*step.args, *step.keywords.values()]), *held(step.func)]
    if not inspect.isfunction(step):
        return []
    known = inspect.getclosurevars(step)
    return [*filter(parts, [*known.nonlocals.values(), *known.globals.values()])]


def seen_items(
    step: Callable[..., Any], first: tuple[Any, ...], samples: int, *, one_each: bool = True
) -> int | None:
    """Return how many items a batch holds that is seen, where they are plainly not `samples`.

    Of what a step holds, without a first batch, only what has as many parts is asked, and so where
    a sample is not one item each: that is what len() gives of a pair or a dict.
    """
    for batch in first or held(step):
        items = other_items(batch, samples)
        if items and ((first and one_each) or len(parts(batch)) == samples):
            return items
    return None


def other_items(batch: Any, samples: int) -> int | None:
    """Return how many items a batch holds, where it is plain that they are not `samples`.

    It is where two tensors or more agree on one first dimension and none has the other number. It
    is not where that number is of tokens, (B, T), where items lie in the second dimension, (T, B),
    are packed into one row, begin at offsets, (B + 1,), or are listed.
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
    """Tell whether so many items of one form are listed; two tensors may be input and target."""
    found = parts(tree)
    forms = {str(each.shape) if isinstance(each, torch.Tensor) else type(each) for each in found}
    is_list = isinstance(tree, list | tuple) and len(found) == samples and len(forms) == 1
    if is_list and (samples > 2 or (is_part and not isinstance(found[0], torch.Tensor))):
        return True
    return any(_lists_items(each, samples, is_part=True) for each in found)
