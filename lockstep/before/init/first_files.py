"""The first files of the place where this runs, or of a built-in site, and how they are written."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from lockstep.before.init.campaign_draft import MAX_LADDER_NODES, campaign_file
from lockstep.before.init.draft import Draft
from lockstep.before.init.site_draft import cluster_campaign, read_accounts, site_file
from lockstep.before.init.surroundings import Surroundings, look_around
from lockstep.core.system.files import write_atomically
from lockstep.slurm import cluster as clusters
from lockstep.slurm import site as sites

MAX_RANKS = 8  # of a laptop


def drafts(folder: Path, environ: Mapping[str, str]) -> dict[str, Draft]:
    """Return the files for the place where this runs: name -> draft.

    Raises:
        RuntimeError: Slurm is installed and does not answer, or shows no partition with nodes.
    """
    around = look_around(folder, environ)
    if shutil.which("scontrol") is None:
        return {"campaign.toml": local_campaign(around)}
    cluster = clusters.read()
    accounts = read_accounts(cluster)
    return {
        "site.toml": site_file(cluster, accounts, around),
        "campaign.toml": cluster_campaign(cluster, accounts),
    }


def local_campaign(around: Surroundings) -> Draft:
    """Return a first campaign of this machine alone."""
    ranks = around.num_gpus or min(around.num_cores, MAX_RANKS)
    return campaign_file(ranks, 1, has_gpus=around.num_gpus > 0)


def built_in(name: str) -> dict[str, Draft]:
    """Return the files of a site that ships with the suite: name -> draft.

    Raises:
        ValueError: There is no such site.
    """
    if name not in sites.built_in():
        raise ValueError(f"no built-in site {name!r}; choose from {', '.join(sites.built_in())}")
    site = sites.load(name)
    ranks = min(site.gpus_per_node or site.cpus_per_node, site.max_ranks_per_node or MAX_RANKS)
    return {
        "site.toml": Draft(sites.built_in()[name].read_text(encoding="utf-8")),
        "campaign.toml": campaign_file(ranks, MAX_LADDER_NODES, has_gpus=site.gpus_per_node > 0),
    }


def write(folder: Path, files: Mapping[str, Draft], *, force: bool) -> None:
    """Write the files; all of them, or none where one exists already.

    Raises:
        ValueError: A file exists and is not to be replaced.
        OSError: It cannot be written.
    """
    existing = [str(folder / name) for name in files if (folder / name).exists()]
    if existing and not force:
        verb = "exists" if len(existing) == 1 else "exist"
        raise ValueError(
            f"{' and '.join(existing)} {verb} already; --force replaces, --dry-run prints what it "
            "would say"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, draft in files.items():
        write_atomically(folder / name, draft.text)
