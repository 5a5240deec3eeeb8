"""The command `lockstep demo`."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="results/demo",
    show_default=True,
    help="Folder for the campaign and its page.",
)
@click.option(
    "--recording",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Another recorded campaign than the one that ships.",
)
@click.pass_context
def demo(context: click.Context, folder: Path, recording: Path | None) -> int:
    """Make the page of a campaign that was recorded, in seconds: no torch, no GPU, no Slurm.

    \b
    Examples:
      lockstep demo
      lockstep demo --to results/look
    """
    from lockstep.report.load import recorded
    from lockstep.report.report_cli import report

    shipped = recorded.shipped()
    if recording is None and not shipped:
        raise ValueError(
            "no recorded campaign ships with this Lockstep; `lockstep run` measures one here, or "
            "give --recording"
        )
    recorded.unpack(recording or next(iter(shipped.values())), folder)
    return int(context.invoke(report, paths=(folder,)))
