"""The commands about the image: `lockstep image build`, `inspect`, `verify` and `hash`."""

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

IMAGE = click.argument("image", type=click.Path(path_type=Path, dir_okay=False))
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
# A smaller file is hashed before a bar could be read.
BAR_FROM_BYTES = 1 << 28


@click.group()
def image() -> None:
    """Build, inspect, verify or hash the image that the suite runs in.

    \b
    Examples:
      lockstep image build cpu lockstep.sif
      lockstep image inspect lockstep.sif
      lockstep image verify lockstep.sif
    """


def _arguments(
    ctx: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    texts: tuple[str, ...],
) -> dict[str, str]:
    parts = [text.partition("=") for text in texts]
    for name, equals, value in parts:
        if not (name and equals):
            raise click.BadParameter(f"{name + equals + value!r} is not NAME=VALUE")
    return {name: value for name, _, value in parts}


def _words(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:  # noqa: ARG001
    try:
        return shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a valid command line: {error}") from None


@image.command()
@click.argument("definition", default="pytorch")
@click.argument("image", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    callback=_arguments,
    metavar="NAME=VALUE",
    help="Value of an argument of the definition, such as BASE; may be repeated.",
)
@click.option(
    "--apptainer-options",
    "options",
    default="",
    callback=_words,
    metavar="TEXT",
    help="Further options of apptainer build, such as '--fakeroot --bind /etc/ssl/certs'.",
)
@click.option("--sign", is_flag=True, help="Sign the image with the key of apptainer's keyring.")
@click.option(
    "--force", is_flag=True, help="Build the image even if the file exists or is up to date."
)
@click.option("-n", "--dry-run", is_flag=True, help="Print what would be done, but do nothing.")
@AS_JSON
def build(
    definition: str,
    image: Path | None,
    build_args: dict[str, str],
    options: list[str],
    *,
    sign: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build IMAGE from DEFINITION, a file or one of the built-in `pytorch` and `cpu`.

    IMAGE is named after the definition by default. An image built from the same content is kept.
    Files of `%files` are relative to the current folder; those of a built-in definition, to the
    checkout.

    \b
    Examples:
      lockstep image build                                 pytorch.sif, for GPUs
      lockstep image build cpu lockstep.sif                without
      lockstep image build pytorch lockstep.sif --build-arg BASE=IMAGE
      lockstep image build cpu --apptainer-options '--fakeroot'
    """
    from rich.filesize import decimal

    from lockstep.image import building
    from lockstep.image.inspection import read_record

    path = image or Path(Path(definition).stem + ".sif")
    plan = building.plan(definition, path, build_args, options)
    state = plan.state(must_be_signed=sign)
    if state == "foreign" and not force:
        raise ValueError(
            f"{plan.image} exists, but does not match {plan.image.name}.json; give another "
            "name, or replace it with --force"
        )
    is_needed = force or state != "up to date"
    if dry_run:
        if as_json:
            facts = {"image": str(plan.image), "state": state, "key": plan.key}
            command = {"command": plan.command if is_needed else None}
            click.echo(json.dumps(facts | command, indent=1))
        elif is_needed:
            click.echo(f"{plan.image} is {state}; this command would build it:\n{plan.command}")
        else:
            click.echo(f"{plan.image} is up to date; nothing would be done")
        return
    if is_needed:
        # A build that has begun is then ended on the way out, as by an interrupt.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        with _progress() as (show, advance):
            record = building.build(plan, show, advance, is_signed=sign)
        state = "built"
    else:
        known = read_record(path)
        assert known is not None
        record = known
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
def _progress() -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Show on stderr what is done and for how long; a line per step where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("Starting", total=None)

        def show(step: str) -> None:
            progress.update(task, description=step)
            if not console.is_terminal:
                console.print(step, markup=False, highlight=False)

        yield show, lambda num_bytes: progress.advance(task, num_bytes)


@image.command()
@IMAGE
@AS_JSON
def inspect(image: Path, *, as_json: bool) -> None:
    """Print hash, definition, base, commit and labels of IMAGE.

    \b
    Examples:
      lockstep image inspect lockstep.sif
      lockstep image inspect lockstep.sif --json
    """
    from lockstep.image import inspection

    facts = inspection.facts(image)
    if facts["sha256"] is None:
        facts["sha256"] = _sha256(image)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    for name, value in _lines(facts):
        click.echo(f"{name:<12} {value}")
    click.echo("labels")
    for name, value in sorted(facts["labels"].items()):
        click.echo(f"  {name}: {value}")
    click.echo(f"definition file\n{facts['definition_text'].rstrip()}")


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from rich.filesize import decimal

    yield "image", facts["image"]
    is_recorded = facts["sha256_from"] == "record"
    note = ", as recorded; lockstep image verify checks it" if is_recorded else ""
    yield "sha256", facts["sha256"] + note
    yield "size", decimal(facts["size_bytes"])
    yield "for", facts["architecture"] or "-"
    base = f"{facts['base'] or '-'} ({facts['bootstrap'] or '-'})"
    yield "base", base + (f", digest {facts['base_digest']}" if facts.get("base_digest") else "")
    dirty = {True: ", with changes", None: ""}.get(facts.get("git_dirty"), "")
    yield "commit", (facts["git_commit"] or "-") + dirty
    if "definition" not in facts:
        yield "record", "-: not built by lockstep image build, or copied without its record"
        return
    yield "definition", f"{facts['definition']}, sha256 {facts['definition_sha256']}"
    arguments = ", ".join(f"{name}={value}" for name, value in facts["build_args"].items())
    yield "arguments", arguments or "-"
    yield "built", f"{facts['built_at']} by apptainer {facts['apptainer']}"


@image.command()
@IMAGE
@click.option("--signed", is_flag=True, help="Fail unless a known key has signed the image.")
@AS_JSON
def verify(image: Path, *, signed: bool, as_json: bool) -> int:
    """Check IMAGE against its recorded hash and its signature; exit code 1 if it fails.

    An unsigned image passes unless --signed is given. No key server is asked.

    \b
    Examples:
      lockstep image verify lockstep.sif
      lockstep image verify lockstep.sif --signed
    """
    from lockstep.image import inspection

    with _hashing(image) as advance:
        verdict = inspection.verify(image, advance)
    failures = verdict.failures(must_be_signed=signed)
    if as_json:
        facts = {"image": str(image)} | verdict.to_dict() | {"failures": failures}
        click.echo(json.dumps(facts, indent=1))
        return int(bool(failures))
    if failures:
        click.echo(f"Error: {image} fails the check: {'; '.join(failures)}", err=True)
        return 1
    recorded = (
        "as recorded" if verdict.recorded else f"not compared, because {image}.json does not exist"
    )
    click.echo(f"sha256 {verdict.sha256}: {recorded}")
    keys = ", ".join(verdict.signature.by) if verdict.signature else ""
    click.echo(f"signature: {verdict.signature_state} {keys}".rstrip())
    return 0


@image.command("hash")
@IMAGE
def print_hash(image: Path) -> int:
    """Print IMAGE's SHA-256 as sha256sum does; exit code 1 if its record has another.

    \b
    Example:
      lockstep image hash lockstep.sif
    """
    from lockstep.image.inspection import check_exists, read_record

    check_exists(image)
    record = read_record(image)
    digest = _sha256(image)
    click.echo(f"{digest}  {image}")
    if record and record.sha256 != digest:
        click.echo(
            f"Error: {image} has changed since it was built: its record has SHA-256 "
            f"{record.sha256}; build or copy it again",
            err=True,
        )
        return 1
    return 0


def _sha256(path: Path) -> str:
    from lockstep.image.inspection import sha256

    with _hashing(path) as advance:
        return sha256(path, advance)


@contextmanager
def _hashing(path: Path) -> Iterator[Callable[[int], None]]:
    """Show on stderr how much of a big file has been read."""
    from rich.console import Console
    from rich.progress import Progress

    num_bytes = path.stat().st_size if path.is_file() else 0
    console = Console(stderr=True)
    is_shown = console.is_terminal and num_bytes >= BAR_FROM_BYTES
    with Progress(console=console, disable=not is_shown, transient=True) as progress:
        task = progress.add_task(f"Hashing {path.name}", total=num_bytes)
        yield lambda done: progress.advance(task, done)
