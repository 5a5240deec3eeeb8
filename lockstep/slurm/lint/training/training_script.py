"""A Python training script as the rules ask about it: its calls, loops and branches."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

Block = ast.For | ast.While | ast.If | ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While
# How a script asks which rank it is.
OF_RANKS = ("rank", "is_main_process", "is_master", "is_main", "is_global_zero")
# Each rank must call these, or the others wait (torch.distributed, "Collective functions").
COLLECTIVES = frozenset(
    {
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all"),
        *("all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather"),
        *("gather_object", "monitored_barrier", "reduce", "reduce_scatter"),
        *("reduce_scatter_tensor", "scatter", "scatter_object_list"),
    }
)


@dataclass(frozen=True)
class Script:
    """A training script."""

    path: str
    tree: ast.Module

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Node -> the node that holds it."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call, from the first line to the last."""
        found = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return sorted(found, key=lambda call: call.lineno)

    def named(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions or methods of these last names."""
        return [call for call in self.calls if name_of(call.func).rpartition(".")[2] in names]

    def mentions(self, *words: str) -> bool:
        """Return whether a name, an attribute, an argument or a text is one of these words."""
        return any(word in words for node in ast.walk(self.tree) for word in _words(node))

    @property
    def is_distributed(self) -> bool:
        """Whether it forms a process group, or wraps a model for one."""
        return bool(self.named("init_process_group", "DistributedDataParallel", "DDP"))

    @property
    def is_training(self) -> bool:
        """Whether it computes gradients."""
        return bool(self.named("backward"))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that hold a node, the innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def loop_of(self, node: ast.AST) -> Loop | None:
        """Return the innermost loop around a node, within its own function."""
        for holder in self.around(node):
            if isinstance(holder, ast.For | ast.While):
                return holder
            if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return None
        return None

    def function_of(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the whole script."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((one for one in self.around(node) if isinstance(one, kinds)), self.tree)


def name_of(node: ast.AST) -> str:
    """Return the dotted name of an expression: `torch.nn.DataParallel`, of a method `.item`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return ""


def argument(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call gives under a name."""
    return next((word.value for word in call.keywords if word.arg == name), None)


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Return whether an expression is a value that is written out."""
    return isinstance(node, ast.Constant) and node.value is value


def asks_for_rank(test: ast.AST) -> bool:
    """Return whether a condition is about which rank this is."""
    words = {word.lower() for node in ast.walk(test) for word in _words(node)}
    return any(word in OF_RANKS or word.endswith("rank") or word == "get_rank" for word in words)


def collectives(block: ast.AST) -> Iterator[ast.Call]:
    """Yield the collective calls in a block: methods and functions of a process group."""
    for node in ast.walk(block):
        if isinstance(node, ast.Call):
            group, _, name = name_of(node.func).rpartition(".")
            if name in COLLECTIVES and group.rpartition(".")[2] in ("dist", "distributed", "c10d"):
                yield node


def _words(node: ast.AST) -> Iterator[str]:
    for field in ("id", "attr", "arg", "name"):
        word = getattr(node, field, None)
        if isinstance(word, str):
            yield word
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
