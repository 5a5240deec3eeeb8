"""Checks of Slurm: whether it answers, and whether it has what the site file names.

Checks of the container runtime and of the site's image.
"""

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
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
from lockstep.before.doctor.machine_checks import named_interfaces
from lockstep.core.formats import clock, last_line, listed, parse_limit
from lockstep.core.processes import hostname
from lockstep.image import apptainer as programs
from lockstep.image import inspection
from lockstep.image.inspection import read_record, sha256
from lockstep.slurm import associations
from lockstep.slurm import client as slurm
from lockstep.slurm.any_job import answers as words
from lockstep.slurm.any_job.node_use import read_reason
from lockstep.slurm.client import FailedError, NotInstalledError
from lockstep.slurm.cluster import MIB_PER_GIB, Cluster, Node, Partition
from lockstep.slurm.site import Container, Site
from lockstep.slurm.status.causes import FOR_EVER
from lockstep.slurm.submit.job_spec import gpus_on_node
from lockstep.slurm.submit.runtimes import GPU_FLAGS

# A job of a minute fits into any gap of a queue: one that still waits has found none. Nodes that
# are being woken are given longer.
QUEUED_S, NODES_TIMEOUT_S = 20, 120
GRACE_S = 20
NUM_NODES = 2
# Of nodes out of service so many states are shown, with so many nodes of each.
MAX_STATES = 8
MAX_NAMED = 8
BACK = "ask when they will be back; lockstep slurm nodes says more"
# What a node says of itself: Slurm's name of it, its own, then its network interfaces. The mark
# tells it from what a site's prologs print.
MARK = "lockstep-node:"
NODE_SAYS = f'echo {MARK} "${{SLURMD_NODENAME:-$(hostname)}}" "$(hostname)" $(ls /sys/class/net)'
MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": MIB_PER_GIB, "T": MIB_PER_GIB**2}


def site_file(subject: Subject) -> Finding:
    """Whether all of the site file is filled in."""
    if subject.site is None:
        return not_needed("no --site given")
    if keys := ", ".join(subject.site.to_fill_in):
        return missing(f"still to be filled in: {keys}", "fill it in; no job is sent until then")
    return ok("all of it is filled in")


def answers(subject: Subject) -> Finding:
    """Whether Slurm is here and its controller answers."""
    if isinstance(subject.slurm, Cluster):
        names = ", ".join(partition.name for partition in subject.slurm.partitions)
        return ok(f"{subject.slurm.version or 'a'} on {subject.slurm.name}, partitions {names}")
    if subject.site is None and isinstance(subject.slurm, NotInstalledError):
        return not_needed("not installed here, and no site file names a cluster")
    if isinstance(subject.slurm, FailedError) and subject.slurm.to_do:
        return missing(subject.slurm.says, subject.slurm.to_do)
    return missing(str(subject.slurm), "use a login node of the cluster, or ask later")


def _both(subject: Subject) -> tuple[Site, Cluster] | Finding:
    """Return site and cluster, or why there is nothing to compare."""
    if subject.site is None:
        return not_needed("no --site given")
    if isinstance(subject.slurm, RuntimeError):
        return not_needed("Slurm does not answer")
    return subject.site, subject.slurm


def partition(subject: Subject) -> Finding:
    """Whether the site's partition is there, up, and as the site says."""
    both = _both(subject)
    if isinstance(both, Finding):
        return both
    chosen = both[1].partition(both[0].partition)
    if chosen is None:
        names = ", ".join(listed.name for listed in both[1].partitions)
        wanted = both[0].partition or "none that is the default"
        return missing(f"{wanted}: there is no such partition", f"choose from {names}")
    if not chosen.is_up:
        return missing(f"{chosen.name} is not up", "ask when it will be, or choose another")
    if absent := sorted(set(both[0].partitions) - {listed.name for listed in both[1].partitions}):
        return missing(
            f"{', '.join(absent)}: there is no such partition", "take its table out of the site"
        )
    return _nodes_fit(both[0], chosen)


def _nodes_fit(site: Site, chosen: Partition) -> Finding:
    fitting = _fitting(site, chosen)
    here = sum(node.is_here for node in fitting)
    if not fitting:
        lacks = sorted({reason for node in chosen.nodes for reason in _lacks(site, node)})
        return missing(
            f"no node of {chosen.name} is as the site says: {'; '.join(lacks) or 'it has none'}",
            "correct the site file; lockstep init shows what the nodes have",
        )
    says = f"{chosen.name}: {len(fitting)} of {len(chosen.nodes)} nodes are as the site says"
    if not here:
        return warning(f"{says}, none is in service", "ask when they will be")
    kinds = {node.kind.shape for node in fitting}
    if len(kinds) > 1 and not site.gpu_types:
        return warning(
            f"{says}, of {len(kinds)} kinds", "set constraint or gpu_type, so that jobs get alike"
        )
    return ok(f"{says}, {here} in service")


def _fitting(site: Site, chosen: Partition) -> list[Node]:
    return [node for node in chosen.nodes if not _lacks(site, node)]


def _lacks(site: Site, node: Node) -> list[str]:
    """Return what the site says of a node and the node has not."""
    kind, lacks = node.kind, []
    if site.gpus_per_node > kind.num_gpus:
        lacks.append(f"gpus_per_node {site.gpus_per_node} over {kind.num_gpus}")
    if site.gpu_type and site.gpu_type != kind.gpu_type:
        lacks.append(f"gpu_type {site.gpu_type} is not {kind.gpu_type or 'named'}")
    if site.cpus_per_node > kind.num_cpus:
        lacks.append(f"cpus_per_node {site.cpus_per_node} over {kind.num_cpus}")
    if (mem_mib := _mib(site.mem)) > kind.memory_mib:
        lacks.append(f"mem {mem_mib} MiB over {kind.memory_mib}")
    # Expressions such as a&b or [a|b] are left to Slurm.
    if site.constraint and site.constraint.isidentifier() and site.constraint not in node.features:
        lacks.append(f"constraint {site.constraint} is no feature of them")
    return lacks


def _mib(mem: str | None) -> int:
    if mem is None:
        return 0
    unit = mem[-1] if mem[-1].isalpha() else ""
    return int(int(mem.removesuffix(unit)) * MIB[unit])


def time_limit(subject: Subject) -> Finding:
    """Whether a job may take as long as the site says."""
    both = _both(subject)
    if isinstance(both, Finding):
        return both
    chosen = both[1].partition(both[0].partition)
    if chosen is None or chosen.max_time is None:
        return ok(f"{both[0].time}; the partition has no limit")
    if parse_limit(both[0].time) > parse_limit(chosen.max_time):
        return missing(
            f"{both[0].time} is over the {chosen.max_time} of {chosen.name}",
            f'time = "{chosen.max_time}" or less in the site file',
        )
    return ok(f"{both[0].time} of at most {chosen.max_time}")


def job_limits(subject: Subject) -> Finding:
    """Whether the limits of QOS and account, which the partition does not say, allow it."""
    both = _both(subject)
    if isinstance(both, Finding):
        return both
    site, cluster = both
    if not cluster.enforces_limits:
        return not_needed("this Slurm enforces no limits of accounts and QOS")
    if isinstance(accounts := subject.accounts, RuntimeError):
        return warning(f"{accounts}", "ask again later")
    limits = associations.limits(
        cluster, accounts, cluster.partition(site.partition), site.account, site.qos
    )
    for limit in limits:
        if limit.name == "MaxWall" and parse_limit(site.time) > limit.value:
            what_follows = "be refused by sbatch" if limit.denies else "wait for ever"
            return missing(
                f"{site.time} is over {limit.text}: its jobs would {what_follows}",
                f'time = "{clock(limit.value)}" or less in the site file, or another qos',
            )
    texts = [limit.text for limit in limits]
    return ok(texts[0], *texts[1:]) if texts else ok("account and QOS set none")


def account(subject: Subject) -> Finding:
    """Whether the user may charge the site's account and use its QOS."""
    both = _both(subject)
    if isinstance(both, Finding):
        return both
    site, cluster = both
    chosen = cluster.partition(site.partition)
    if not cluster.keeps_accounts:
        return not_needed("this Slurm keeps no accounts")
    if isinstance(accounts := subject.accounts, RuntimeError):
        return warning(f"{accounts}", "ask again later")
    wanted = site.account or accounts.default
    if not accounts.names:
        return warning("Slurm knows none of yours", "ask for an account on the cluster")
    choices = ", ".join(accounts.names)
    if wanted is None:
        return missing("none is named, and you have no default", f"name an account: {choices}")
    if wanted not in accounts.names:
        return missing(f"{wanted} is not yours", f"choose from {choices}")
    if chosen and chosen.accounts and wanted not in chosen.accounts:
        allowed = ", ".join(chosen.accounts)
        return missing(f"{wanted} may not use {chosen.name}", f"it is open to {allowed}")
    is_fit = ok(f"{wanted}, QOS {site.qos or 'the default'}")
    return _qos(site, accounts.qos[wanted], chosen) or is_fit


def _qos(site: Site, usable: Sequence[str], chosen: Partition | None) -> Finding | None:
    if site.qos and site.qos not in usable:
        return missing(
            f"QOS {site.qos} is none of the account's", f"choose from {', '.join(usable) or 'none'}"
        )
    if site.qos and chosen and chosen.qos and site.qos not in chosen.qos:
        allowed = ", ".join(chosen.qos)
        return missing(f"QOS {site.qos} may not use {chosen.name}", f"it is open to {allowed}")
    return None


def accounting(subject: Subject) -> Finding:
    """Whether sacct can tell what jobs have used."""
    if isinstance(subject.slurm, RuntimeError):
        return not_needed("Slurm does not answer")
    without = "nothing to do: reports then say nothing of queues, memory and billing"
    if not subject.slurm.keeps_accounts:
        return warning("this Slurm keeps no accounting", without)
    try:
        slurm.ask("sacct", "--noheader", "--allocations", "--format=JobID")
    except RuntimeError as error:
        return warning(str(error), "ask again later; collect keeps what it has")
    return ok("sacct answers")


def array_size(subject: Subject) -> Finding:
    """How many elements a job array may have."""
    if isinstance(subject.slurm, RuntimeError):
        return not_needed("Slurm does not answer")
    size = subject.slurm.max_array_size
    if size is None:
        return warning("MaxArraySize is not said", "use allocation ladder or job in the campaign")
    if subject.site is not None and subject.site.max_array_size > size:
        return missing(
            f"max_array_size {subject.site.max_array_size} is over Slurm's {size}",
            f"max_array_size = {size} in the site file",
        )
    return ok(f"up to {size - 1} elements in one array")


def nodes(subject: Subject) -> Finding:
    """Whether a job gets two nodes, and what they say of themselves."""
    if not subject.asks_nodes:
        return not_needed("not asked for; --slurm starts a job on two nodes")
    if isinstance(subject.slurm, RuntimeError):
        return missing("no job can be started: Slurm does not answer", "use a login node")
    chosen = subject.slurm.partition(subject.site.partition if subject.site else None)
    wanted = min(NUM_NODES, chosen.num_usable_nodes) if chosen else NUM_NODES
    members = _members(subject.site, chosen)
    gone = [node for node in members if not node.is_here]
    num_nodes = min(wanted, len(members) - len(gone)) if gone else wanted
    if not num_nodes:
        return missing("no node of the partition can take a job", BACK, *_states(gone))
    command = srun(subject.site, num_nodes)
    try:
        printed = _patiently(command)
    except BusyError as error:
        return warning(str(error), "go on, or ask again when nodes are free", *_states(gone))
    except RuntimeError as error:
        do = f"try: {shlex.join(command[:-3])} hostname"
        return missing(str(error), do, *_states(gone))
    finding = _nodes_found(subject, _rows(printed), num_nodes)
    if finding.status != "ok" or num_nodes == wanted:
        return finding
    return warning(
        "one node answers, no other can take a job", BACK, *finding.details, *_states(gone)
    )


def _members(site: Site | None, chosen: Partition | None) -> list[Node]:
    """Return the nodes that a job could have; none where only Slurm can say."""
    if chosen is None or (site and site.reservation):  # which may be of nodes in maintenance
        return []
    return (_fitting(site, chosen) if site else []) or list(chosen.nodes)


def _states(gone: Sequence[Node]) -> list[str]:
    """Return a line for each state of nodes that take no jobs: a few of them, and the reason."""
    alike: dict[tuple[str, str], list[str]] = {}
    for node in gone:
        alike.setdefault((node.state, node.reason), []).append(node.name)
    lines = []
    for (state, text), names in list(alike.items())[:MAX_STATES]:
        reason = read_reason(text)
        why = f"; {words.given(reason)}" if reason else ""
        lines.append(f"{listed(names, MAX_NAMED)}: {state}{why}")
    return lines


def _rows(printed: str) -> list[list[str]]:
    """Return what each node says of itself: its names, then its interfaces."""
    marked = (line.partition(MARK)[2].split() for line in printed.splitlines())
    return sorted({row[0]: row for row in marked if len(row) > 1}.values())


def _nodes_found(subject: Subject, rows: list[list[str]], num_nodes: int) -> Finding:
    details = [f"{node}, host {host}: {', '.join(links)}" for node, host, *links in rows]
    if len(rows) < num_nodes:
        return missing(f"{len(rows)} of {num_nodes} nodes have answered", "try again", *details)
    for name in named_interfaces(subject):
        absent = [
            node
            for node, _, *links in rows
            if not (any(interface.startswith(name) for interface in links))
        ]
        if absent:
            return missing(
                f"{', '.join(absent)}: no interface {name}, which the site names",
                "name one that every node has",
                *details,
            )
    return ok(f"{num_nodes} node(s) answer, with their network interfaces", *details)


def srun(site: Site | None, num_nodes: int) -> list[str]:
    """Return the command that asks nodes for their names, by the site's own options."""
    options = [f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1"]
    if site is not None:
        keys = ("partition", "account", "qos", "reservation", "mem")
        wanted = {key: getattr(site, key) for key in keys} | {"constraint": site.features}
        if site.gpus_per_node:  # a partition of GPUs may refuse a job that asks for none
            wanted |= gpus_on_node(site, 1)
        options += [f"--{key}={value}" for key, value in wanted.items() if value]
        # Jobs may be meant to begin later, but a job that only looks must not wait.
        further = (*site.extra_directives, *site.directives)
        options += [more for more in further if not more.startswith("--begin=")]
    return ["srun", *options, "--time=00:01:00", "--job-name=doctor", "sh", "-c", NODE_SAYS]


def _end(started: "subprocess.Popen[str]") -> str:
    """Let srun cancel its job, which it leaves in the queue if it is killed; return how it went."""
    started.send_signal(signal.SIGTERM)
    try:
        started.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        started.kill()
        return "its job may wait on: squeue --me --name=doctor"
    return "its job is cancelled"


class BusyError(RuntimeError):
    """A job waits in the queue for nodes that others use."""


def _patiently(command: Sequence[str]) -> str:
    """Return what srun prints; a job that does not start in time is cancelled by it.

    Raises:
        BusyError: It waits in the queue.
        RuntimeError: It fails, or its nodes do not come.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as started:
        try:
            printed, complaint = started.communicate(timeout=QUEUED_S)
        except subprocess.TimeoutExpired:
            reason, begins = _waits_for()
            if reason and reason not in FOR_EVER:
                raise BusyError(
                    "the nodes are busy, so they were not looked at: a job of a minute still "
                    f"waits after {QUEUED_S} s ({reason}){begins}; {_end(started)}"
                ) from None
            try:
                printed, complaint = started.communicate(timeout=NODES_TIMEOUT_S - QUEUED_S)
            except subprocess.TimeoutExpired:
                late = f"no nodes within {NODES_TIMEOUT_S} s; {_end(started)}"
                raise RuntimeError(late) from None
    if started.returncode:
        raise RuntimeError(last_line(complaint) or f"srun ended with {started.returncode}")
    return printed


def _waits_for() -> tuple[str, str]:
    """Return Slurm's reason why our job waits, and when it expects it to start, in words."""
    states = ["--me", "--name=doctor", "--states=PENDING", "--noheader", "--format=%r|%S"]
    try:
        reason, _, start = last_line(slurm.ask("squeue", *states)).partition("|")
    except RuntimeError:
        return "", ""
    return reason, f", and is expected to start at {start}" if start not in ("", "N/A") else ""


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
