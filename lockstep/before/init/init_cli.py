"""The command `lockstep init`."""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import click


@click.command()
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False), default=".", required=False
)
@click.option(
    "--site", help="Start from a built-in site, such as example, instead of asking Slurm."
)
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the files, but do not write them.")
def init(folder: Path, site: str | None, *, force: bool, dry_run: bool) -> None:
    """Write a first site.toml and campaign.toml for this cluster into FOLDER.

    Without Slurm, only campaign.toml is written, for `lockstep run`.

    \b
    Examples:
      lockstep init                  # write the files into the current folder
      lockstep init --dry-run        # only print the files
      lockstep init --site example   # start from a built-in site, for example on a laptop
    """
    from lockstep.before.init import drafts
    from lockstep.core.files import write_atomically

    texts = drafts.built_in(site) if site else drafts.drafts(folder, os.environ)
    if dry_run:
        for name, text in texts.items():
            click.echo(f"# ---- {folder / name}\n{text}")
        return
    existing = [str(folder / name) for name in texts if (folder / name).exists()]
    if existing and not force:
        paths = " and ".join(existing)
        exist = "already exists" if len(existing) == 1 else "already exist"
        raise ValueError(
            f"{paths} {exist}; give --force to replace existing files, or "
            "--dry-run to print the new text"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text)
        click.echo(f"wrote {folder / name}")
    click.echo(_next(folder, texts))


def _next(folder: Path, texts: Mapping[str, str]) -> str:
    from lockstep.slurm.site import FILL_IN

    campaign, site = (shlex.quote(str(folder / name)) for name in ("campaign.toml", "site.toml"))
    if "site.toml" not in texts:
        return (
            "Slurm is not installed here, so the campaign measures only this machine.\n"
            f"Next: lockstep run {campaign}"
        )
    keys = re.findall(rf'^(\w+) = "{FILL_IN}', texts["site.toml"], re.MULTILINE)
    if keys:
        names = ", ".join(keys)
        return f"Next: fill in {names} in {site}, then run lockstep doctor --site {site}"
    return f"Next: lockstep doctor --site {site}\n      lockstep plan {campaign} --site {site}"
