"""A shell in an allocation like that of a campaign's point, to try things by hand."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from lockstep.campaign.campaign import Campaign
from lockstep.core.formats import parse_limit
from lockstep.slurm.site import Site
from lockstep.slurm.submit.partition_limits import check_nodes, limit_s
from lockstep.slurm.submit.resources import directives, share
from lockstep.slurm.submit.runtimes import entered

# Options of sbatch that salloc does not know.
OF_SCRIPTS = ("--signal=", "--open-mode=", "--output=", "--no-requeue")
USUAL_S = 3600
NAME = "lockstep-shell"


def command(
    campaign: Campaign, site: Site, world_size: int, time_s: int | None, folder: Path
) -> tuple[str, ...]:
    """Return the command that opens the shell on the first node of the allocation.

    It is salloc, which holds the whole allocation, around one `srun --pty`: within the shell
    `srun --overlap` then starts as many ranks as the point has. The time limit is an hour by
    default, or what the site gives if that is less. The image sees the folder, too.

    Raises:
        ValueError: Campaign, site and world size do not fit.
    """
    resources = share(campaign, site)
    check_nodes(resources, site, world_size)
    most_s = min(parse_limit(site.time), limit_s(site) or parse_limit(site.time))
    asked_s = min(USUAL_S, most_s) if time_s is None else time_s
    wanted = directives(site, resources, NAME, world_size, asked_s, "/dev/null")
    options = [one for one in wanted if not one.startswith(OF_SCRIPTS)]
    task = ["--overlap", "--pty", "--nodes=1", "--ntasks=1"]
    task += [f"--cpus-per-task={resources.cpus_per_task * resources.on_node(world_size)}"]
    shell = _entered(site, folder, is_gpu=resources.is_gpu)
    return ("salloc", *options, "srun", *task, "--export=ALL", *shell)


def _entered(site: Site, folder: Path, *, is_gpu: bool) -> Sequence[str]:
    """Return the shell, in the image or in the site's own environment."""
    if site.container is not None:
        return (*entered(site, [str(folder)], is_gpu=is_gpu), "bash")
    lines = [f"module load {shlex.quote(module)}" for module in site.modules]
    lines += [f". {shlex.quote(site.venv + '/bin/activate')}"] if site.venv else []
    return ("bash", "--login", "-c", " && ".join([*lines, "exec bash -i"]))
