"""A Python training script as the rules ask about it: its calls, loops and branches."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

Block = ast.For | ast.While | ast.If | ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Wraps a model for several ranks.
WRAPS = ("DistributedDataParallel", "DDP")
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
        return bool(self.named("init_process_group", *WRAPS))

    @property
    def is_for_cpus(self) -> bool:
        """Whether it asks for gloo, and names no device and no GPU."""
        return self.mentions("gloo") and not self.mentions("cuda", "device", "nccl", "to")

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

    def assigned(self, *names: str) -> set[str]:
        """Return the variables that calls of these last names are assigned to."""
        return {
            name_of(target)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            and name_of(node.value.func).rpartition(".")[2] in names
            for target in node.targets
        } - {""}  # fmt: skip

    @cached_property
    def step_blocks(self) -> set[ast.AST]:
        """The loops, and the functions called in a loop, in which gradients are computed."""
        found: set[ast.AST] = set()
        for backward in self.named("backward"):
            function = self.function_of(backward)
            if loop := self.loop_of(backward):
                found.add(loop)
            elif isinstance(function, Function):
                callers = {loop for one in self.named(function.name) if (loop := self.loop_of(one))}
                found |= {function, *callers} if callers else set()
        return found

    def in_each_step(self, call: ast.Call) -> bool:
        """Return whether a call is made in each step, of some ranks at least."""
        for holder in self.around(call):
            if holder in self.step_blocks:
                return not (isinstance(holder, ast.For) and call in ast.walk(holder.iter))
            if isinstance(holder, Loop | Function | ast.Lambda):
                return False
            if isinstance(holder, ast.If | ast.IfExp):
                is_of_ranks = isinstance(holder.test, ast.Compare | ast.Call | ast.Name)
                if not (is_of_ranks and asks_for_rank(holder.test)):
                    return False
        return False

    def is_for_some_ranks(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a condition about the rank leads to a node, or to its function's calls."""
        function = self.function_of(node)
        tests = [one.test for one in self.around(node) if isinstance(one, ast.If | ast.IfExp)]
        for one in ast.walk(function):
            if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Continue):
                tests += [one.test] if one.lineno < getattr(node, "lineno", 0) else []
        if any(map(asks_for_rank, tests)) or not isinstance(function, Function):
            return any(map(asks_for_rank, tests))
        name = function.name
        calls = self.named(name) if name not in seen else []
        return any(self.is_for_some_ranks(call, seen | {name}) for call in calls)

    def function_of(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the whole script."""
        return next((one for one in self.around(node) if isinstance(one, Function)), self.tree)


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
