"""The command `lockstep bundle`."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lockstep.report.bundle.opening import Source

EXAMPLES = """
\b
Examples:
  lockstep bundle results/first
  lockstep bundle results/first --to first.tar.gz --license CC-BY-4.0
  lockstep bundle results/first --point strong@2 --to point.tar.gz

The archive holds the results with scripts, logs and accounting, their page, what the launches say
of their environment and image, reproduce.md, an artefact description as the SC conferences ask for,
RO-Crate metadata, and the checksum of every file. lockstep report first.tar.gz opens it: the same
release makes the same page, byte for byte. Images are named by their hash, and stay outside.
"""
ENDING = ".tar.gz"
# What a campaign's folder holds beside what was measured; a key is nobody else's.
LEFT_OUT = (".sif", ".lock", ".part", ".tmp", ".html", ".key")


@click.command("bundle", epilog=EXAMPLES)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--to", "target", type=click.Path(path_type=Path, dir_okay=False),
              help="Archive to write [DIR.tar.gz].")  # fmt: skip
@click.option("--point", metavar="CASE@SIZE", help="One point alone, under 1 MB, to report a bug.")
@click.option("--license", "licence", help="Licence of the data, for the metadata.")
@click.option("--force", is_flag=True, help="Replace an archive that is there.")
def bundle(
    folder: Path, target: Path | None, point: str | None, licence: str | None, force: bool
) -> None:
    """Pack results, their page and how to reproduce them into one archive.

    FOLDER is a campaign's folder of results, or another that lockstep report reads.
    """
    from tempfile import TemporaryDirectory

    from lockstep.report.bundle import describing, opening

    source = folder.resolve()
    ending = f"-{point.rpartition('@')[2]}{ENDING}" if point else ENDING
    target = (target or source.with_name(f"{source.name}{ending}")).resolve()
    if not target.name.endswith(ENDING):
        raise ValueError(f"{target}: write a name that ends with {ENDING}")
    if target.exists() and not force:
        raise ValueError(f"{target} is there already; choose --to or pass --force")
    name = target.name.removesuffix(ENDING)
    with TemporaryDirectory(prefix="lockstep-bundle-") as stage:
        files = _staged(source, Path(stage), name, point, licence)
        size = opening.write_archive(target, name, files)
        if point and size > describing.LARGEST_BYTES:
            files = _staged(source, Path(stage, "less"), name, point, licence, less=True)
            size = opening.write_archive(target, name, files)
    if point and size > describing.LARGEST_BYTES:
        target.unlink()
        raise ValueError(
            f"--point {point} takes {size} bytes, more than {describing.LARGEST_BYTES}"
        )
    click.echo(f"{click.format_filename(target)}: {len(files) + 1} files, {size / 1e6:.2f} MB")
    click.echo(f"next: lockstep report {shlex.quote(click.format_filename(target))}")


def _staged(
    source: Path, stage: Path, name: str, point: str | None, licence: str | None, less: bool = False
) -> "dict[str, Source]":
    """Return a bundle's files by their paths in it."""
    from lockstep.report.bundle import describing
    from lockstep.report.bundle.opening import DATA, PAGE
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.load.reading import gather

    stage.mkdir(exist_ok=True)
    data, results, rows = stage / DATA, gather([source]), None
    if point is None:
        data.symlink_to(source)
    else:
        rows = describing.find(results, point)
        chosen = rows[:1] if less else rows
        describing.write(describing.documents(results, chosen, whole=not less), data)
        results = gather([data])
        rows = [row for row in results.rows if row.case == rows[0].case]
    described = describing.Described(name, results, series_of(results.split()[0]), rows)
    files: dict[str, Source] = {f"{DATA}/{inside}": path for inside, path in _inside(data).items()}
    files[PAGE] = _page(stage)
    files |= describing.texts(described)
    files["ro-crate-metadata.json"] = describing.crate(described, files, licence)
    return files


def _inside(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by their paths in it, without links and what is left out."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if path.is_file() and not path.is_symlink() and not name.startswith("."):
                found[path.relative_to(folder).as_posix()] = path
    return {name: path for name, path in found.items() if not name.endswith(LEFT_OUT)}


def _page(stage: Path) -> bytes:
    """Return the page as `lockstep report` makes it in an opened bundle's folder."""
    from contextlib import chdir, redirect_stderr, redirect_stdout
    from io import StringIO

    from lockstep.report.bundle.opening import DATA, PAGE
    from lockstep.report.report_cli import report

    with chdir(stage), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        report.main([DATA, "--output", PAGE], prog_name="lockstep report", standalone_mode=False)
    return (stage / PAGE).read_bytes()
