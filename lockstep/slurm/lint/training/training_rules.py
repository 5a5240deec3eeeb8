"""Rules about training scripts: what is slow, wrong or hangs once there are several ranks."""

import ast
import re
from collections.abc import Iterator, Sequence

from lockstep.slurm.lint.batch import Hit
from lockstep.slurm.lint.training.training_script import (
    Loop,
    Script,
    argument,
    asks_for_rank,
    collectives,
    is_constant,
    name_of,
)

# Methods of a tensor that wait until the GPU has computed it.
READING = ("item", "tolist", "numpy", "cpu")
_PORT = re.compile(r"tcp://[^:]+:[1-9][0-9]*")


def same_order(script: Script) -> Iterator[Hit]:
    """Look for a sampler whose epochs are all shuffled alike."""
    if script.named("set_epoch"):
        return
    for call in script.named("DistributedSampler"):
        if not is_constant(argument(call, "shuffle"), False):
            yield Hit(call.lineno, "DistributedSampler, and no set_epoch anywhere")


def all_data_everywhere(script: Script) -> Iterator[Hit]:
    """Look for a loader of which each rank reads all."""
    if not script.is_distributed or script.mentions("DistributedSampler"):
        return
    for call in script.named("DataLoader"):
        is_shuffled = is_constant(argument(call, "shuffle"), True)
        if is_shuffled and argument(call, "sampler") is None:
            yield Hit(call.lineno, "DataLoader with shuffle=True on each rank, and no sampler")


def read_each_step(script: Script) -> Iterator[Hit]:
    """Look for what waits for the GPU in every step."""
    steps = {loop for call in script.named("backward") if (loop := script.loop_of(call))}
    for call in script.named(*READING):
        loop = script.loop_of(call)
        if loop in steps and not call.args and not _is_now_and_then(script, call, loop):
            what = name_of(call.func) or f"(...).{getattr(call.func, 'attr', '')}"
            yield Hit(call.lineno, f"{what}() in each step")


def _is_now_and_then(script: Script, call: ast.AST, loop: Loop | None) -> bool:
    """Return whether a condition within the loop is around a call, or its loader's."""
    for holder in script.around(call):
        if holder is loop:
            return isinstance(loop, ast.For) and call in ast.walk(loop.iter)
        if isinstance(holder, ast.If | ast.IfExp):
            return True
    return False


def some_ranks_only(script: Script) -> Iterator[Hit]:
    """Look for collective calls that not every rank makes."""
    for branch in (node for node in ast.walk(script.tree) if isinstance(node, ast.If)):
        if asks_for_rank(branch.test):
            yield from _one_sided(script, branch)
            yield from _left_behind(script, branch)


def _one_sided(script: Script, branch: ast.If) -> Iterator[Hit]:
    sides = [_names(branch.body), _names(branch.orelse)]
    for side, other in ((branch.body, sides[1]), (branch.orelse, sides[0])):
        for call in (call for part in side for call in collectives(part)):
            name = name_of(call.func)
            if name not in other and not _is_turn(script, call, name):
                yield Hit(call.lineno, f"{name} within `if {ast.unparse(branch.test)}`")


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
    words = ("set_device", "LOCAL_RANK", "local_rank", "SLURM_LOCALID", "device_ids")
    if not script.is_distributed or script.mentions(*words):
        return
    for call in script.calls:
        name = name_of(call.func).rpartition(".")[2]
        first = call.args[0] if call.args else None
        text = first.value if isinstance(first, ast.Constant) else None
        if (name == "cuda" and not call.args) or (name in ("to", "device") and text in CUDA):
            yield Hit(call.lineno, f"{ast.unparse(call)[:60]}, and no LOCAL_RANK anywhere")


CUDA = ("cuda", "cuda:0")


def no_seed(script: Script) -> Iterator[Hit]:
    """Look for a training whose random numbers nobody chose."""
    seeds = ("manual_seed", "manual_seed_all", "seed_everything", "set_seed", "seed_all", "seed")
    if script.is_training and not script.named(*seeds):
        yield Hit(script.named("backward")[0].lineno, "a training without manual_seed")
