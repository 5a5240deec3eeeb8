"""The options of `lockstep report` for figures as files, and for a report without names."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from lockstep.report.load.results import Results

FOLDER = "figures"
FORMATS = ("svg", "pdf", "png")
Command = TypeVar("Command", bound=Callable[..., Any])


def options(command: Command) -> Command:
    """Add the options to a command."""
    for option in (
        click.option("--redact", is_flag=True, help="Leave out hosts, users, paths, environment."),
        click.option("--png", is_flag=True, help="The same as PNG."),
        click.option("--pdf", is_flag=True, help="The same as PDF."),
        click.option("--svg", is_flag=True, help="Write figures/ beside the page, as SVG."),
    ):
        command = option(command)
    return command


def redactor(results: "Results", given: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return what takes names out of plain data; without --redact it leaves all as it is."""
    if not given["redact"]:
        return lambda data: data
    from lockstep.report.load.redaction import Redactor

    return Redactor(results)


def named(paths: Sequence[Path], given: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the folders that a command line shows."""
    return (Path("DIR"),) if given["redact"] else tuple(paths)


def write_figures(page: Mapping[str, Any], beside: Path, given: Mapping[str, Any]) -> None:
    """Write the figures in the formats that are asked for, if any."""
    from lockstep.report.page import figures

    wanted: list[Any] = [kind for kind in FORMATS if given[kind]]
    if wanted:
        paths = figures.write(page, beside / FOLDER, wanted)
        click.echo(f"figures: {len(paths)} files in {click.format_filename(beside / FOLDER)}")
