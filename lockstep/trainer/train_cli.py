"""`lockstep train` and `lockstep verify`: commands that start the trainer's ranks."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from lockstep.campaign.local import launcher
from lockstep.campaign.next import how, last_words
from lockstep.core.processes import die_with_parent
from lockstep.core.sizes import LR_SCALES, OPTIMIZERS, PRECISIONS, SCHEDULERS
from lockstep.ranks.placement import VARIABLES, refuse_apart
from lockstep.ranks.process_group import usable_cores
from lockstep.report.tracker.live import Sender, Silent, following
from lockstep.trainer import failures
from lockstep.trainer.failures import DivergedError, Failure
from lockstep.trainer.plan import Batch, TrainConfig
from lockstep.trainer.verification import CURVE_TOLERANCE, MIN_ACCURACY, Check, compare

# How often the front end looks for what an epoch left.
POLL_S = 0.5
# Equal everywhere but in the number of ranks. 120 divides over 1 to 6, 8, 10 and 12 of them, and
# the 1,440 training digits into whole batches.
VERIFY: dict[str, Any] = {
    "workload": "mlp:width=64,depth=2",
    "data": "digits",
    "global_batch": 120,
    "epochs": 12,
    "lr": 0.1,
    "scheduler": "cosine",
}
# Few steps, for a model of the user's own may be large.
OWN = {"data": "synthetic", "num_synthetic": 480, "epochs": 2, "lr": 0.01}


@click.command(
    epilog="""\b
Examples:
  lockstep train --workload mlp:width=64 --data digits --global-batch 64
  lockstep train --workload mlp:width=64 --data digits --local-batch 32 --optimizer adamw
      --lr 0.001 --warmup-epochs 1 --epochs 4 --checkpoint-every 2 --name adamw
  lockstep train --world-size 2 --workload mnist_cnn --data mnist --local-batch 16 --epochs 5
  lockstep train --workload resnet18_cifar --data cifar10 --global-batch 512 --lr 0.1
      --lr-scale linear --scheduler cosine --augment --precision bf16 --epochs 30 --resume
"""
)
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Ranks to start on this machine; under torchrun or srun, theirs.",
)
@click.option("--workload", required=True, help="Model, as in `resnet18` or `mlp:width=64`.")
@click.option("--data", required=True, help="digits, synthetic, mnist or cifar10.")
@click.option("--data-root", default="data", show_default=True, help="Where downloads go.")
@click.option("--num-synthetic", default=1024, show_default=True, help="Synthetic items.")
@click.option("--epochs", default=1, show_default=True)
@click.option("--global-batch", type=int, help="Samples per update over all ranks.")
@click.option("--local-batch", type=int, help="Samples per update and rank.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="sgd", show_default=True)
@click.option("--lr", default=0.01, show_default=True, help="Learning rate at --base-batch.")
@click.option(
    "--lr-scale",
    type=click.Choice(LR_SCALES),
    default="none",
    show_default=True,
    help="How the rate follows the global batch.",
)
@click.option("--base-batch", default=256, show_default=True, help="Global batch --lr is for.")
@click.option("--momentum", default=0.9, show_default=True, help="Of SGD.")
@click.option("--weight-decay", default=0.0, show_default=True)
@click.option(
    "--scheduler",
    type=click.Choice(SCHEDULERS),
    default="none",
    show_default=True,
    help="How the rate falls over the epochs.",
)
@click.option(
    "--warmup-epochs",
    default=0,
    show_default=True,
    help="Epochs over which the rate first rises.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
)
@click.option("--accumulation", default=1, show_default=True, help="Micro-batches per update.")
@click.option("--bucket-cap-mb", type=float, help="DDP's bucket size in MiB.")
@click.option("--workers", default=0, show_default=True, help="Loader processes per rank.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--augment/--no-augment",
    default=False,
    show_default=True,
    help="Crop and mirror training images at random.",
)
@click.option(
    "--max-steps", type=int, help="Stop after so many updates; resumable where an epoch ends."
)
@click.option(
    "--checkpoint-every",
    type=int,
    metavar="N",
    help="Keep the parameters of every N-th epoch, too.",
)
@click.option("--target-accuracy", type=float, help="Note when the validation reaches this.")
@click.option("--results", default="results", show_default=True, help="Folder of all runs.")
@click.option("--name", default="run", show_default=True, help="Folder of this run below it.")
@click.option("--repeat", default=0, show_default=True, help="Which of several equal runs.")
@click.option("--resume", is_flag=True, help="Go on from the run's checkpoint if there is one.")
@click.option(
    "--threads-per-rank",
    type=click.IntRange(min=1),
    help="CPU threads of a rank; its share of the cores by default.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="CUDA where there is one.")
@click.option("--timeout-s", default=300.0, show_default=True, help="Wait for other ranks.")
def train(world_size: int, **options: Any) -> None:
    """Train a model in data-parallel and record time, loss and accuracy of every epoch.

    Writes epochs.csv, steps.jsonl, final.csv, summary.json, and the parameters of the last epoch
    and of the best, checkpoint.pt and best.pt, to RESULTS/NAME. Many runs, with repeats and on a
    cluster, are a campaign: lockstep run train.
    """
    config = TrainConfig(**options)
    if absent := launcher.missing_packages():
        raise RuntimeError(absent)
    if is_launched(os.environ):
        _train_as_rank(config)
        return
    refuse_apart(os.environ)
    Batch.of(config, world_size)
    launch(config, world_size)


def _train_as_rank(config: TrainConfig) -> None:
    from lockstep.trainer import rank, trainer

    try:
        trainer.check_equal_parameters(rank.run(config)["parameter_checksums"])
    except DivergedError as error:
        _end_diverged(str(error))


def _end_diverged(message: str) -> NoReturn:
    """End with the code of a check that failed."""
    click.echo(f"Error: {message}", err=True)
    sys.exit(1)


@click.command(
    epilog="""\b
Examples:
  lockstep verify
  lockstep verify --world-sizes 1,2,4 --json
  lockstep verify --workload mine:tabular
"""
)
@click.option("--world-sizes", default="1,2", show_default=True, help="Comma-separated.")
@click.option(
    "--workload", help="Your own model, on what its make_batch makes, as in `mine:tabular`."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="CUDA where there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def verify(world_sizes: str, workload: str | None, device: str | None, as_json: bool) -> None:
    """Check that training computes the same at every world size, on real handwritten digits.

    Trains the same model with the same global batches at each size; every size must reach the
    accuracy, follow the loss curve of the smallest, and leave equal parameters on all ranks. A
    model of your own has no accuracy to reach. One with batch normalisation differs by nature, for
    each rank normalises over its own samples.
    """
    sizes, asked = parse_sizes(world_sizes), VERIFY
    if workload:
        asked = VERIFY | OWN | {"workload": workload}
    for world_size in sizes:
        Batch.of(TrainConfig(**asked), world_size)
    if absent := launcher.missing_packages():
        raise RuntimeError(absent)
    device = device or _device_for(max(sizes))
    with tempfile.TemporaryDirectory(prefix="lockstep-verify-") as folder:
        runs = {size: _verification_run(asked, folder, size, device) for size in sizes}
    checks = compare(runs, None if workload else MIN_ACCURACY)
    click.echo(json.dumps([asdict(check) for check in checks]) if as_json else table(checks))
    if failed := [check for check in checks if not check.passed]:
        named = ", ".join(f"{check.name} at world size {check.world_size}" for check in failed)
        click.echo(f"FAILED: {named}", err=True)
        sys.exit(1)


def _device_for(world_size: int) -> str | None:
    """Return the CPU where the GPUs are too few for all ranks; None for what ranks choose."""
    num_gpus = launcher.num_gpus()
    if not 0 < num_gpus < world_size:
        return None
    click.echo(
        f"Verifying on the CPU: {world_size} ranks need as many GPUs, of {num_gpus}.", err=True
    )
    return "cpu"


def _verification_run(
    asked: dict[str, Any], folder: str, world_size: int, device: str | None
) -> dict[str, Any]:
    config = TrainConfig(**asked, results=folder, name=f"world{world_size}", device=device)
    launch(config, world_size, is_quiet=True)
    summary: dict[str, Any] = json.loads((config.folder / "summary.json").read_text())
    return summary


def parse_sizes(text: str) -> list[int]:
    """Return the world sizes of a comma-separated list, ascending.

    Raises:
        ValueError: It is not two or more different positive integers.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts) or len(set(parts)) < 2:
        raise ValueError(
            f"--world-sizes {text!r} is not a list of two or more sizes, as in 1,2; "
            "one size has nothing to be compared with"
        )
    return sorted({int(part) for part in parts})


def table(checks: list[Check]) -> str:
    """Return the checks as a small table, and the verdict when all passed."""
    rows = [
        f"{check.world_size:>10}  {check.name:<10}  {'ok' if check.passed else 'FAILED':<6}  "
        f"{check.found}"
        for check in checks
    ]
    has_accuracy = any(check.name == "accuracy" for check in checks)
    accuracy = f"accuracy >= {MIN_ACCURACY:g}, " if has_accuracy else ""
    verdict = (
        f"verified: {accuracy}loss curves within {CURVE_TOLERANCE:g} of the "
        "first loss, equal parameters on all ranks"
    )
    lines = [f"{'world size':>10}  {'check':<10}  {'':<6}  found", *rows]
    return "\n".join([*lines, verdict] if all(check.passed for check in checks) else lines)


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun, or a launcher that LOCKSTEP_LAUNCHER names, started this process."""
    return "RANK" in environ or "LOCKSTEP_LAUNCHER" in environ


def launch(config: TrainConfig, world_size: int, is_quiet: bool = False) -> None:
    """Run the trainer with ranks on this machine, and wait.

    Raises:
        ValueError: A rank refused the configuration.
        RuntimeError: A rank failed.
        SystemExit: The loss is not finite.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-train-") as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(asdict(config)), encoding="utf-8")
        log_file = Path(folder) / "stderr"
        with (
            log_file.open("w+", encoding="utf-8", errors="replace") as log,
            nullcontext(Silent()) if is_quiet else following(config.folder) as tracker,
        ):
            process = subprocess.Popen(
                rank_command(world_size, path),
                env=rank_environment(config, world_size),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if is_quiet else None,
                stderr=log,
                preexec_fn=die_with_parent,
            )
            status = _wait(process, config.folder / "epochs.csv", tracker)
        _check_status(status, failures.read(path.with_suffix(".error")), log_file)


def _wait(process: "subprocess.Popen[bytes]", epochs: Path, tracker: Sender | Silent) -> int:
    """Wait for the ranks; if this process is interrupted, they are ended first.

    The tracker is told of each epoch, and the ranks do not wait for it.
    """
    seen = 0
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
            now = epochs.stat().st_mtime_ns if epochs.exists() else 0
            if now != seen:
                seen = now
                tracker.send(0)
            if process.returncode is not None:
                return process.returncode
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise


def _check_status(status: int, failure: Failure | None, log_file: Path) -> None:
    """Say why a run failed, in the words of the rank that had the fault."""
    if status and failure and failure.kind == "input":
        raise ValueError(failure.message)
    if status and failure and failure.kind == "diverged":
        _end_diverged(failure.message)
    if not (failure and failure.is_agreed):  # what one rank alone ran into needs its traceback
        click.echo(log_file.read_text(encoding="utf-8", errors="replace"), err=True, nl=False)
    if not status:
        return
    if failure and not failure.is_consequence:
        raise RuntimeError(failure.message)
    # A rank that was killed reports nothing; torchrun knows which ended first.
    words = last_words(log_file, 0) or f"training ended with {how(status)}"
    raise RuntimeError(words)


def rank_command(world_size: int, config_file: Path) -> list[str]:
    """Return the command that starts the ranks: one process directly, more through torchrun."""
    trainer = ["-m", "lockstep.trainer.rank", str(config_file)]
    start = [sys.executable] if world_size == 1 else launcher.torchrun(world_size)
    return [*start, *trainer]


def rank_environment(config: TrainConfig, world_size: int) -> dict[str, str]:
    """Return the environment of a run's ranks on this machine."""
    threads = config.threads_per_rank or max(1, usable_cores() // world_size)
    # In an allocation, one process without a launcher's variables is taken for one of several.
    alone = dict(zip(VARIABLES["torchrun"], ("0", "0", "1", "1"), strict=True))
    return launcher.local_environment(os.environ, threads) | (alone if world_size == 1 else {})
