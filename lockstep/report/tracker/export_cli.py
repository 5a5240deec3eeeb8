"""The command `lockstep export`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.core.errors import EXIT_MACHINE

if TYPE_CHECKING:
    from lockstep.report.tracker.tracked import Run

FOLDER = click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.group()
def export() -> None:
    """Give results to an experiment tracker, or training curves to TensorBoard.

    \b
    Examples:
      lockstep export mlflow results/laptop
      lockstep export tensorboard results/run
      lockstep export again results/laptop
    """


@export.command()
@FOLDER
@click.option("--to", metavar="URI", help="sqlite:///PATH or http://SERVER [mlflow.db beside DIR].")
def mlflow(folder: Path, to: str | None) -> int:
    """Write the runs of FOLDER into MLflow.

    A campaign becomes an MLflow experiment; each launch and each training run becomes a run. A
    second export adds only new results. The server's token is read from LOCKSTEP_TRACKER_KEY, or
    from MLflow's own variables.

    \b
    Examples:
      lockstep export mlflow results/laptop
      lockstep export mlflow results/laptop --to sqlite:///all.db
    """
    return _send(folder, "mlflow", to)


@export.command()
@FOLDER
@click.option("--to", metavar="URL", required=True, help="URL of the tracker's HTTP API.")
def http(folder: Path, to: str) -> int:
    """Send each run of FOLDER once to a plain HTTP interface.

    `python -m pydoc lockstep.report.tracker.stores` describes its four requests. The
    key for the header X-API-Key is read from LOCKSTEP_TRACKER_KEY.
    """
    return _send(folder, "http", to)


@export.command()
@FOLDER
def again(folder: Path) -> int:
    """Send missing results to the tracker of FOLDER, after an outage or while jobs run.

    Results go to the tracker in the table [tracker] of the site file, or else to the tracker used
    before.

    \b
    Example:
      lockstep export again results/laptop
    """
    return _send(folder)


def _send(folder: Path, kind: str = "", uri: str | None = None) -> int:
    from lockstep.report.tracker import sending, tracked

    named = {"kind": kind, "uri": uri}
    tracker = tracked.validated(named, "--to") if kind else tracked.find_tracker(folder)
    if tracker is None:
        raise ValueError(
            f"{folder} has no tracker; add a table [tracker] to the site file, or run lockstep "
            "export mlflow"
        )
    sent = sending.send(folder, tracker, verifies=True)
    if sent.kind in ("unreadable", "empty"):
        raise ValueError(sent.why)
    *left_out, end = sending.lines(sent, folder)
    for text in left_out:
        click.echo(text, err=True)
    click.echo(end, err=sent.kind != "sent")
    return 0 if sent.kind == "sent" else EXIT_MACHINE


@export.command()
@FOLDER
@click.option("--to", type=click.Path(path_type=Path), help="Folder to write [DIR/tensorboard].")
def tensorboard(folder: Path, to: Path | None) -> None:
    """Write the curves of the training runs in FOLDER for TensorBoard.

    \b
    Example:
      lockstep export tensorboard results/run
    """
    from lockstep.report.tracker.runs import read_runs

    target = to or folder / "tensorboard"
    written = list(write_event_files(read_runs(folder)[0], target))
    if not written:
        raise ValueError(
            f"{folder} holds no training run; measure the study train, or give another folder"
        )
    click.echo(f"{len(written)} runs: tensorboard --logdir {click.format_filename(target)}")


def write_event_files(runs: "Iterable[Run]", folder: Path) -> Iterator[Path]:
    """Write the curves of training runs as event files, replacing older ones; yield their folders.

    Raises:
        RuntimeError: torch or tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RuntimeError(
            f"{error}; install tensorboard beside torch: pip install tensorboard"
        ) from None
    from lockstep.report.tracker.tracked import metric_name

    for run in runs:
        if run.kind != "training":
            continue
        own = folder / metric_name(run.name, "")[:-1]
        for old in own.glob("events.out.tfevents.*"):
            old.unlink()
        with SummaryWriter(str(own)) as writer:
            for m in run.metrics:
                writer.add_scalar(m.name, m.value, m.step, walltime=m.time_ms / 1000)
        yield own
