"""The commands about the image: `lockstep image build`, `inspect`, `verify` and `hash`."""

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lockstep.image import building, inspection
from lockstep.image.inspection import check_exists, read_record, sha256

IMAGE = click.argument("image", type=click.Path(path_type=Path, dir_okay=False))
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
BAR_FROM_BYTES = 1 << 28  # hashing a smaller file is too short for a progress bar


@click.group()
def image() -> None:
    """Build, inspect, verify or hash the image in which ranks run.

    \b
    Examples:
      lockstep image build cpu lockstep.sif
      lockstep image inspect lockstep.sif
      lockstep image verify lockstep.sif
    """


def _arguments(ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    parts = [text.partition("=") for text in texts]
    for name, equals, value in parts:
        if not (name and equals):
            raise click.BadParameter(f"{name + equals + value!r} is not NAME=VALUE", ctx)
    return {name: value for name, _, value in parts}


def _words(ctx: click.Context, _: click.Parameter, options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise click.BadParameter(f"{options!r} is not a valid command line: {error}", ctx) from None


@image.command()
@click.argument("definition", default="pytorch")
@click.argument("image", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    callback=_arguments,
    metavar="NAME=VALUE",
    help=(
        "Build argument of the definition with its value, such as BASE=IMAGE; repeat the option "
        "for further arguments."
    ),
)
@click.option(
    "--apptainer-options",
    "options",
    default="",
    callback=_words,
    metavar="TEXT",
    help="Further options of apptainer build, such as '--fakeroot --bind /etc/ssl/certs'.",
)
@click.option(
    "--force", is_flag=True, help="Build the image even if the file exists or is up to date."
)
@click.option(
    "-n",
    "--dry-run",
    is_flag=True,
    help="Print the command that would build the image, but build nothing.",
)
@AS_JSON
def build(
    definition: str,
    image: Path | None,
    build_args: dict[str, str],
    options: list[str],
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build IMAGE from DEFINITION, a file or one of the built-in `pytorch` and `cpu`.

    By default IMAGE is named after the definition. An up-to-date image is not rebuilt. Names in
    `%files` are relative to the current folder, or in a built-in definition to the checkout.

    \b
    Examples:
      lockstep image build                    # build pytorch.sif, for GPUs
      lockstep image build cpu lockstep.sif   # build an image without GPU support
      lockstep image build pytorch lockstep.sif --build-arg BASE=IMAGE
      lockstep image build cpu --apptainer-options '--fakeroot'
    """
    path = image or Path(Path(definition).stem + ".sif")
    plan = building.plan(definition, path, build_args, options)
    state = plan.state()
    if state == "foreign" and not force:
        raise ValueError(
            f"{plan.image} exists, but does not match {plan.image.name}.json; give another "
            "name, or replace the image with --force"
        )
    is_needed = force or state != "up to date"
    if dry_run:
        command = plan.command if is_needed else None
        facts = {"image": str(plan.image), "state": state, "key": plan.key, "command": command}
        if as_json:
            click.echo(json.dumps(facts, indent=1))
        elif is_needed:
            click.echo(f"{plan.image} is {state} and would be built by this command:\n{command}")
        else:
            click.echo(f"{plan.image} is up to date and would not be built")
        return
    record = None if is_needed else read_record(path)
    if record is None:
        # SIGTERM ends the build in the same way as an interrupt.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        with _progress("Starting") as (show, advance):
            record = building.build(plan, show, advance)
        state = "built"
    if as_json:
        facts = {"image": str(path), "state": state}
        click.echo(json.dumps(facts | record.model_dump(), indent=1))
        return
    took = f" in {record.build_s:.0f} s" if state == "built" else ""
    click.echo(f"{path} is {state}{took}: {decimal(record.size_bytes)}")
    click.echo(f"sha256 {record.sha256}, recorded in {path}.json")
    todo = "apptainer test" if state == "built" else "lockstep image verify"
    click.echo(f"Next: {todo} {shlex.quote(str(path))}")


@contextmanager
def _progress(
    step: str, num_bytes: int | None = None
) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Show the current step and its progress on stderr; yield a setter for each.

    Without a terminal each step is a plain line. Hashing a small file shows nothing.
    """
    console = Console(stderr=True)
    is_short = num_bytes is not None and num_bytes < BAR_FROM_BYTES
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        disable=is_short or not console.is_terminal,
        transient=num_bytes is not None,
    ) as progress:
        task = progress.add_task(step, total=num_bytes)

        def show(step: str) -> None:
            progress.update(task, description=step)
            if not console.is_terminal:
                console.print(step, markup=False, highlight=False)

        yield show, lambda num_bytes: progress.advance(task, num_bytes)


@image.command()
@IMAGE
@AS_JSON
def inspect(image: Path, *, as_json: bool) -> None:
    """Print the hash, definition, base, commit and labels of IMAGE.

    \b
    Examples:
      lockstep image inspect lockstep.sif
      lockstep image inspect lockstep.sif --json
    """
    facts = inspection.facts(image)
    if facts["sha256"] is None:
        facts["sha256"] = _sha256(image)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    if facts["sha256_from"] == "record":
        facts["sha256_from"] = (
            "read from the build record; lockstep image verify computes the hash again"
        )
    labels, text = facts.pop("labels"), facts.pop("definition_text")
    facts |= {f"label {name}": label for name, label in sorted(labels.items())}
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={item}" for key, item in value.items())
        click.echo(f"{name:<18} {'-' if value in (None, '', []) else value}")
    click.echo(f"definition file\n{text.rstrip()}")


@image.command()
@IMAGE
@AS_JSON
def verify(image: Path, *, as_json: bool) -> int:
    """Check that IMAGE is complete and has its recorded hash; exit code 1 if not.

    \b
    Example:
      lockstep image verify lockstep.sif
    """
    with _progress(f"Hashing {image.name}", image.stat().st_size if image.is_file() else 0) as (
        _,
        advance,
    ):
        facts = inspection.verify(image, advance)
    failures = facts["failures"]
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    elif failures:
        reasons = "; ".join(failures)
        click.echo(f"Error: {image} failed the check: {reasons}", err=True)
    else:
        missing = f"the hash was not compared with a record, because {image}.json does not exist"
        click.echo(
            f"sha256 {facts['sha256']}: {'as recorded' if facts['recorded_sha256'] else missing}"
        )
    return int(bool(failures))


@image.command("hash")
@IMAGE
def print_hash(image: Path) -> int:
    """Print IMAGE's SHA-256 as sha256sum does; exit code 1 if IMAGE.json has another SHA-256.

    \b
    Example:
      lockstep image hash lockstep.sif
    """
    check_exists(image)
    record = read_record(image)
    digest = _sha256(image)
    click.echo(f"{digest}  {image}")
    if record and record.sha256 != digest:
        click.echo(
            f"Error: {image} has changed since its build: its record has the SHA-256 "
            f"{record.sha256}; build or copy the image again",
            err=True,
        )
        return 1
    return 0


def _sha256(image: Path) -> str:
    with _progress(f"Hashing {image.name}", image.stat().st_size) as (_, advance):
        return sha256(image, advance)
