"""Batches of any form: a tensor, or tensors nested in dicts, lists and tuples.

Every tensor of a batch has its items along the first dimension; whatever else is in it, such as
None or a number, goes along as it is.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch


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
    return tree


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a tree."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for part in tree.values():
            yield from leaves(part)
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from leaves(part)


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
