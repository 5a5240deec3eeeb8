"""The command `lockstep init`."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lockstep.before.init.drafts import Draft


@click.command()
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False), default=".", required=False
)
@click.option(
    "--site", help="Start from a built-in site instead of asking Slurm: example, lumi-g ..."
)
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the files, but do not write them.")
def init(folder: Path, site: str | None, *, force: bool, dry_run: bool) -> None:
    """Write a first site.toml and campaign.toml for this cluster into FOLDER.

    Without Slurm it writes only the campaign, for `lockstep run`.

    \b
    Examples:
      lockstep init                  into the current folder
      lockstep init --dry-run        print the files only
      lockstep init --site example   plan for a cluster from a laptop
    """
    from lockstep.before.init import drafts

    made = drafts.built_in(site) if site else drafts.drafts(folder, os.environ)
    if dry_run:
        for name, draft in made.items():
            click.echo(f"# ---- {folder / name}\n{draft.text}")
        return
    drafts.write(folder, made, force=force)
    for name in made:
        click.echo(f"wrote {folder / name}")
    click.echo(_next(folder, made))


def _next(folder: Path, made: "dict[str, Draft]") -> str:
    """Return what to do with the files."""
    campaign, site = (shlex.quote(str(folder / name)) for name in ("campaign.toml", "site.toml"))
    if "site.toml" not in made:
        return (
            "Slurm is not installed here, so the campaign is for this machine only.\n"
            f"Next: lockstep run {campaign}"
        )
    if keys := ", ".join(made["site.toml"].to_fill_in):
        return f"Next: fill in {keys} in {site}, then lockstep doctor --site {site}"
    return f"Next: lockstep doctor --site {site}\n      lockstep plan {campaign} --site {site}"
