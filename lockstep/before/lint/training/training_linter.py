"""Errors that a reader of a training script can find before its ranks hang or wait."""

import ast
from pathlib import Path

from lockstep.before.lint.linter import Finding, Rule, judged
from lockstep.before.lint.training import training_rules as rules
from lockstep.before.lint.training.training_script import Script
from lockstep.core.system import files

SUFFIX = ".py"


RULES: tuple[Rule[Script], ...] = (
    Rule(
        "SET-EPOCH", "error", "each epoch then has the order of the first",
        "call sampler.set_epoch(epoch) before each epoch", rules.same_order,
    ),
    Rule(
        "NO-SAMPLER", "warning", "each rank then goes through all of the data",
        "give the DataLoader a DistributedSampler, and no shuffle", rules.all_data_everywhere,
    ),
    Rule(
        "SYNC-IN-STEP", "warning", "the CPU waits there for the GPU, which idles afterwards",
        "keep loss.detach() and read it every hundred steps or at the epoch's end",
        rules.read_each_step,
    ),
    Rule(
        "STEP-COLLECTIVE", "warning", "each rank waits there for the slowest, beside the gradients",
        "do it every hundred steps or at the epoch's end", rules.collective_each_step,
    ),
    Rule(
        "UNUSED-PARAMETERS", "warning", "DDP walks the whole graph in each step",
        "leave it out, unless some parameters really get no gradient", rules.unused_parameters,
    ),
    Rule(
        "NO-WORKERS", "warning", "the process that trains reads each batch itself, meanwhile idle",
        "give num_workers, such as the cores of a rank less one, and persistent_workers=True",
        rules.no_workers,
    ),
    Rule(
        "NO-SYNC", "warning", "each backward exchanges all gradients, and only the last must",
        "do the other backwards within `with model.no_sync():`", rules.no_sync,
    ),
    Rule(
        "RANK-FILES", "warning", "the ranks write over each other, and the file may be torn",
        "do it on rank 0 alone, and let the others wait at a barrier", rules.files_of_all_ranks,
    ),
    Rule(
        "RANK-DEVICE", "error", 'the second node fails with "invalid device ordinal"',
        'use int(os.environ["LOCAL_RANK"])', rules.device_of_global_rank,
    ),
    Rule(
        "GLOO", "warning", "gloo copies each gradient through the host",
        "use nccl, which is torch's default for GPUs", rules.gloo_for_gpus,
    ),
    Rule(
        "RANK-COLLECTIVE", "error", "the other ranks wait for it until the time-out",
        "call it on every rank, and let only what prints or writes depend on the rank",
        rules.some_ranks_only,
    ),
    Rule(
        "DATA-PARALLEL", "warning", "its threads share one interpreter, and no second node",
        "use DistributedDataParallel, one process a GPU", rules.data_parallel,
    ),
    Rule(
        "FIXED-PORT", "warning", "another job on the node may have it",
        "leave it to torchrun, or derive it: 20000 + int(os.environ['SLURM_JOB_ID']) % 10000",
        rules.fixed_port,
    ),
    Rule(
        "GPU-ZERO", "error", "all ranks of a node then share its first GPU",
        'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first', rules.one_gpu_for_all,
    ),
    Rule(
        "NO-SEED", "note", "no two runs are alike, and ranks may begin with other parameters",
        "call torch.manual_seed with one seed on all ranks", rules.no_seed,
    ),
)  # fmt: skip


def load(path: str) -> Script:
    """Read a script.

    Raises:
        ValueError: There is no such file, or it is not Python.
    """
    try:
        content = files.content(Path(path))
        return Script(path, ast.parse(content))
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: nested too deep to be read") from None


def lint(script: Script) -> list[Finding]:
    """Return what is wrong with a script, from its first line to its last."""
    return judged(script.path, script, RULES)
