"""Checks of the container runtime and of the site's image."""

import os
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from lockstep.before.doctor.checks import (
    GB,
    Finding,
    Subject,
    missing,
    not_needed,
    ok,
    output,
    probe,
    torch_in_words,
    warning,
)
from lockstep.core.processes import hostname
from lockstep.image import apptainer as programs
from lockstep.image import inspection
from lockstep.image.definition import sha256
from lockstep.image.image_record import read_record
from lockstep.slurm.site import Container
from lockstep.slurm.submit.runtimes import GPU_FLAGS

NO_IMAGE = "the site's ranks run in no image"
NO_SIF = "Lockstep looks into images of Apptainer alone"
NO_SITE = "no site file names an image"
NOT_YET = "the site file does not name it yet"
# Since 1.1 Apptainer mounts an image without setuid, by user namespaces and FUSE (its release
# notes); the jobs need no more than that.
LEAST_APPTAINER = (1, 1)
FUSE = Path("/dev/fuse")
NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
TRY = "unshare --user --map-root-user true"
# gpu_runtime -> what torch is built for, and what the driver leaves where it is loaded
RUNTIMES = {
    "cuda": ("CUDA", Path("/proc/driver/nvidia/version")),
    "rocm": ("ROCm", Path("/dev/kfd")),
}
# Debian's and Ubuntu's own switches, absent elsewhere; the first is open at 1, the second at 0.
CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")
APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def _container(subject: Subject) -> Container | Finding:
    if subject.site is None:
        return not_needed(NO_SITE)
    if "container.image" in subject.site.to_fill_in:
        return not_needed(NOT_YET)
    wanted = subject.site.container
    if wanted and wanted.runtime in ("podman-hpc", "pyxis"):
        return not_needed(NO_SIF)
    return wanted or not_needed(NO_IMAGE)


def _lacking(subject: Subject, says: str, action: str) -> Finding:
    """Return what keeps images from running on this machine; a site's jobs run on others."""
    if subject.is_login_node:
        return warning(f"on this login node: {says}", action)
    return missing(says, action)


def _gpu_runtime(subject: Subject) -> str | None:
    """Return what the site's GPUs need in an image; None where ranks use none."""
    return subject.site.gpu_runtime if subject.site and subject.wants_gpus else None


def apptainer(subject: Subject) -> Finding:
    """Whether Apptainer is here, and new enough."""
    wanted = _container(subject)
    if not isinstance(wanted, Finding) and wanted.runtime == "singularity":
        if shutil.which("singularity"):
            return ok("singularity is here; what follows is looked at by Apptainer alone")
        return _lacking(subject, "no singularity on PATH", "load its module or ask for it")
    if shutil.which("apptainer") is None:
        if isinstance(wanted, Finding):
            return not_needed(f"not on PATH; {wanted.says}")
        if shutil.which("singularity"):
            action = 'load Apptainer, or set runtime = "singularity" in [container]'
            return _lacking(subject, "only singularity, and jobs call apptainer", action)
        return _lacking(
            subject, "not on PATH", "load its module or ask for it, or use modules and a venv"
        )
    version = programs.version()
    if programs.is_older(version, LEAST_APPTAINER):
        return warning(f"{version} is old", "ask for 1.1 or newer, which runs without setuid")
    return ok(version)


def _needs_namespaces() -> bool:
    """Whether this Apptainer starts without setuid."""
    try:
        return "APPTAINER_SUID_INSTALL=1" not in output(["apptainer", "buildcfg"])
    except RuntimeError:
        return True


def namespaces(subject: Subject) -> Finding:
    """Whether an ordinary user may make user namespaces."""
    if shutil.which("apptainer") is None:
        return not_needed("Apptainer is not here")
    if not _needs_namespaces():
        return not_needed("this Apptainer is installed with setuid")
    refusals = {
        NAMESPACES: _says(NAMESPACES, "0"),
        CLONE: _says(CLONE, "0"),
        APPARMOR: _says(APPARMOR, "1"),
    }
    for path, is_refused in refusals.items():
        if is_refused:
            return _lacking(
                subject,
                f"ordinary users of {hostname()} may make none: {path} says "
                f"{path.read_text(encoding='ascii').strip()}",
                f"ask for this setting to be changed, or for apptainer-suid; {TRY} checks it",
            )
    try:
        output(TRY.split())
    except RuntimeError as error:
        says = f"the kernel of {hostname()} refuses one: {error}"
        return _lacking(subject, says, "ask for user namespaces, or for apptainer-suid")
    return ok("an ordinary user may make them")


def _says(path: Path, value: str) -> bool:
    return path.exists() and path.read_text(encoding="ascii").strip() == value


def fuse(subject: Subject) -> Finding:
    """Whether an ordinary user can mount an image."""
    if shutil.which("apptainer") is None:
        return not_needed("Apptainer is not here")
    if not _needs_namespaces():
        return not_needed("this Apptainer mounts images with setuid")
    if not FUSE.exists():
        return _lacking(subject, f"{FUSE} is not there", "ask for modprobe fuse")
    mode = FUSE.stat().st_mode
    if not mode & stat.S_IROTH or not mode & stat.S_IWOTH:
        return _lacking(
            subject,
            f"{FUSE} is {stat.filemode(mode)}: an ordinary user cannot use it",
            f"ask for chmod 666 {FUSE}",
        )
    if not (helper := _squashfuse()):
        return _lacking(
            subject,
            "neither squashfuse_ll nor squashfuse is installed",
            "ask for the package squashfuse",
        )
    return ok(f"{FUSE} is open to all, {helper}")


def _squashfuse() -> str | None:
    """Return the first program that Apptainer can mount an image with."""
    config = output(["apptainer", "buildcfg"])
    libexec = re.search(r"^LIBEXECDIR=(.+)$", config, re.MULTILINE)
    libexec_folder = f"{libexec[1]}/apptainer/bin" if libexec else "/usr/libexec/apptainer/bin"
    names = ("squashfuse_ll", "squashfuse")
    helpers = (shutil.which(name, path=path) for name in names for path in (libexec_folder, None))
    return next(filter(None, helpers), None)


def image(subject: Subject) -> Finding:
    """Whether the image can be read, and is the one that was built."""
    wanted = _container(subject)
    if isinstance(wanted, Finding):
        return wanted
    path = Path(wanted.image)
    try:
        header, digest = inspection.read_header(path), sha256(path)
    except OSError as error:
        action = "lockstep image build, or correct container.image"
        return missing(f"{path}: {error.strerror}", action)
    if misfit := _misfit(subject, path, header):
        return misfit
    says = f"{path}, {path.stat().st_size / GB:.1f} GB, sha256 {digest[:12]}"
    try:
        record = read_record(path)
    except ValueError as error:
        return warning(f"{says}; {error}", "copy the record again with the image")
    if record is None:
        return ok(f"{says}; no record of how it was built")
    if record.sha256 != digest:
        return missing(
            f"{says}, but it was built as {record.sha256[:12]}", "build or copy the image again"
        )
    return ok(f"{says}, as it was built")


def _misfit(subject: Subject, path: Path, header: inspection.Header | None) -> Finding | None:
    """Return why a file is no image for this machine; None where it fits."""
    if header is None:
        return missing(
            f"{path} is no SIF image", "lockstep image build, or correct container.image"
        )
    if header.architecture in (None, inspection.architecture_here()):
        return None
    return _lacking(
        subject,
        f"{path} is built for {header.architecture}, and this machine is "
        f"{inspection.architecture_here()}",
        "build it on a machine like the nodes, or correct container.image",
    )


def _starts(command: Sequence[str]) -> bool:
    """Return whether an image runs here at all."""
    try:
        output([*command, "true"])
    except RuntimeError:
        return False
    return True


def image_runs(subject: Subject) -> Finding:
    """Whether Python in the image loads all that measuring needs."""
    wanted = _container(subject)
    if isinstance(wanted, Finding):
        return wanted
    if shutil.which("apptainer") is None or not Path(wanted.image).is_file():
        return not_needed("there is no image that Apptainer could run")
    binds = [f"--bind={bind}" for bind in wanted.binds]
    runtime = _gpu_runtime(subject)
    options = [
        "--cleanenv",
        "--no-eval",
        *([GPU_FLAGS[runtime]] if runtime else []),
        *binds,
        *wanted.args,
    ]
    command = ["apptainer", "exec", *options, "--env", "PYTHONNOUSERSITE=1", wanted.image]
    try:
        facts = probe([*command, "python3"], Path("/"))
    except RuntimeError as error:
        trial = f"apptainer exec {wanted.image} python3 -c 'import torch'"
        if _starts(command):
            return missing(f"it starts, but cannot measure: {error}", f"try: {trial}")
        is_root = os.geteuid() == 0  # which some machines give less than all capabilities
        return _lacking(
            subject, str(error), f"try{' as an ordinary user' if is_root else ''}: {trial}"
        )
    says = torch_in_words(facts)
    if runtime and not facts[runtime]:
        built_for = RUNTIMES[runtime][0]
        return missing(
            f"{says}: it cannot use the site's GPUs, which need {built_for}",
            f"build it on a base with {built_for}, or correct gpu_runtime in the site file",
        )
    if runtime and facts["nccl"] is None:
        return missing(f"{says}: without NCCL", "build it on a base whose torch has NCCL")
    return ok(says)


def gpu_driver(subject: Subject) -> Finding:
    """Whether `apptainer --nv` or `--rocm` finds a driver, which it does not say itself."""
    runtime = _gpu_runtime(subject)
    if runtime is None or isinstance(_container(subject), Finding):
        return not_needed("no image of the site uses GPUs")
    if RUNTIMES[runtime][1].exists():
        return ok("a driver is here for the image to use")
    return not_needed(
        f"none here, and {GPU_FLAGS[runtime]} does not say so; look on a node: srun lockstep doctor"
    )
