"""What runs an image on a cluster: one table of the options by which each runtime does the same.

Of Podman-HPC and Pyxis their own documents say it (podman_hpc.py, podman-run(1), and Pyxis'
README); their scripts are rendered, and were not run there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.slurm.site import Container, Site


@dataclass(frozen=True)
class Runtime:
    """One of them.

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


def runtime_of(container: Container) -> Runtime:
    """Return what runs a site's image."""
    return RUNTIMES[container.runtime]


@dataclass(frozen=True)
class Entering:
    """What enters an image of a job's variables.

    Attributes:
        prefixes: How names of variables begin that do.
        names: Names of others; NAME=VALUE sets one.
    """

    prefixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def handed_on(self, runtime: Runtime) -> list[str]:
        """Return the options that hand the variables on, where the job's script does not."""
        if runtime.by_srun:  # all enter, but for these the image's own value would count
            names = ",".join(name.partition("=")[0] for name in self.names)
            return [f"--container-env={names}"] if names else []
        if runtime.handing:
            return []
        # podman-run(1): NAME* hands on all that begin so.
        every = (*(f"{prefix}*" for prefix in self.prefixes), *self.names)
        return [f"--env={one}" for one in every]


def options(
    site: Site, folders: Sequence[str], variables: Entering, *, is_gpu: bool
) -> tuple[str, ...]:
    """Return the command of a site's runtime up to the image; empty where ranks run outside one.

    Ranks read and write the folders under the same names inside the image.
    """
    container = site.container
    if container is None:
        return ()
    runtime = runtime_of(container)
    gpus = [runtime.gpus[site.gpu_runtime]] if is_gpu and site.gpu_runtime in runtime.gpus else []
    binds = [*filter(None, [*folders, site.suite]), *container.binds]
    place = [f"{runtime.workdir}{folders[0]}"] if runtime.workdir else []
    handed_on = variables.handed_on(runtime)
    folders_seen = (*_binds(runtime, binds), *place)
    return (*runtime.begin, *gpus, *handed_on, *folders_seen, *container.args)


def _binds(runtime: Runtime, binds: Sequence[str]) -> Iterator[str]:
    if runtime.handing:
        yield from (f"{runtime.bind}{bind}" for bind in binds)
        return
    pairs = [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]
    values = [",".join(pairs)] if runtime.by_srun else pairs
    yield from (f"{runtime.bind}{value}" for value in values)


def entered(site: Site, folders: Sequence[str], *, is_gpu: bool) -> tuple[str, ...]:
    """Return the command before a shell that one task runs in a site's image."""
    assert site.container is not None
    runtime, image = runtime_of(site.container), site.container.image
    command = (*options(site, folders, Entering(), is_gpu=is_gpu), *runtime.for_shell)
    return (*command, f"--container-image={image}" if runtime.by_srun else image)
