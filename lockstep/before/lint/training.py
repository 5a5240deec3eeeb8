"""Rules for Python training scripts: errors that make ranks slow, wrong, or wait for ever."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lockstep.before.lint.rules import Hit, Rules, Severity
from lockstep.core import files

TRAINING = Rules()
Loop = ast.For | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Classes that wrap a model for several ranks.
WRAPS = ("DistributedDataParallel", "DDP")
# Names by which a script tests its rank.
OF_RANKS = ("rank", "is_main_process", "is_master", "is_main", "is_global_zero")
# Every rank must call these functions, or the other ranks wait (torch.distributed, "Collective
# functions").
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
    path: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [*ast.walk(self.tree)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def calls(self) -> list[ast.Call]:
        calls = (node for node in self.nodes if isinstance(node, ast.Call))
        return sorted(calls, key=lambda call: call.lineno)

    def find(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions or methods with these names, without their modules."""
        return [call for call in self.calls if last_name(call) in names]

    def mentions(self, *words: str) -> bool:
        """Return whether any name, attribute, argument or string is one of these words."""
        return any(word in words for node in self.nodes for word in _words(node))

    @property
    def is_distributed(self) -> bool:
        return bool(self.find("init_process_group", *WRAPS))

    @cached_property
    def packages(self) -> set[str]:
        """The packages and modules that the script imports; "" stands for a relative import."""
        names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add("" if node.level else (node.module or "").partition(".")[0])
        return names

    def find_variables(self) -> list[str]:
        """Return the variables with address and number of ranks that torch surely reads."""
        calls = self.find("init_process_group")
        if len(calls) != 1 or len(calls[0].args) > 1:
            return []
        if any("__main__" not in ast.unparse(test) for test in self.conditions(calls[0])):
            return []
        keywords = {word.arg: word.value for word in calls[0].keywords}
        method = keywords.get("init_method")
        if {None, "store"} & keywords.keys() or (method and ast.unparse(method) != "'env://'"):
            return []
        return ["MASTER_ADDR"] if "world_size" in keywords else ["MASTER_ADDR", "WORLD_SIZE"]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_of(self, node: ast.AST) -> ast.AST:
        return next(
            (part for part in self.ancestors(node) if isinstance(part, Function)), self.tree
        )

    def loop_of(self, node: ast.AST) -> Loop | None:
        """Return the innermost loop around a node, within the node's function."""
        for holder in self.ancestors(node):
            if isinstance(holder, Loop):
                return holder
            if isinstance(holder, Function | ast.Lambda):
                return None
        return None

    def purpose(self, call: ast.Call) -> tuple[list[str], bool]:
        """Return the variables that hold a call's value, and whether names say: not for training.

        These are the names of the sampler or loader and of its data.
        """
        holder = self.parents.get(call)
        targets = holder.targets if isinstance(holder, ast.Assign) else []
        given = [word.value for word in call.keywords if word.arg in ("dataset", "sampler")]
        parts = [*targets, *call.args[:1], *given]
        text = " ".join(map(ast.unparse, parts))
        validates = re.search(r"val|test|eval|dev(?!ice)|infer", text, re.IGNORECASE)
        return [*map(ast.unparse, targets)], bool(validates)

    def default_of(self, node: ast.expr | None) -> ast.expr | None:
        """Return an expression, or the default of the option of argparse that it reads."""
        if not isinstance(node, ast.Attribute):
            return node
        for call in self.find("add_argument"):
            options = [ast.unparse(option).strip("'-").replace("-", "_") for option in call.args]
            if node.attr in options:
                return argument(call, "default")
        return node

    @cached_property
    def step_blocks(self) -> set[ast.AST]:
        """The loops, and functions called in loops, that compute gradients."""
        blocks: set[ast.AST] = set()
        for backward in self.find("backward"):
            function = self.function_of(backward)
            if loop := self.loop_of(backward):
                blocks.add(loop)
            elif isinstance(function, Function):
                loops = {loop for call in self.find(function.name) if (loop := self.loop_of(call))}
                blocks |= {function, *loops} if loops else set()
        return blocks

    def is_in_each_step(self, call: ast.Call) -> bool:
        """Return whether at least some ranks make a call in each step."""
        for holder in self.ancestors(call):
            if holder in self.step_blocks:
                return not (isinstance(holder, ast.For) and call in ast.walk(holder.iter))
            if isinstance(holder, Loop | Function | ast.Lambda):
                return False
            if isinstance(holder, ast.If | ast.IfExp):
                is_plain = isinstance(holder.test, ast.Compare | ast.Call | ast.Name)
                if not (is_plain and asks_for_rank(holder.test)):
                    return False
        return False

    def conditions(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> list[ast.expr]:
        """Return the conditions on which a node depends, also those of its function's calls."""
        function = self.function_of(node)
        tests = [part.test for part in self.ancestors(node) if isinstance(part, ast.If | ast.IfExp)]
        for part in ast.walk(function):
            if isinstance(part, ast.If) and isinstance(part.body[-1], ast.Return | ast.Continue):
                tests += [part.test] if part.lineno < getattr(node, "lineno", 0) else []
        if isinstance(function, Function) and function.name not in seen:
            for call in self.find(function.name):
                tests += self.conditions(call, seen | {function.name})
        return tests


def name_of(node: ast.AST) -> str:
    """Return the dotted name of an expression, such as `torch.nn.DataParallel` or `.item`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return ""


def last_name(call: ast.Call) -> str:
    return name_of(call.func).rpartition(".")[2]


def argument(call: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def asks_for_rank(test: ast.AST) -> bool:
    """Return whether a condition depends on the rank."""
    words = {word.lower() for node in ast.walk(test) for word in _words(node)}
    return any(word in OF_RANKS or word.endswith("rank") for word in words)


def collectives(*blocks: ast.AST) -> Iterator[ast.Call]:
    for node in (node for block in blocks for node in ast.walk(block)):
        if isinstance(node, ast.Call):
            group, _, name = name_of(node.func).rpartition(".")
            if name in COLLECTIVES and group.rpartition(".")[2] in ("dist", "distributed", "c10d"):
                yield node


def barriers(function: ast.AST) -> int:
    return sum(last_name(call).endswith("barrier") for call in collectives(function))


def _words(node: ast.AST) -> Iterator[str]:
    for field in ("id", "attr", "arg", "name"):
        word = getattr(node, field, None)
        if isinstance(word, str):
            yield word
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


@TRAINING.rule("SET-EPOCH", "error",
               "every epoch uses the samples in the same order as the first epoch",
               "call sampler.set_epoch(epoch) before each epoch")  # fmt: skip
def same_order(script: Script) -> Iterator[Hit]:
    for call in script.find("DistributedSampler") if not script.find("set_epoch") else ():
        function = script.function_of(call)
        # A benchmark with the fixture `lockstep` measures a few batches of one epoch.
        is_benchmark = isinstance(function, Function) and any(
            part.arg == "lockstep" for part in function.args.args
        )
        _, validates = script.purpose(call)
        if not (is_constant(argument(call, "shuffle"), False) or validates or is_benchmark):
            yield Hit(call.lineno, "the script has a DistributedSampler, but never calls set_epoch")


@TRAINING.rule("NO-SAMPLER", "warning", "each rank trains on all of the data",
               "give the DataLoader a DistributedSampler instead of shuffle=True")  # fmt: skip
def all_data_everywhere(script: Script) -> Iterator[Hit]:
    if not script.is_distributed or script.mentions("DistributedSampler"):
        return
    for call in script.find("DataLoader"):
        is_shuffled = is_constant(argument(call, "shuffle"), True)
        if is_shuffled and argument(call, "sampler") is None:
            yield Hit(call.lineno, "DataLoader has shuffle=True and no sampler")


# Methods of a tensor that wait for the GPU; functions that wait; functions that print or log.
READING = ("item", "tolist", "numpy", "cpu")
WAITING = ("synchronize", "empty_cache")
PRINTING = ("print", "info", "debug", "write", "log", "add_scalar")


@TRAINING.rule("SYNC-IN-STEP", "warning",
               "the CPU waits for the GPU, and then the GPU waits for new work",
               "store loss.detach(), and read its value only every hundred steps")  # fmt: skip
def read_each_step(script: Script) -> Iterator[Hit]:
    if script.mentions("gloo") and not script.mentions("cuda", "device", "nccl", "to"):
        return  # a script for CPUs
    losses = {name_of(call.func).rpartition(".")[0] for call in script.find("backward")} - {""}
    for call in filter(script.is_in_each_step, script.calls):
        name = name_of(call.func)
        last = last_name(call) or getattr(call.func, "attr", "")
        if last in READING and not call.args:
            called = name or f"(...).{last}"
            yield Hit(call.lineno, f"{called}() is called in each step")
        elif last in WAITING and "cuda" in name:
            action = "move this call out of the step"
            if last == "synchronize":
                action = (
                    "move this call out of the step, and time many steps between two such calls"
                )
            yield Hit(
                call.lineno, f"{name}() is called in each step: the CPU waits for the GPU", action
            )
        elif last in PRINTING:
            nodes = [*ast.walk(call)]
            # Variables that are printed as they are, without attribute or call.
            inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
            names = {node.id for node in nodes if isinstance(node, ast.Name) and node not in inner}
            if printed := losses & names:
                tensor = min(printed)
                yield Hit(call.lineno, f"{last}() reads the value of tensor {tensor} in each step")


@TRAINING.rule("STEP-COLLECTIVE", "warning",
               "all ranks wait for each other in this call and again in the all-reduce of the "
               "gradients",
               "call the collective every hundred steps or at the end of the epoch")  # fmt: skip
def collective_each_step(script: Script) -> Iterator[Hit]:
    for call in filter(script.is_in_each_step, collectives(script.tree)):
        yield Hit(call.lineno, f"the collective {name_of(call.func)} is called in each step")


@TRAINING.rule("UNUSED-PARAMETERS", "warning", "DDP searches the whole autograd graph in each step",
               "remove find_unused_parameters, unless some parameters get no gradient")  # fmt: skip
def unused_parameters(script: Script) -> Iterator[Hit]:
    for call in script.find(*WRAPS, "DistributedDataParallelKwargs", "DDPStrategy"):
        if is_constant(argument(call, "find_unused_parameters"), True):
            yield Hit(call.lineno, "find_unused_parameters=True is set")


@TRAINING.rule("NO-WORKERS", "warning",
               "the training process itself loads each batch, and the training waits meanwhile",
               "set num_workers to 1 or more, at most to the cores of a rank, and set "
               "persistent_workers=True"
               )  # fmt: skip
def no_workers(script: Script) -> Iterator[Hit]:
    if not script.is_distributed or script.find("TensorDataset"):
        return
    for call in script.find("DataLoader"):
        workers = argument(call, "num_workers")
        is_hidden = any(word.arg is None for word in call.keywords) or len(call.args) > 5
        names, validates = script.purpose(call)
        if (is_constant(script.default_of(workers), 0) or not (workers or is_hidden)) and (
            not validates
        ):
            by_default = "" if is_constant(workers, 0) else " by default"
            loader = " ".join(["DataLoader", *names])
            yield Hit(call.lineno, f"{loader} has num_workers=0{by_default}")


@TRAINING.rule("NO-SYNC", "warning",
               "each backward pass exchanges all gradients, but only the last pass before an "
               "optimizer step needs this exchange",
               "run every backward pass except the last one within `with "
               "model.no_sync():`")  # fmt: skip
def no_sync(script: Script) -> Iterator[Hit]:
    if not script.find(*WRAPS) or script.mentions("no_sync", "require_backward_grad_sync"):
        return
    for call in script.find("step"):
        loop = script.loop_of(call)
        every_nth = [
            holder.test
            for holder in script.ancestors(call)
            if isinstance(holder, ast.If) and loop in [*script.ancestors(holder)]
            and any(isinstance(node, ast.Mod) for node in ast.walk(holder.test))
        ]  # fmt: skip
        if loop in script.step_blocks and every_nth and "optim" in name_of(call.func).lower():
            yield Hit(
                call.lineno, f"{name_of(call.func)} runs only if {ast.unparse(every_nth[0])[:40]}"
            )
            return


@TRAINING.rule("RANK-FILES", "warning",
               "the ranks overwrite each other's file, so the file may be corrupt",
               "write the file only on rank 0, and let the other ranks wait at a "
               "barrier")  # fmt: skip
def files_of_all_ranks(script: Script) -> Iterator[Hit]:
    for call in script.calls if script.is_distributed else ():
        is_save = name_of(call.func) == "torch.save" and not asks_for_rank(call)
        downloads = is_constant(argument(call, "download"), True)
        takes_turns = downloads and barriers(script.function_of(call)) > 0
        if not (is_save or downloads) or takes_turns:
            continue
        if not any(map(asks_for_rank, script.conditions(call))):
            what = "torch.save writes one file" if is_save else "download=True is set"
            yield Hit(call.lineno, f"{what} on every rank")


@TRAINING.rule("RANK-DEVICE", "error",
               'the ranks of the second node fail with "invalid device ordinal"',
               'use int(os.environ["LOCAL_RANK"])')  # fmt: skip
def device_of_global_rank(script: Script) -> Iterator[Hit]:
    ranks = {
        name_of(node.targets[0])
        for node in script.nodes
        if isinstance(node, ast.Assign) and _is_global_rank(node.value, set())
    }
    seen: set[str] = set()  # one finding for each function, which may be called often
    for call in script.calls:
        name, devices = last_name(call) or getattr(call.func, "attr", ""), list[ast.expr]()
        devices += [word.value for word in call.keywords if word.arg in ("device_ids", "device")]
        devices += call.args if name in ("set_device", "cuda", "device", "to") else []
        if name not in seen and any(_is_global_rank(device, ranks) for device in devices):
            seen.add(name)
            call_text = ast.unparse(call)[:60]
            yield Hit(call.lineno, f"{call_text} uses the global rank as a device number")


def _is_global_rank(node: ast.AST, ranks: set[str]) -> bool:
    """Return whether an expression is the rank in the job, or one of the names in `ranks`."""
    nodes = [*ast.walk(node)]
    if any(isinstance(part, ast.BinOp | ast.IfExp | ast.BoolOp) for part in nodes):
        return False  # the result may be a number on the node
    return any(
        (isinstance(part, ast.Name) and part.id in ranks)
        or (isinstance(part, ast.Call) and last_name(part) == "get_rank")
        or (isinstance(part, ast.Constant) and part.value in ("RANK", "SLURM_PROCID"))
        for part in nodes
    )


# Batch scripts have the same rule about their options.
GLOO: tuple[str, Severity, str, str] = (
    "GLOO", "warning", "gloo copies each gradient through the memory of the host",
    "use the backend nccl, which is torch's default for GPUs",
)  # fmt: skip


@TRAINING.rule(*GLOO)
def gloo_for_gpus(script: Script) -> Iterator[Hit]:
    uses_gpus = script.find("cuda", "set_device") or script.mentions("cuda")
    for call in script.find("init_process_group") if uses_gpus else ():
        backend = call.args[0] if call.args else argument(call, "backend")
        if isinstance(backend, ast.Constant) and backend.value == "gloo":
            yield Hit(call.lineno, "the backend is gloo, but tensors are on GPUs")


@TRAINING.rule("RANK-COLLECTIVE", "error",
               "the ranks that make this call wait for the other ranks until they time out",
               "call the collective on every rank; only printing and writing may depend on "
               "the rank")  # fmt: skip
def some_ranks_only(script: Script) -> Iterator[Hit]:
    """Yield collective calls, including DDP's forward, that not every rank makes."""
    models = {
        name_of(target)
        for node in script.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        and last_name(node.value) in WRAPS
        for target in node.targets
    } - {""}  # fmt: skip
    for branch in (node for node in script.nodes if isinstance(node, ast.If)):
        if not asks_for_rank(branch.test):
            continue
        test = ast.unparse(branch.test)
        forwards = []
        for side, other in ((branch.body, branch.orelse), (branch.orelse, branch.body)):
            elsewhere = {name_of(call.func) for call in collectives(*other)}
            for call in collectives(*side):
                name = name_of(call.func)
                # With two barriers, the script may let one rank go first.
                is_turn = name.endswith("barrier") and barriers(script.function_of(call)) > 1
                if name not in elsewhere and not is_turn:
                    yield Hit(call.lineno, f"{name} is called within `if {test}`")
            calls = (node for part in side for node in ast.walk(part) if isinstance(node, ast.Call))
            forwards.append([call for call in calls if name_of(call.func) in models])
        if not branch.orelse and isinstance(branch.body[-1], ast.Return | ast.Continue):
            holder = script.parents.get(branch)
            for name in ("body", "orelse", "finalbody"):
                block = getattr(holder, name, None)
                if isinstance(block, list) and branch in block:
                    for call in collectives(*block[block.index(branch) + 1 :]):
                        fact = (
                            f"the ranks that leave at `if {test}` never call {name_of(call.func)}"
                        )
                        yield Hit(call.lineno, fact)
        # Each forward of DDP may broadcast the model's buffers.
        for call in forwards[0] or forwards[1] if not all(forwards) else ():
            name = name_of(call.func)
            yield Hit(
                call.lineno,
                f"DDP's forward pass {name}(...) runs only where `if {test}` is true, and may "
                "wait for the other ranks",
                f"call {name}.module(...) in this branch, or call {name}(...) on every rank",
            )


@TRAINING.rule("DATA-PARALLEL", "warning",
               "DataParallel drives all GPUs by threads of one Python process, and works only on "
               "one node",
               "use DistributedDataParallel with one process per GPU")  # fmt: skip
def data_parallel(script: Script) -> Iterator[Hit]:
    for call in script.find("DataParallel"):
        yield Hit(
            call.lineno, f"the script uses {name_of(call.func)} instead of DistributedDataParallel"
        )


PORT = re.compile(r"tcp://[^:]+:[1-9][0-9]*")


@TRAINING.rule("FIXED-PORT", "warning", "another job on the node may already use this port",
               "let torchrun choose the port, or derive it from the job's id: 20000 + "
               "int(os.environ['SLURM_JOB_ID']) % 10000")  # fmt: skip
def fixed_port(script: Script) -> Iterator[Hit]:
    for node in script.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key = node.targets[0].slice
            is_port = isinstance(key, ast.Constant) and key.value == "MASTER_PORT"
            if is_port and isinstance(node.value, ast.Constant):
                yield Hit(node.lineno, f"MASTER_PORT is {node.value.value!r}")
        elif isinstance(node, ast.Constant) and PORT.fullmatch(str(node.value)):
            yield Hit(node.lineno, f"{node.value!r} is a fixed port")


@TRAINING.rule("GPU-ZERO", "error", "all ranks of a node use the node's first GPU",
               'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first')  # fmt: skip
def one_gpu_for_all(script: Script) -> Iterator[Hit]:
    words = (
        *("set_device", "LOCAL_RANK", "local_rank", "SLURM_LOCALID", "device_ids", "device_id"),
        *("fully_shard", "init_device_mesh", "DeviceMesh", "CUDA_VISIBLE_DEVICES", "Accelerator"),
    )
    for call in script.calls if script.is_distributed and not script.mentions(*words) else ():
        name, first = last_name(call), call.args[0] if call.args else None
        device = first.value if isinstance(first, ast.Constant) else None
        is_first = device in ("cuda", "cuda:0")
        if (name in ("to", "device") and is_first) or (
            name == "cuda" and (first is None or is_first or device == 0)
        ):
            call_text = ast.unparse(call)[:60]
            fact = f"the script calls {call_text}, but never uses LOCAL_RANK"
            yield Hit(call.lineno, fact)


@TRAINING.rule("NO-SEED", "note",
               "every run gives other results, and ranks may start with different parameters",
               "call torch.manual_seed with the same seed on all ranks")  # fmt: skip
def no_seed(script: Script) -> Iterator[Hit]:
    seeds = ("manual_seed", "manual_seed_all", "seed_everything", "set_seed", "seed_all", "seed")
    # DDP copies rank 0's parameters to all ranks, which replaces equal seeds.
    backwards = script.find("backward") if not script.find(*seeds, *WRAPS) else []
    if backwards:
        yield Hit(backwards[0].lineno, "the training sets no seed")


def load(path: str) -> Script:
    try:
        return Script(path, ast.parse(files.content(Path(path))))
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno or 1}: invalid Python: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"the code in {path} is nested too deeply for Python's parser") from None
