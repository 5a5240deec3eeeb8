"""`lockstep data`: what there is to train on, and fetching it where a node has no internet."""

from pathlib import Path

import click

from lockstep.measure.loading import download
from lockstep.measure.loading.download import SOURCES

SHIPPED = {
    "digits": "ships: 1,797 handwritten digits of 8 x 8",
    "synthetic": "made by the workload itself, of any size",
}
KNOWN = {
    "mnist": "70,000 handwritten digits of 28 x 28, 12 MB to fetch",
    "cifar10": "60,000 photographs of 32 x 32 in ten classes, 170 MB to fetch",
}
to = click.option(
    "--to",
    "root",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Folder of the data, which all nodes see.",
)


@click.group(name="data")
def data() -> None:
    """List data sets to train on, or fetch one."""


@data.command(
    name="list",
    epilog="""\b
Examples:
  lockstep data list
  lockstep data list --to data
""",
)
@to
def list_(root: Path) -> None:
    """List the data sets, and which of them are there."""
    for name, text in SHIPPED.items():
        click.echo(f"{name:<10} {text}")
    for name, text in KNOWN.items():
        missing = [one for one in SOURCES[name] if not (root / one.path).exists()]
        state = f"fetch it by lockstep data fetch {name}" if missing else f"in {root}"
        click.echo(f"{name:<10} {text}; {state}")


@data.command(
    epilog="""\b
Examples:
  lockstep data fetch mnist
  lockstep data fetch cifar10 --to /scratch/data
"""
)
@click.argument("name", type=click.Choice(list(SOURCES)))
@to
def fetch(name: str, root: Path) -> None:
    """Fetch a data set, or what is missing of it, and check it.

    A download that broke off goes on where it was. Needs no torch: a login node can fetch what
    nodes without internet train on, by --data-root or in the folder data of a campaign.
    """
    fetched = download.fetch(SOURCES[name], root)
    for archive in fetched:
        click.echo(f"fetched {root / archive.path}, as its checksum says")
    if not fetched:
        click.echo(f"{name} is in {root} already, as its checksums say")
