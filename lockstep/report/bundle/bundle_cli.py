"""The command `lockstep bundle`."""

import os
import shlex
from pathlib import Path

import click

EXAMPLES = """
\b
Examples:
  lockstep bundle results/first
  lockstep bundle results/first --to first.tar.gz --license CC-BY-4.0

The archive holds the results with scripts, logs and accounting, their page, the launches'
environment and image hash, README.md, reproduce.md, an artefact description as the SC conferences
require, RO-Crate metadata, and the checksum of every file. lockstep report first.tar.gz reads it;
the same release makes the same page, byte for byte. The archive names images by their hash, and
does not include them.
"""
ENDING = ".tar.gz"
# Endings of files that are left out: images, temporary files, pages, secret keys.
LEFT_OUT = (".sif", ".lock", ".part", ".tmp", ".html", ".key")


@click.command("bundle", epilog=EXAMPLES)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--to", "target", type=click.Path(path_type=Path, dir_okay=False),
              help="Archive to write [DIR.tar.gz].")  # fmt: skip
@click.option("--license", "licence", help="Licence of the data, for the metadata of the archive.")
@click.option("--force", is_flag=True, help="Replace an existing archive.")
def bundle(folder: Path, target: Path | None, licence: str | None, force: bool) -> None:
    """Pack results, their page and instructions to reproduce them into one archive.

    FOLDER is a campaign's folder of results, or any other folder that lockstep report reads.
    """
    from tempfile import TemporaryDirectory

    from lockstep.report.bundle import opening

    source = folder.resolve()
    target = (target or source.with_name(f"{source.name}{ENDING}")).resolve()
    if not target.name.endswith(ENDING):
        raise ValueError(f"{target}: the archive's name must end in {ENDING}")
    if target.exists() and not force:
        raise ValueError(f"{target} exists; choose another name with --to, or pass --force")
    name = target.name.removesuffix(ENDING)
    with TemporaryDirectory(prefix="lockstep-bundle-") as stage:
        files = _stage(source, Path(stage), licence, name)
        size = opening.write_archive(target, name, files)
    click.echo(f"{click.format_filename(target)}: {len(files)} files, {size / 1e6:.2f} MB")
    click.echo(f"next: lockstep report {shlex.quote(click.format_filename(target))}")


def _stage(source: Path, stage: Path, licence: str | None, name: str) -> dict[str, Path]:
    """Write what a bundle adds to results; return all of its files by their paths in it."""
    from contextlib import chdir, redirect_stderr, redirect_stdout
    from io import StringIO

    from lockstep.report.bundle import describing
    from lockstep.report.bundle.opening import DATA, PAGE, SUMS, sums
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.load.reading import gather
    from lockstep.report.report_cli import report

    data, results = stage / DATA, gather([source])
    data.symlink_to(source)
    files: dict[str, Path] = {}
    for root, _, names in os.walk(data):
        for each in names:
            path = Path(root, each)
            is_own = path.is_file() and not path.is_symlink()
            if is_own and not each.startswith(".") and not each.endswith(LEFT_OUT):
                files[f"{DATA}/{path.relative_to(data).as_posix()}"] = path
    # The same page as `lockstep report` makes of the opened bundle.
    with chdir(stage), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        report.main([DATA, "--output", PAGE], prog_name="lockstep report", standalone_mode=False)
    files[PAGE] = stage / PAGE

    def add(texts: dict[str, bytes]) -> None:
        for each, text in texts.items():
            files[each] = stage / each
            files[each].write_bytes(text)

    series = series_of(results.split()[0])
    add(describing.describe(name, results, series, licence))
    add({describing.CRATE: describing.crate(name, results, files, licence)})
    add({SUMS: sums(files)})
    return files
