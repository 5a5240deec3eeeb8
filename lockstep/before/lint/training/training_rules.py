"""Rules about training scripts: what is slow, wrong or hangs once there are several ranks."""

import ast
import re
from collections.abc import Iterator, Sequence

from lockstep.before.lint.batch import Hit
from lockstep.before.lint.training.training_script import (
    WRAPS,
    Script,
    argument,
    asks_for_rank,
    collectives,
    is_constant,
    name_of,
)

# Methods of a tensor that wait until the GPU has computed it.
READING = ("item", "tolist", "numpy", "cpu")
WAITING = ("synchronize", "empty_cache")
PRINTING = ("print", "info", "debug", "write", "log", "add_scalar")
_PORT = re.compile(r"tcp://[^:]+:[1-9][0-9]*")


def same_order(script: Script) -> Iterator[Hit]:
    """Look for a sampler whose epochs are all shuffled alike."""
    if script.named("set_epoch"):
        return
    for call in script.named("DistributedSampler"):
        if not is_constant(argument(call, "shuffle"), False) and not _validates(script, call):
            yield Hit(call.lineno, "DistributedSampler, and no set_epoch anywhere")


def _validates(script: Script, call: ast.Call) -> bool:
    """Return whether a sampler's name, or its data's, says that it is not for training."""
    holder = script.parents.get(call)
    targets = holder.targets if isinstance(holder, ast.Assign) else []
    text = " ".join(map(ast.unparse, [*targets, *call.args, *(one.value for one in call.keywords)]))
    return bool(re.search(r"val|test|eval|dev(?!ice)|infer", text, re.IGNORECASE))


def all_data_everywhere(script: Script) -> Iterator[Hit]:
    """Look for a loader of which each rank reads all."""
    if not script.is_distributed or script.mentions("DistributedSampler"):
        return
    for call in script.named("DataLoader"):
        is_shuffled = is_constant(argument(call, "shuffle"), True)
        if is_shuffled and argument(call, "sampler") is None:
            yield Hit(call.lineno, "DataLoader with shuffle=True on each rank, and no sampler")


def read_each_step(script: Script) -> Iterator[Hit]:
    """Look for what waits for the GPU in every step: reading a value, waiting, freeing memory."""
    if script.is_for_cpus:
        return
    losses = {name_of(call.func).rpartition(".")[0] for call in script.named("backward")} - {""}
    for call in filter(script.in_each_step, script.calls):
        name = name_of(call.func)
        last = name.rpartition(".")[2] or getattr(call.func, "attr", "")
        if last in READING and not call.args:
            yield Hit(call.lineno, f"{name or f'(...).{last}'}() in each step")
        elif last in WAITING and "cuda" in name:
            action = "leave it out of the step; a timer needs it once, around many steps"
            yield Hit(call.lineno, f"{name}() in each step: the CPU waits for the GPU", action)
        elif last in PRINTING and (read := losses & _plain_names(call)):
            yield Hit(call.lineno, f"{last} of the tensor {min(read)} in each step")


def _plain_names(call: ast.Call) -> set[str]:
    """Return the variables that a call prints as they are, and not an attribute or a call of."""
    inner = {one.value for one in ast.walk(call) if isinstance(one, ast.Attribute)}
    return {one.id for one in ast.walk(call) if isinstance(one, ast.Name) and one not in inner}


def collective_each_step(script: Script) -> Iterator[Hit]:
    """Look for collectives of one's own in every step, beside those of the gradients."""
    for call in collectives(script.tree):
        if script.in_each_step(call):
            yield Hit(call.lineno, f"{name_of(call.func)} in each step")


def unused_parameters(script: Script) -> Iterator[Hit]:
    """Look for DDP that walks the graph in every step for parameters without a gradient."""
    for call in script.named(*WRAPS, "DistributedDataParallelKwargs", "DDPStrategy"):
        if is_constant(argument(call, "find_unused_parameters"), True):
            yield Hit(call.lineno, "find_unused_parameters=True")


def no_workers(script: Script) -> Iterator[Hit]:
    """Look for loaders that read their batches in the process that trains, but not from memory."""
    if not script.is_distributed or script.named("TensorDataset"):
        return
    for call in script.named("DataLoader"):
        given = argument(call, "num_workers")
        is_hidden = any(word.arg is None for word in call.keywords) or len(call.args) > 5
        if is_constant(given, 0) or (given is None and not is_hidden):
            how = "with num_workers=0" if given else "without num_workers, which is 0"
            yield Hit(call.lineno, f"DataLoader {how}")


def no_sync(script: Script) -> Iterator[Hit]:
    """Look for accumulation whose every backward exchanges all gradients."""
    if not script.named(*WRAPS) or script.mentions("no_sync", "require_backward_grad_sync"):
        return
    for call in script.named("step"):
        loop = script.loop_of(call)
        branches = [one for one in script.around(call) if isinstance(one, ast.If)]
        counted = [one for one in branches if loop in [*script.around(one)] and _counts(one.test)]
        if loop in script.step_blocks and counted and "optim" in name_of(call.func).lower():
            yield Hit(call.lineno, f"{name_of(call.func)} if {ast.unparse(counted[0].test)[:40]}")
            return


def _counts(test: ast.AST) -> bool:
    return any(isinstance(one, ast.Mod) for one in ast.walk(test))


def files_of_all_ranks(script: Script) -> Iterator[Hit]:
    """Look for what every rank writes to one place: a checkpoint, a data set that is fetched."""
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


def device_of_global_rank(script: Script) -> Iterator[Hit]:
    """Look for a GPU that is chosen by the rank in the job, and not on the node."""
    ranks = {
        name_of(node.targets[0])
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and _is_global_rank(node.value, set())
    }
    for call in script.named("set_device"):
        if call.args and _is_global_rank(call.args[0], ranks):
            yield Hit(call.lineno, f"{ast.unparse(call)[:60]} by the rank in the whole job")


def _is_global_rank(node: ast.AST, ranks: set[str]) -> bool:
    """Return whether an expression is the rank in the job, or one of the names that hold it."""
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    calls = [name_of(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)]
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    is_of_node = any(isinstance(one, ast.BinOp | ast.IfExp | ast.BoolOp) for one in ast.walk(node))
    is_rank = bool(ranks & {*names} or {"RANK", "SLURM_PROCID"} & {*map(str, texts)})
    is_rank = is_rank or any(one.rpartition(".")[2] == "get_rank" for one in calls)
    return is_rank and not is_of_node


def gloo_for_gpus(script: Script) -> Iterator[Hit]:
    """Look for gloo, which copies each gradient through the host, where tensors are on GPUs."""
    uses_gpus = script.named("cuda", "set_device") or script.mentions("cuda")
    for call in script.named("init_process_group") if uses_gpus else ():
        given = call.args[0] if call.args else argument(call, "backend")
        if isinstance(given, ast.Constant) and given.value == "gloo":
            yield Hit(call.lineno, "the backend is gloo, and tensors are on GPUs")


def some_ranks_only(script: Script) -> Iterator[Hit]:
    """Look for collective calls that not every rank makes, DDP's forward among them."""
    models = script.assigned(*WRAPS)
    for branch in (node for node in ast.walk(script.tree) if isinstance(node, ast.If)):
        if asks_for_rank(branch.test):
            yield from _one_sided(script, branch)
            yield from _left_behind(script, branch)
            yield from _forward_of_some(branch, models)


def _one_sided(script: Script, branch: ast.If) -> Iterator[Hit]:
    sides = [_names(branch.body), _names(branch.orelse)]
    for side, other in ((branch.body, sides[1]), (branch.orelse, sides[0])):
        for call in (call for part in side for call in collectives(part)):
            name = name_of(call.func)
            if name not in other and not _is_turn(script, call, name):
                yield Hit(call.lineno, f"{name} within `if {ast.unparse(branch.test)}`")


def _forward_of_some(branch: ast.If, models: set[str]) -> Iterator[Hit]:
    """Yield the forwards of DDP in one branch alone: each may broadcast the model's buffers."""
    sides = [
        [call for part in side for call in ast.walk(part)
         if isinstance(call, ast.Call) and name_of(call.func) in models]
        for side in (branch.body, branch.orelse)
    ]  # fmt: skip
    for call in sides[0] or sides[1] if not (sides[0] and sides[1]) else ():
        what = f"DDP's forward {name_of(call.func)}(...)"
        action = f"call {name_of(call.func)}.module(...) there, or call it on every rank"
        fact = f"{what} within `if {ast.unparse(branch.test)}`: the other ranks may wait for it"
        yield Hit(call.lineno, fact, action)


def _names(block: Sequence[ast.AST]) -> set[str]:
    return {name_of(call.func) for part in block for call in collectives(part)}


def _is_turn(script: Script, call: ast.Call, name: str) -> bool:
    """Return whether a barrier is one of two by which the first rank goes before the others."""
    if not name.endswith("barrier"):
        return False
    function = script.function_of(call)
    return sum(name_of(one.func).endswith("barrier") for one in collectives(function)) > 1


def _left_behind(script: Script, branch: ast.If) -> Iterator[Hit]:
    """Yield collective calls after some ranks have returned, in the same block."""
    holder = script.parents.get(branch)
    if branch.orelse or not isinstance(branch.body[-1], ast.Return | ast.Continue):
        return
    block = next((b for b in _blocks(holder) if branch in b), [])
    for part in block[block.index(branch) + 1 :] if branch in block else []:
        for call in collectives(part):
            why = f"after `if {ast.unparse(branch.test)}` let some ranks go"
            yield Hit(call.lineno, f"{name_of(call.func)} {why}")


def _blocks(holder: ast.AST | None) -> Iterator[list[ast.AST]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(holder, field, None)
        if isinstance(block, list):
            yield block


def data_parallel(script: Script) -> Iterator[Hit]:
    """Look for torch's older way, threads of one process."""
    for call in script.named("DataParallel"):
        yield Hit(call.lineno, f"{name_of(call.func)} drives all GPUs from one process")


def fixed_port(script: Script) -> Iterator[Hit]:
    """Look for a port that is written out."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key = node.targets[0].slice
            is_port = isinstance(key, ast.Constant) and key.value == "MASTER_PORT"
            if is_port and isinstance(node.value, ast.Constant):
                yield Hit(node.lineno, f"MASTER_PORT is {node.value.value!r}")
        elif isinstance(node, ast.Constant) and _PORT.fullmatch(str(node.value)):
            yield Hit(node.lineno, f"{node.value!r} names a port")


def one_gpu_for_all(script: Script) -> Iterator[Hit]:
    """Look for ranks that all take the first GPU."""
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
            yield Hit(call.lineno, f"{ast.unparse(call)[:60]}, and no LOCAL_RANK anywhere")


CUDA = ("cuda", "cuda:0")


def no_seed(script: Script) -> Iterator[Hit]:
    """Look for a training whose random numbers nobody chose."""
    seeds = ("manual_seed", "manual_seed_all", "seed_everything", "set_seed", "seed_all", "seed")
    is_broadcast = bool(script.named(*WRAPS))  # DDP sends rank 0's parameters to all
    if script.is_training and not script.named(*seeds) and not is_broadcast:
        yield Hit(script.named("backward")[0].lineno, "a training without manual_seed")
