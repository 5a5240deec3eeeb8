"""The commands `lockstep export` and `lockstep sync`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lockstep.tracker.sending import Sent
    from lockstep.tracker.target import Tracker

FOLDER = click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.group()
def export() -> None:
    """Give results to another program: an experiment tracker, or a file in its format.

    \b
    Examples:
      lockstep export mlflow results/laptop
      lockstep export bmf results/laptop > bmf.json
    """


@export.command()
@FOLDER
@click.option("--to", metavar="URI", help="sqlite:///PATH or http://SERVER [mlflow.db beside DIR].")
def mlflow(folder: Path, to: str | None) -> int:
    """Write the runs of FOLDER into MLflow: a campaign is an experiment, a launch a run.

    A training run is a run, too. Exported again, only what is new is added. A server's token is
    read from LOCKSTEP_TRACKER_KEY, or MLflow's own variables.

    \b
    Examples:
      lockstep export mlflow results/laptop
      lockstep export mlflow results/laptop --to sqlite:///all.db
    """
    return _send(folder, "mlflow", to)


@export.command()
@FOLDER
@click.option("--to", metavar="URL", required=True, help="Address of the interface.")
def http(folder: Path, to: str) -> int:
    """Send the runs of FOLDER to a plain HTTP interface, each once.

    `python -m pydoc lockstep.tracker.apis.http_store` describes its four requests. The key for the
    header X-API-Key is read from LOCKSTEP_TRACKER_KEY.
    """
    return _send(folder, "http", to)


@export.command()
@FOLDER
@click.option("--to", type=click.Path(path_type=Path), help="Folder to write [DIR/tensorboard].")
def tensorboard(folder: Path, to: Path | None) -> None:
    """Write the curves of the training runs in FOLDER for TensorBoard.

    \b
    Example:
      lockstep export tensorboard results/run
    """
    from lockstep.tracker import other_formats, sending

    target = to or folder / "tensorboard"
    written = list(other_formats.tensorboard(sending.found(folder).runs, target))
    if not written:
        raise ValueError(
            f"{folder} holds no training run; measure the study train, or give another"
        )
    click.echo(f"{len(written)} runs: tensorboard --logdir {click.format_filename(target)}")


@export.command()
@FOLDER
def bmf(folder: Path) -> None:
    """Print the points of FOLDER in Bencher Metric Format, with their intervals.

    \b
    Example:
      lockstep export bmf results/laptop > bmf.json
    """
    from lockstep.tracker import other_formats

    click.echo(
        json.dumps(other_formats.bencher(other_formats.points(folder)), indent=1, allow_nan=False)
    )


@export.command("github-benchmark")
@FOLDER
@click.option("--better", type=click.Choice(["smaller", "bigger"]), default="smaller",
              show_default=True, help="Step times, or throughput and efficiency.")  # fmt: skip
def github_benchmark(folder: Path, better: str) -> None:
    """Print the points of FOLDER as github-action-benchmark reads them.

    Its tool is customSmallerIsBetter or customBiggerIsBetter, as --better says.

    \b
    Examples:
      lockstep export github-benchmark results/laptop > step-times.json
      lockstep export github-benchmark results/laptop --better bigger > rates.json
    """
    from lockstep.tracker import other_formats

    direction: other_formats.Direction = "bigger" if better == "bigger" else "smaller"
    found = other_formats.github_benchmark(other_formats.points(folder), direction)
    click.echo(json.dumps(found, indent=1, allow_nan=False))


@click.command()
@FOLDER
def sync(folder: Path) -> int:
    """Send the tracker of FOLDER what it lacks: after it was out of reach, or while jobs run.

    The tracker is that of the site file's table [tracker], or the one that was used before.

    \b
    Example:
      lockstep sync results/laptop
    """
    from lockstep.tracker import target

    tracker = target.find(folder)
    if tracker is None:
        raise ValueError(
            f"no tracker is known for {folder}; write a table [tracker] into the site file, or "
            "lockstep export"
        )
    return _finish(folder, tracker)


def _send(folder: Path, kind: str, to: str | None) -> int:
    from lockstep.tracker import target

    return _finish(folder, target.given(kind, to).beside(folder))


def _finish(folder: Path, tracker: "Tracker") -> int:
    from lockstep.tracker import sending

    sent = sending.send(folder, tracker, is_asked=True)
    _say(sent, folder)
    if sent.kind in ("unreadable", "empty"):
        raise ValueError(sent.why)
    return 0 if sent.kind == "sent" else 3


def _say(sent: "Sent", folder: Path) -> None:
    from lockstep.tracker import tracker_wording

    for text in tracker_wording.left_out(sent):
        click.echo(text, err=True)
    if sent.kind not in ("unreadable", "empty"):
        click.echo(tracker_wording.line(sent, folder), err=sent.kind != "sent")
