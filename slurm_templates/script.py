"""Batch scripts: a job rendered by our templates, and by the site's own where it has one."""

import shlex
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import (
    ChoiceLoader,
    DictLoader,
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
)

from bench.campaign import Launch
from slurm_templates import accounting
from slurm_templates.job import JobSpec
from slurm_templates.site import Site

IMAGE_SUITE = "/opt/lockstep"
BASE = "base.sh.j2"
SITE = "site.sh.j2"
# What Slurm and the drivers' libraries call the devices a job may use.
DEVICES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
GPU_FLAGS = {"cuda": "--nv", "rocm": "--rocm"}


def suite(site: Site) -> str:
    """Return where the suite is, as the ranks see it."""
    return site.suite or IMAGE_SUITE


def container_command(site: Site, folder: str, *, is_gpu: bool) -> tuple[str, ...]:
    """Return a rank's command line up to the image; empty where ranks run outside one."""
    if site.container is None:
        return ()
    binds = [f"--bind={path}" for path in filter(None, [folder, site.suite])]
    binds += [f"--bind={path}" for path in site.container.binds]
    # Apptainer would run the $( ) of a variable that is handed on, such as the submit folder.
    flags = ["--cleanenv", "--no-eval", *([GPU_FLAGS[site.gpu_runtime]] if is_gpu else [])]
    return ("apptainer", "exec", *flags, *binds, *site.container.args)


def environment(site_template: str | None = None) -> Environment:
    """Return the templates' environment: nothing undefined, every value quoted by a filter.

    Args:
        site_template: Text of a site's own template, between ours and the base.
    """
    own = {} if site_template is None else {SITE: site_template}
    made = Environment(  # noqa: S701, shell scripts, in which HTML's escapes would be wrong
        loader=ChoiceLoader([DictLoader(own), _templates()]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["sh"] = lambda value: shlex.quote(str(value))
    made.filters["words"] = lambda values: " ".join(map(_word, values))
    return made


def _word(value: str) -> str:
    # A comma is plain to the shell, but reads like the end of an array's element.
    quoted = shlex.quote(value)
    return f"'{value}'" if quoted == value and "," in value else quoted


@cache
def _templates() -> FileSystemLoader:
    return FileSystemLoader(Path(str(resources.files("slurm_templates") / "templates")))


def render(job: JobSpec, site: Site) -> str:
    """Return the batch script of a job.

    Raises:
        ValueError: The site's own template cannot be read, or is broken.
    """
    if job.kind == "preflight":  # it shows that there is scratch, with no copy of what is large
        site = site.model_copy(update={"stage_in": (), "stage_image": False})
    values: dict[str, Any] = {
        "job": job,
        "site": site,
        "suite": suite(site),
        "variables": site.rank_environment(),
        "devices": DEVICES[site.gpu_runtime],
        "command": container_command(site, job.folder, is_gpu=job.gpus_per_node > 0),
        # What only reads results needs no data.
        "staged": site.scratch is not None and job.kind != "collect",
        "sacct": accounting.SHELL_COMMAND,
        "lines": [" ".join(words(launch)) for launch in job.launches],
    }
    name = f"{job.kind}.sh.j2"
    if site.template is None:
        return environment().get_template(name).render(values, parent=BASE)
    try:
        return environment(_read(site.template)).get_template(name).render(values, parent=SITE)
    except (TemplateError, ArithmeticError, LookupError, TypeError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{site.template}: not a template over {BASE}: {said}") from error
    except RecursionError:
        raise ValueError(f"{site.template}: extends itself; it must extend {BASE}") from None


def _read(template: str) -> str:
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{template}: {error.strerror}; change template") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{template}: not UTF-8 text: {error}; change template") from error


def words(launch: Launch) -> Iterator[str]:
    """Yield what the script's `launch` is told: NAME WORLD_SIZE REPEAT [PART]."""
    yield from (launch.name, str(launch.world_size), str(launch.repeat))
    if launch.part is not None:
        yield f"{launch.part}/{launch.num_parts}"
