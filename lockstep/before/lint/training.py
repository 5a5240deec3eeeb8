"""Rules for Python training scripts: errors that make several ranks slow, wrong or hang."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lockstep.before.lint.rules import Hit, Rules
from lockstep.core import files

Block = ast.For | ast.While | ast.If | ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Wraps a model for several ranks.
WRAPS = ("DistributedDataParallel", "DDP")
# Names with which a script asks for its rank.
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
        """Node -> its parent."""
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
        """Return whether a name, an attribute, an argument or a string is one of these words."""
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
        """Yield the ancestors of a node, the innermost first."""
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
        nodes: set[ast.AST] = set()
        for backward in self.named("backward"):
            function = self.function_of(backward)
            if loop := self.loop_of(backward):
                nodes.add(loop)
            elif isinstance(function, Function):
                callers = {
                    loop for call in self.named(function.name) if (loop := self.loop_of(call))
                }
                nodes |= {function, *callers} if callers else set()
        return nodes

    def in_each_step(self, call: ast.Call) -> bool:
        """Return whether a call is made in each step of at least some ranks."""
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
        """Return whether a node, or each call of its function, depends on the rank."""
        function = self.function_of(node)
        tests = [part.test for part in self.around(node) if isinstance(part, ast.If | ast.IfExp)]
        for part in ast.walk(function):
            if isinstance(part, ast.If) and isinstance(part.body[-1], ast.Return | ast.Continue):
                tests += [part.test] if part.lineno < getattr(node, "lineno", 0) else []
        if any(map(asks_for_rank, tests)) or not isinstance(function, Function):
            return any(map(asks_for_rank, tests))
        name = function.name
        calls = self.named(name) if name not in seen else []
        return any(self.is_for_some_ranks(call, seen | {name}) for call in calls)

    def function_of(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the whole script."""
        return next((part for part in self.around(node) if isinstance(part, Function)), self.tree)


def name_of(node: ast.AST) -> str:
    """Return the dotted name of an expression, such as `torch.nn.DataParallel` or `.item`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return ""


def argument(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a call's keyword argument."""
    return next((word.value for word in call.keywords if word.arg == name), None)


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Return whether an expression is this literal."""
    return isinstance(node, ast.Constant) and node.value is value


def asks_for_rank(test: ast.AST) -> bool:
    """Return whether a condition depends on the rank."""
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


# Methods of a tensor that wait for the GPU.
READING = ("item", "tolist", "numpy", "cpu")
WAITING = ("synchronize", "empty_cache")
PRINTING = ("print", "info", "debug", "write", "log", "add_scalar")
_PORT = re.compile(r"tcp://[^:]+:[1-9][0-9]*")


TRAINING: "Rules[Script]" = Rules()


@TRAINING.rule(
    "SET-EPOCH", "error", "each epoch then repeats the order of the first",
    "call sampler.set_epoch(epoch) before each epoch",
)  # fmt: skip
def same_order(script: Script) -> Iterator[Hit]:
    if script.named("set_epoch"):
        return
    for call in script.named("DistributedSampler"):
        holder = script.parents.get(call)
        targets = holder.targets if isinstance(holder, ast.Assign) else []
        parts = [*targets, *call.args, *(keyword.value for keyword in call.keywords)]
        # The name of the sampler or its data may say that it is not for training.
        validates = re.search(
            r"val|test|eval|dev(?!ice)|infer", " ".join(map(ast.unparse, parts)), re.IGNORECASE
        )
        if not is_constant(argument(call, "shuffle"), False) and not validates:
            yield Hit(call.lineno, "the script has a DistributedSampler, but never calls set_epoch")


@TRAINING.rule(
    "NO-SAMPLER", "warning", "each rank then trains on all of the data",
    "give the DataLoader a DistributedSampler instead of shuffle=True",
)  # fmt: skip
def all_data_everywhere(script: Script) -> Iterator[Hit]:
    if not script.is_distributed or script.mentions("DistributedSampler"):
        return
    for call in script.named("DataLoader"):
        is_shuffled = is_constant(argument(call, "shuffle"), True)
        if is_shuffled and argument(call, "sampler") is None:
            yield Hit(call.lineno, "DataLoader has shuffle=True and no sampler")


@TRAINING.rule(
    "SYNC-IN-STEP", "warning", "the CPU waits for the GPU, which then idles",
    "keep loss.detach(), and read it every hundred steps or at the end of the epoch",
)  # fmt: skip
def read_each_step(script: Script) -> Iterator[Hit]:
    if script.is_for_cpus:
        return
    losses = {name_of(call.func).rpartition(".")[0] for call in script.named("backward")} - {""}
    for call in filter(script.in_each_step, script.calls):
        name = name_of(call.func)
        last = name.rpartition(".")[2] or getattr(call.func, "attr", "")
        if last in READING and not call.args:
            yield Hit(call.lineno, f"{name or f'(...).{last}'}() in each step")
        elif last in WAITING and "cuda" in name:
            action = "move it out of the step; a timer needs it once, around many steps"
            yield Hit(call.lineno, f"{name}() in each step: the CPU waits for the GPU", action)
        elif last in PRINTING and (read := losses & _plain_names(call)):
            yield Hit(call.lineno, f"{last}() of the tensor {min(read)} in each step")


def _plain_names(call: ast.Call) -> set[str]:
    """Return the variables that a call prints themselves, without attribute or call."""
    inner = {node.value for node in ast.walk(call) if isinstance(node, ast.Attribute)}
    return {node.id for node in ast.walk(call) if isinstance(node, ast.Name) and node not in inner}


@TRAINING.rule(
    "STEP-COLLECTIVE", "warning", "each rank waits for the slowest, in addition to the gradients",
    "call it every hundred steps or at the end of the epoch",
)  # fmt: skip
def collective_each_step(script: Script) -> Iterator[Hit]:
    for call in collectives(script.tree):
        if script.in_each_step(call):
            yield Hit(call.lineno, f"{name_of(call.func)} in each step")


@TRAINING.rule(
    "UNUSED-PARAMETERS", "warning", "DDP then searches the whole graph in each step",
    "remove it, unless some parameters really get no gradient",
)  # fmt: skip
def unused_parameters(script: Script) -> Iterator[Hit]:
    for call in script.named(*WRAPS, "DistributedDataParallelKwargs", "DDPStrategy"):
        if is_constant(argument(call, "find_unused_parameters"), True):
            yield Hit(call.lineno, "find_unused_parameters=True")


@TRAINING.rule(
    "NO-WORKERS", "warning", "the training process loads each batch itself and idles meanwhile",
    "set num_workers, such as the cores of a rank minus one, and persistent_workers=True",
)  # fmt: skip
def no_workers(script: Script) -> Iterator[Hit]:
    if not script.is_distributed or script.named("TensorDataset"):
        return
    for call in script.named("DataLoader"):
        given = argument(call, "num_workers")
        is_hidden = any(word.arg is None for word in call.keywords) or len(call.args) > 5
        if is_constant(given, 0) or (given is None and not is_hidden):
            how = "with num_workers=0" if given else "without num_workers, which defaults to 0"
            yield Hit(call.lineno, f"DataLoader {how}")


@TRAINING.rule(
    "NO-SYNC", "warning", "each backward exchanges all gradients, but only the last one needs to",
    "run the other backwards within `with model.no_sync():`",
)  # fmt: skip
def no_sync(script: Script) -> Iterator[Hit]:
    if not script.named(*WRAPS) or script.mentions("no_sync", "require_backward_grad_sync"):
        return
    for call in script.named("step"):
        loop = script.loop_of(call)
        branches = [node for node in script.around(call) if isinstance(node, ast.If)]
        counted = [
            one
            for one in branches
            if loop in [*script.around(one)]
            and any(isinstance(node, ast.Mod) for node in ast.walk(one.test))
        ]
        if loop in script.step_blocks and counted and "optim" in name_of(call.func).lower():
            yield Hit(call.lineno, f"{name_of(call.func)} if {ast.unparse(counted[0].test)[:40]}")
            return


@TRAINING.rule(
    "RANK-FILES", "warning", "the ranks overwrite each other's file, which may end up corrupt",
    "do it on rank 0 only, and let the others wait at a barrier",
)  # fmt: skip
def files_of_all_ranks(script: Script) -> Iterator[Hit]:
    if not script.is_distributed:
        return
    for call in script.calls:
        is_save = name_of(call.func) == "torch.save" and not asks_for_rank(call)
        fetches = is_constant(argument(call, "download"), True)
        has_turns = fetches and any(
            name_of(one.func).endswith("barrier") for one in collectives(script.function_of(call))
        )
        if (is_save or fetches) and not has_turns and not script.is_for_some_ranks(call):
            what = "torch.save to one file" if is_save else "download=True"
            yield Hit(call.lineno, f"{what} on every rank")


@TRAINING.rule(
    "RANK-DEVICE", "error", 'the second node fails with "invalid device ordinal"',
    'use int(os.environ["LOCAL_RANK"])',
)  # fmt: skip
def device_of_global_rank(script: Script) -> Iterator[Hit]:
    ranks = {
        name_of(node.targets[0])
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and _is_global_rank(node.value, set())
    }
    for call in script.named("set_device"):
        if call.args and _is_global_rank(call.args[0], ranks):
            yield Hit(call.lineno, f"{ast.unparse(call)[:60]} uses the global rank")


def _is_global_rank(node: ast.AST, ranks: set[str]) -> bool:
    """Return whether an expression is the rank in the job, or one of the names that hold it."""
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    calls = [name_of(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)]
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    is_of_node = any(isinstance(one, ast.BinOp | ast.IfExp | ast.BoolOp) for one in ast.walk(node))
    is_rank = bool(ranks & {*names} or {"RANK", "SLURM_PROCID"} & {*map(str, texts)})
    is_rank = is_rank or any(call.rpartition(".")[2] == "get_rank" for call in calls)
    return is_rank and not is_of_node


@TRAINING.rule(
    "GLOO", "warning", "gloo copies each gradient through the host",
    "use nccl, which is torch's default for GPUs",
)  # fmt: skip
def gloo_for_gpus(script: Script) -> Iterator[Hit]:
    uses_gpus = script.named("cuda", "set_device") or script.mentions("cuda")
    for call in script.named("init_process_group") if uses_gpus else ():
        given = call.args[0] if call.args else argument(call, "backend")
        if isinstance(given, ast.Constant) and given.value == "gloo":
            yield Hit(call.lineno, "the backend is gloo, but tensors are on GPUs")


@TRAINING.rule(
    "RANK-COLLECTIVE", "error", "the other ranks wait for this call until they time out",
    "call it on every rank; only printing and writing may depend on the rank",
)  # fmt: skip
def some_ranks_only(script: Script) -> Iterator[Hit]:
    """Yield the collective calls, including DDP's forward, that not every rank makes."""
    models = script.assigned(*WRAPS)
    for branch in (node for node in ast.walk(script.tree) if isinstance(node, ast.If)):
        if not asks_for_rank(branch.test):
            continue
        test = ast.unparse(branch.test)
        sides = (branch.body, branch.orelse)
        for side, other in (sides, sides[::-1]):
            elsewhere = {name_of(call.func) for part in other for call in collectives(part)}
            for call in (call for part in side for call in collectives(part)):
                name = name_of(call.func)
                function = script.function_of(call)
                # Two barriers let the first rank go before the others.
                is_turn = (
                    name.endswith("barrier")
                    and sum(
                        name_of(other_call.func).endswith("barrier")
                        for other_call in collectives(function)
                    )
                    > 1
                )
                if name not in elsewhere and not is_turn:
                    yield Hit(call.lineno, f"{name} within `if {test}`")
        if not branch.orelse and isinstance(branch.body[-1], ast.Return | ast.Continue):
            holder = script.parents.get(branch)
            fields = (getattr(holder, name, None) for name in ("body", "orelse", "finalbody"))
            blocks = [block for block in fields if isinstance(block, list) and branch in block]
            block = blocks[0] if blocks else []
            for part in block[block.index(branch) + 1 :] if block else ():
                for call in collectives(part):
                    fact = f"{name_of(call.func)} after `if {test}` made some ranks leave"
                    yield Hit(call.lineno, fact)
        # Each forward of DDP may broadcast the model's buffers.
        forwards = [
            [
                call
                for part in side
                for call in ast.walk(part)
                if isinstance(call, ast.Call) and name_of(call.func) in models
            ]
            for side in sides
        ]
        for call in forwards[0] or forwards[1] if not all(forwards) else ():
            name = name_of(call.func)
            yield Hit(
                call.lineno,
                f"DDP's forward {name}(...) runs within `if {test}`: other ranks may wait for it",
                f"call {name}.module(...) there, or call it on every rank",
            )


@TRAINING.rule(
    "DATA-PARALLEL", "warning", "its threads share one interpreter, and it cannot use more nodes",
    "use DistributedDataParallel with one process per GPU",
)  # fmt: skip
def data_parallel(script: Script) -> Iterator[Hit]:
    for call in script.named("DataParallel"):
        yield Hit(call.lineno, f"{name_of(call.func)} drives all GPUs from one process")


@TRAINING.rule(
    "FIXED-PORT", "warning", "another job on the node may use this port",
    "let torchrun choose it, or derive it: 20000 + int(os.environ['SLURM_JOB_ID']) % 10000",
)  # fmt: skip
def fixed_port(script: Script) -> Iterator[Hit]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key = node.targets[0].slice
            is_port = isinstance(key, ast.Constant) and key.value == "MASTER_PORT"
            if is_port and isinstance(node.value, ast.Constant):
                yield Hit(node.lineno, f"MASTER_PORT is {node.value.value!r}")
        elif isinstance(node, ast.Constant) and _PORT.fullmatch(str(node.value)):
            yield Hit(node.lineno, f"{node.value!r} is a fixed port")


@TRAINING.rule(
    "GPU-ZERO", "error", "all ranks of a node share its first GPU",
    'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first',
)  # fmt: skip
def one_gpu_for_all(script: Script) -> Iterator[Hit]:
    words = (
        *("set_device", "LOCAL_RANK", "local_rank", "SLURM_LOCALID", "device_ids", "device_id"),
        *("fully_shard", "init_device_mesh", "DeviceMesh", "CUDA_VISIBLE_DEVICES", "Accelerator"),
    )
    if not script.is_distributed or script.mentions(*words):
        return
    for call in script.calls:
        name = name_of(call.func).rpartition(".")[2]
        first = call.args[0] if call.args else None
        text = first.value if isinstance(first, ast.Constant) else None
        is_first = isinstance(first, ast.Constant) and first.value in (0, *CUDA)
        if (name == "cuda" and (not call.args or is_first)) or (
            name in ("to", "device") and text in CUDA
        ):
            yield Hit(
                call.lineno,
                f"{ast.unparse(call)[:60]}is called, but the script never uses LOCAL_RANK",
            )


CUDA = ("cuda", "cuda:0")


@TRAINING.rule(
    "NO-SEED", "note", "no two runs are equal, and the ranks may start with different parameters",
    "call torch.manual_seed with the same seed on all ranks",
)  # fmt: skip
def no_seed(script: Script) -> Iterator[Hit]:
    seeds = ("manual_seed", "manual_seed_all", "seed_everything", "set_seed", "seed_all", "seed")
    is_broadcast = bool(script.named(*WRAPS))  # DDP sends rank 0's parameters to all
    if script.is_training and not script.named(*seeds) and not is_broadcast:
        yield Hit(script.named("backward")[0].lineno, "the training has no manual_seed")


def load(path: str) -> Script:
    """Read a script.

    Raises:
        ValueError: The file cannot be read, or is not Python.
    """
    try:
        content = files.content(Path(path))
        return Script(path, ast.parse(content))
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: nested too deeply for Python's parser") from None
