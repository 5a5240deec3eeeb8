"""Batch scripts: a job rendered by Lockstep's templates and, if there is one, the site's own."""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
LIBRARY = "lib/job.sh"  # functions for all scripts, in a folder beside them
BASH_S = 60  # limit of `bash -n`, which takes milliseconds
# Variables by which Slurm and the drivers' libraries name the devices of a job.
DEVICES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
# Prefixes of the variables that each rank takes into the image.
HANDED_ON = ("SLURM_", "SLURMD_NODENAME", "LOCKSTEP_", *COMMUNICATION_PREFIXES)
# Prefixes of variables that a program's MPI or numerical library reads.
OF_PROGRAMS = ("PMI", "OMPI_", "OMP_", "MKL_", "OPENBLAS_")
WITHOUT_COPIES = {"stage_in": (), "stage_image": False, "stage_cache": None}
# Kinds of jobs without data files: `collect` only reads results, stages are the user's commands.
WITHOUT_DATA = ("collect", "stage", "fallback")


@dataclass(frozen=True)
class Runtime:
    """The command line of a container runtime."""

    begin: tuple[str, ...]  # command and options that every image needs
    bind: str = "--bind="  # option that lets an image see a folder
    gpus: Mapping[str, str] = field(default_factory=dict)  # gpu_runtime -> option for GPUs
    handing: str = ""  # prefix of variables that enter the image; empty if options name them
    workdir: str = ""  # option for the folder to start in; empty for the caller's folder
    for_shell: tuple[str, ...] = ()  # further options for an interactive shell
    by_srun: bool = False  # whether these are options of srun


GPU_FLAGS = {"cuda": "--nv", "rocm": "--rocm"}
# Without --no-eval Apptainer runs $( ) in the value of a variable, such as the submit folder.
_SIF = ("exec", "--cleanenv", "--no-eval")
_OF_HOST = ("--network=host", "--ipc=host", "--pid=host")
RUNTIMES = {
    "apptainer": Runtime(("apptainer", *_SIF), gpus=GPU_FLAGS, handing="APPTAINERENV"),
    "singularity": Runtime(("singularity", *_SIF), gpus=GPU_FLAGS, handing="SINGULARITYENV"),
    # Each rank has a container of its own, so the ranks of a node share the host's namespaces.
    # --interactive keeps standard input open: the ranks' store serves until its input ends.
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
    """Return the command of a site's runtime up to the image; empty without a container.

    The image sees the folders under the same names, and the job's variables with one of the
    prefixes or names; NAME=VALUE among the names sets a variable.
    """
    container = site.container
    if container is None:
        return ()
    runtime = RUNTIMES[container.runtime]
    command = list(runtime.begin)
    if is_gpu and site.gpu_runtime in runtime.gpus:
        command.append(runtime.gpus[site.gpu_runtime])
    binds = [*filter(None, [*folders, site.suite]), *container.binds]
    if not runtime.handing:  # else the job's script sets the variables with this prefix
        binds = [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]
        if runtime.by_srun:  # all variables enter; these replace the image's own values
            binds = [",".join(binds)]
            kept = ",".join(name.partition("=")[0] for name in names)
            command += [f"--container-env={kept}"] if names else []
        else:  # podman-run(1): NAME* passes all variables with this prefix
            command += [f"--env={name}" for name in (*(f"{p}*" for p in prefixes), *names)]
    command += [f"{runtime.bind}{bind}" for bind in binds]
    if runtime.workdir:
        command.append(f"{runtime.workdir}{folders[0]}")
    return (*command, *container.args)


def shell_in_image(site: Site, folder: str, *, is_gpu: bool) -> tuple[str, ...]:
    """Return the command that runs the words after it in a site's image."""
    assert site.container is not None
    runtime, image = RUNTIMES[site.container.runtime], site.container.image
    command = (*options(site, [folder], is_gpu=is_gpu), *runtime.for_shell)
    return (*command, f"--container-image={image}" if runtime.by_srun else image)


def library() -> str:
    return files.text(content.ROOT / "slurm_templates" / LIBRARY)


def _folders(job: JobSpec, site: Site, *, is_staged: bool) -> list[str]:
    folders = [job.folder]
    for test in job.tests:  # a test imports from its repository
        path = Path(test.partition("::")[0])
        repositories = (folder for folder in path.parents if (folder / ".git").exists())
        folders.append(str(next(repositories, path.parent)))
    folders += [job.stage.folder] if job.stage and job.stage.folder else []
    folders += [job.workdir] if job.workdir else []
    # Apptainer and Singularity get the job's own scratch folder from the script.
    if is_staged and site.container and not RUNTIMES[site.container.runtime].handing:
        folders += [folder for folder in (site.scratch, site.stage_cache) if folder]
    return list(dict.fromkeys(folders))


def environment(site_template: str | None = None) -> Environment:
    """Return Jinja's environment: Lockstep's templates, and the site's own as `SITE`.

    An undefined name is an error, and filters quote every value.
    """
    templates = {} if site_template is None else {SITE: site_template}
    ours = FileSystemLoader(content.ROOT / "slurm_templates" / "templates")
    made = Environment(  # noqa: S701, HTML's escapes would be wrong in shell scripts
        loader=ChoiceLoader([DictLoader(templates), ours]),
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
    """Quote a folder for the script; an unset variable in it ends the job."""
    if not path.startswith("$"):
        return shlex.quote(path)
    name, _, below = path[1:].partition("/")
    unset = f"the site file uses the variable {name}, but this job does not set it"
    return f'"${{{name}:?{unset}}}"' + (f"/{shlex.quote(below)}" if below else "")


def _word(value: str) -> str:
    # The shell needs no quotes around a comma, but shellcheck takes it for a separator.
    quoted = shlex.quote(value)
    return f"'{value}'" if quoted == value and "," in value else quoted


def render(job: JobSpec, site: Site) -> str:
    """Return the batch script of a job; raise ValueError if the site's template fails."""
    if job.kind == "preflight":  # it checks scratch without copying large files
        site = site.model_copy(update=WITHOUT_COPIES)
    suite = site.suite or IMAGE_SUITE
    is_staged = site.scratch is not None and job.kind not in WITHOUT_DATA
    variables = dict.fromkeys(THREAD_VARIABLES, str(job.num_threads)) | site.rank_environment()
    of_program = OF_PROGRAMS if job.workdir else ()
    handed_on = (*HANDED_ON, *DEVICES[site.gpu_runtime], *of_program)
    # A program may need MPI, so without the site's choice srun uses Slurm's default.
    mpi = [] if job.workdir and site.mpi == "none" else [f"--mpi={site.mpi}"]
    names = (f"PYTHONPATH={suite}", "PYTHONNOUSERSITE=1", *variables)
    folders = _folders(job, site, is_staged=is_staged)
    # Paths that a node must have to run an image, with their keys in the site file.
    binds = site.container.binds if site.container else ()
    needed = [("container.binds", bind.partition(":")[0]) for bind in binds]
    needed += [("suite", site.suite)] if site.suite else []
    values: dict[str, Any] = {
        "job": job,
        "site": site,
        "library": LIBRARY,
        "suite": suite,
        "variables": variables,
        "srun_options": (f"--cpu-bind={site.cpu_bind}", *mpi, *site.srun_options),
        "runtime": RUNTIMES[site.container.runtime] if site.container else None,
        "handed_on": handed_on,
        "command": options(site, folders, handed_on, names, is_gpu=job.gpus_per_node > 0),
        "needs": tuple(f"need:{key}={path}" for key, path in needed),
        # The script runs this Python outside the image; the nodes must see its file system.
        "driver": (
            str(content.IMPORTABLE_FROM),
            *(sys.executable, "-m", "lockstep.campaign.program"),
        ),
        "staged": is_staged,
        "sacct": accounting.SHELL_COMMAND,
        "lines": [" ".join(_words(launch)) for launch in job.launches],
    }
    name = f"{'stage' if job.stage else job.kind}.sh.j2"
    if site.template is None:
        text = environment().get_template(name).render(values, parent=BASE)
    else:
        text = _render_own(site.template, name, values)
    if site.template or site.shell_before or site.shell_after:
        _check_syntax(text, site.template or "shell_before or shell_after")
    return text


def _words(launch: Launch) -> Iterator[str]:
    yield from (launch.name, str(launch.world_size), str(launch.repeat))
    if launch.part is not None:
        yield f"{launch.part}/{launch.num_parts}"


def _render_own(template: str, name: str, values: dict[str, Any]) -> str:
    try:
        source = files.content(Path(template)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{template} is not UTF-8 text: {error}; save it as UTF-8") from error
    except ValueError as error:
        raise ValueError(f"{error}; change template") from error
    try:
        return environment(source).get_template(name).render(values, parent=SITE)
    except (TemplateError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        # In a traceback Jinja calls a template without a file <template>.
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
        line = error.lineno if isinstance(error, TemplateSyntaxError) else (lines or [None])[-1]
        place = f"{template}:{line}" if line else template
        if isinstance(error, TemplateNotFound):
            raise ValueError(f"{place}: no template {error.name!r}; extend {BASE}") from error
        reason = one_line(str(error))
        raise ValueError(
            f"{place}: the template cannot be rendered: {reason}; correct the template, and let it "
            f"extend {BASE}"
        ) from error


def _check_syntax(text: str, origin: str) -> None:
    """Raise ValueError for a script that sbatch or bash would refuse."""
    if not text.startswith("#!"):
        raise ValueError(f"{origin}: the resulting script does not begin with #!/bin/bash")
    environ = os.environ | {"LC_ALL": "C.UTF-8"}
    ended = processes.run(["/bin/bash", "-n"], BASH_S, environ=environ, text=text)
    if not ended.code:
        return
    reason = one_line(ended.errors)
    # The script is not a file yet, so the message shows the line that bash names.
    if match := re.search(r"line ([0-9]+): (?!warning:)(.*)", ended.errors):
        number = int(match[1])
        line = "".join(text.split("\n")[number - 1 : number]).strip()[:MAX_SHOWN_CHARACTERS]
        reason = f"{match[2]}, " + (f"in line {number}: {line}" if line else "after its last line")
    raise ValueError(f"{origin}: bash cannot parse the resulting script: {reason}")
