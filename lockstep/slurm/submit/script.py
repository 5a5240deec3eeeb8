"""Batch scripts: a job rendered by our templates, and by the site's own where it has one."""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import (
    ChoiceLoader,
    DictLoader,
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
)

from lockstep import content
from lockstep.campaign.campaign import Launch
from lockstep.core import files, processes
from lockstep.core.formats import one_line
from lockstep.core.inputs import MAX_SHOWN_CHARACTERS
from lockstep.core.processes import COMMUNICATION_PREFIXES, THREAD_VARIABLES
from lockstep.slurm.site import Site
from lockstep.slurm.status import accounting
from lockstep.slurm.submit.job_spec import JobSpec

IMAGE_SUITE = "/opt/lockstep"
BASE = "base.sh.j2"
SITE = "site.sh.j2"
# The functions that all scripts source, in a file next to the scripts.
LIBRARY = "lib/job.sh"
BASH_S = 60  # to read a script, which takes milliseconds
# What Slurm and the drivers' libraries call the devices a job may use.
DEVICES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
# How names of variables begin that each rank hands on into the image.
HANDED_ON = ("SLURM_", "SLURMD_NODENAME", "LOCKSTEP_", *COMMUNICATION_PREFIXES)
# What an MPI reads of its launcher, and libraries of their threads.
OF_PROGRAMS = ("PMI", "OMPI_", "OMP_", "MKL_", "OPENBLAS_")
WITHOUT_COPIES = {"stage_in": (), "stage_image": False, "stage_cache": None}
# Kinds of jobs for which no data are copied: what only reads results, and the user's own.
WITHOUT_DATA = ("collect", "stage", "fallback")


@dataclass(frozen=True)
class Runtime:
    """How one container runtime is called.

    Attributes:
        begin: Its command, with what all images need; options of srun where it is a part of that.
        bind: The option that lets an image see a folder.
        gpus: gpu_runtime -> the option that lets an image see GPUs, where it needs one.
        handing: How names of variables begin that it hands on into the image, where that is its
            way of handing on.
        workdir: The option for the folder that it starts in, where that is not the caller's.
        for_shell: The options that a shell needs besides.
        by_srun: Whether its options are srun's.
    """

    begin: tuple[str, ...]
    bind: str = "--bind="
    gpus: Mapping[str, str] = field(default_factory=dict)
    handing: str = ""
    workdir: str = ""
    for_shell: tuple[str, ...] = ()
    by_srun: bool = False


GPU_FLAGS = {"cuda": "--nv", "rocm": "--rocm"}
# Apptainer would run the $( ) of a variable that is handed on, such as the submit folder.
_SIF = ("exec", "--cleanenv", "--no-eval")
_OF_HOST = ("--network=host", "--ipc=host", "--pid=host")
RUNTIMES = {
    "apptainer": Runtime(("apptainer", *_SIF), gpus=GPU_FLAGS, handing="APPTAINERENV"),
    "singularity": Runtime(("singularity", *_SIF), gpus=GPU_FLAGS, handing="SINGULARITYENV"),
    # A container for each rank; what ranks of a node share is the host's. Without --interactive its
    # input is empty, and the store where ranks meet serves until its input ends.
    "podman-hpc": Runtime(
        ("podman-hpc", "run", "--rm", "--interactive", *_OF_HOST),
        bind="--volume=",
        gpus={"cuda": "--gpu"},
        workdir="--workdir=",
        for_shell=("--tty",),
    ),
    "pyxis": Runtime(
        ("--no-container-mount-home", "--no-container-entrypoint"),
        bind="--container-mounts=",
        workdir="--container-workdir=",
        by_srun=True,
    ),
}


def options(
    site: Site,
    folders: Sequence[str],
    prefixes: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    is_gpu: bool,
) -> tuple[str, ...]:
    """Return the command of a site's runtime up to the image; empty where ranks run outside one.

    Args:
        site: Its container, if it has one.
        folders: What ranks read and write under the same names inside the image.
        prefixes: How names of the job's variables begin that enter the image.
        names: Names of others that do; NAME=VALUE sets one.
        is_gpu: Whether the image must see GPUs.
    """
    container = site.container
    if container is None:
        return ()
    runtime = RUNTIMES[container.runtime]
    command = list(runtime.begin)
    if is_gpu and site.gpu_runtime in runtime.gpus:
        command.append(runtime.gpus[site.gpu_runtime])
    binds = [*filter(None, [*folders, site.suite]), *container.binds]
    if not runtime.handing:  # else the job's script hands variables on
        binds = [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]
        # podman-run(1): NAME* hands on all that begin so.
        handed_on = [f"--env={one}" for one in (*(f"{start}*" for start in prefixes), *names)]
        if runtime.by_srun:  # all enter, but for these the image's own value would count
            kept = ",".join(name.partition("=")[0] for name in names)
            handed_on = [f"--container-env={kept}"] if names else []
            binds = [",".join(binds)]
        command += handed_on
    command += [f"{runtime.bind}{bind}" for bind in binds]
    if runtime.workdir:
        command.append(f"{runtime.workdir}{folders[0]}")
    return (*command, *container.args)


def shell_in_image(site: Site, folder: str, *, is_gpu: bool) -> tuple[str, ...]:
    """Return the command before a shell that one task runs in a site's image."""
    assert site.container is not None
    runtime, image = RUNTIMES[site.container.runtime], site.container.image
    command = (*options(site, [folder], is_gpu=is_gpu), *runtime.for_shell)
    return (*command, f"--container-image={image}" if runtime.by_srun else image)


def library() -> str:
    """Return the functions that all scripts source."""
    return files.text(content.ROOT / "slurm_templates" / LIBRARY)


def suite(site: Site) -> str:
    """Return where the suite is, as the ranks see it."""
    return site.suite or IMAGE_SUITE


def _seen(job: JobSpec, site: Site) -> list[str]:
    """Return the folders that a job's ranks or tasks read and write.

    A node's own are the job's alone, where the script can name them to the runtime.
    """
    local: list[str] = []
    if site.container and not RUNTIMES[site.container.runtime].handing and _stages(job, site):
        local = [one for one in (site.scratch, site.stage_cache) if one]
    repositories = []
    for test in job.tests:  # what they import lies in their repository, too
        path = Path(test.partition("::")[0])
        marks = (folder for folder in path.parents if (folder / ".git").exists())
        repositories.append(str(next(marks, path.parent)))
    of_stage = [job.stage.folder] if job.stage and job.stage.folder else []
    own = [job.workdir] if job.workdir else []
    return list(dict.fromkeys([job.folder, *repositories, *of_stage, *own, *local]))


def _stages(job: JobSpec, site: Site) -> bool:
    """Return whether a job has a folder on the nodes' own disks."""
    return site.scratch is not None and job.kind not in WITHOUT_DATA


def environment(site_template: str | None = None) -> Environment:
    """Return the templates' environment: nothing undefined, every value quoted by a filter.

    A site's own template comes between ours and the base.
    """
    templates = {} if site_template is None else {SITE: site_template}
    made = Environment(  # noqa: S701, shell scripts, in which HTML's escapes would be wrong
        loader=ChoiceLoader([DictLoader(templates), _templates()]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["sh"] = lambda value: shlex.quote(str(value))
    made.filters["place"] = _place
    made.filters["words"] = lambda values: " ".join(map(_word, values))
    return made


def _place(path: str) -> str:
    """Return a folder as the script writes it, one in a variable so that an unset one ends it."""
    if not path.startswith("$"):
        return shlex.quote(path)
    name, _, below = path[1:].partition("/")
    unset = f"{name}, which the site file names, is not set in this job"
    return f'"${{{name}:?{unset}}}"' + (f"/{shlex.quote(below)}" if below else "")


def _word(value: str) -> str:
    # A comma is plain to the shell, but reads like the end of an array's element.
    quoted = shlex.quote(value)
    return f"'{value}'" if quoted == value and "," in value else quoted


@cache
def _templates() -> FileSystemLoader:
    return FileSystemLoader(content.ROOT / "slurm_templates" / "templates")


def render(job: JobSpec, site: Site) -> str:
    """Return the batch script of a job.

    Raises:
        ValueError: The site's own template cannot be read, or is broken.
    """
    if job.kind == "preflight":  # it shows that there is scratch, with no copy of what is large
        site = site.model_copy(update=WITHOUT_COPIES)
    variables = dict.fromkeys(THREAD_VARIABLES, str(job.num_threads)) | site.rank_environment()
    of_program = OF_PROGRAMS if job.workdir else ()
    handed_on = (*HANDED_ON, *DEVICES[site.gpu_runtime], *of_program)
    # What no rank of ours needs, a program may: then it is Slurm's own default.
    mpi = [] if job.workdir and site.mpi == "none" else [f"--mpi={site.mpi}"]
    names = (f"PYTHONPATH={suite(site)}", "PYTHONNOUSERSITE=1", *variables)
    # What a node must have to run an image, by the keys of the site file that name it.
    binds = site.container.binds if site.container else ()
    needed = [("container.binds", bind.partition(":")[0]) for bind in binds]
    needed += [("suite", site.suite)] if site.suite else []
    values: dict[str, Any] = {
        "job": job,
        "site": site,
        "library": LIBRARY,
        "suite": suite(site),
        "variables": variables,
        "srun_options": (f"--cpu-bind={site.cpu_bind}", *mpi, *site.srun_options),
        "runtime": RUNTIMES[site.container.runtime] if site.container else None,
        "handed_on": handed_on,
        "command": options(site, _seen(job, site), handed_on, names, is_gpu=job.gpus_per_node > 0),
        "needs": tuple(f"need:{key}={path}" for key, path in needed),
        # Where Slurm is spoken to from, on a file system that the nodes see, too.
        "driver": (
            str(content.IMPORTABLE_FROM),
            sys.executable,
            "-m",
            "lockstep.campaign.program",
        ),
        "staged": _stages(job, site),
        "sacct": accounting.SHELL_COMMAND,
        "lines": [" ".join(words(launch)) for launch in job.launches],
    }
    name = f"{'stage' if job.stage else job.kind}.sh.j2"
    text = _rendered(name, site.template, values)
    if site.template or site.shell_before or site.shell_after:
        _refuse_unreadable(text, site.template or "shell_before or shell_after")
    return text


def _rendered(name: str, template: str | None, values: dict[str, Any]) -> str:
    if template is None:
        return environment().get_template(name).render(values, parent=BASE)
    try:
        source = files.content(Path(template)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{template}: not UTF-8 text: {error}; change template") from error
    except ValueError as error:
        raise ValueError(f"{error}; change template") from error
    try:
        return environment(source).get_template(name).render(values, parent=SITE)
    except TemplateNotFound as error:
        raise ValueError(
            f"{template}: template {error.name!r} does not exist; extend {BASE}"
        ) from error
    except (TemplateError, ArithmeticError, LookupError, TypeError) as error:
        reason = one_line(str(error))
        where = f"{template}{_line_of(error)}"
        raise ValueError(f"{where}: the template is broken: {reason}; correct it") from error
    except RecursionError:
        raise ValueError(f"{template}: extends itself; it must extend {BASE}") from None


def _line_of(error: Exception) -> str:
    """Return `:LINE` of a site's template where an error arose in it, or nothing."""
    if isinstance(error, TemplateSyntaxError):
        return f":{error.lineno}"
    # Jinja gives a template that is no file this name in a traceback, with the template's lines.
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f":{lines[-1]}" if lines else ""


def _refuse_unreadable(text: str, origin: str) -> None:
    """Refuse a script that sbatch or bash would, before a job of it is sent."""
    if not text.startswith("#!"):
        raise ValueError(f"{origin} makes a script whose first line is not #!/bin/bash")
    environ = os.environ | {"LC_ALL": "C.UTF-8"}
    ended = processes.run(["/bin/bash", "-n"], BASH_S, environ=environ, text=text)
    if not ended.code:
        return
    reason, lines = one_line(ended.errors), text.split("\n")
    # No file holds the script: the line that bash means is shown.
    if place := re.search(r"line ([0-9]+): (?!warning:)(.*)", ended.errors):
        number = int(place[1])
        line = "".join(lines[number - 1 : number]).strip()[:MAX_SHOWN_CHARACTERS]
        where = f"in line {number}: {line}" if line else "after its last line"
        reason = f"{place[2]}, {where}"
    raise ValueError(f"{origin} makes a script that bash does not read: {reason}")


def words(launch: Launch) -> Iterator[str]:
    """Yield the arguments of the script's `launch`: NAME WORLD_SIZE REPEAT [PART]."""
    yield from (launch.name, str(launch.world_size), str(launch.repeat))
    if launch.part is not None:
        yield f"{launch.part}/{launch.num_parts}"
