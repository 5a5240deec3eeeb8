"""Checks of images, Slurm and the site file, and the diagnosis from all checks."""

import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.before.doctor.machine_checks import (
    CHECKS,
    GB,
    Finding,
    NotNeededError,
    Subject,
    check,
    judge_versions,
    missing,
    named_interfaces,
    ok,
    probe,
    torch_in_words,
    warning,
)
from lockstep.core import processes
from lockstep.core.errors import EXIT_MACHINE
from lockstep.core.files import MIB
from lockstep.core.findings import exit_code
from lockstep.core.formats import clock, counted, last_line, listed, parse_limit
from lockstep.core.processes import hostname
from lockstep.image import apptainer as programs
from lockstep.image import inspection
from lockstep.image.inspection import read_record, sha256
from lockstep.slurm import associations
from lockstep.slurm import client as slurm
from lockstep.slurm.any_job.node_use import read_reason, reason_text
from lockstep.slurm.client import FailedError, NotInstalledError
from lockstep.slurm.cluster import Cluster, Node, Partition
from lockstep.slurm.site import Container, Site
from lockstep.slurm.status.accounting import size
from lockstep.slurm.status.standing import FOR_EVER
from lockstep.slurm.submit.job_spec import gpus_on_node
from lockstep.slurm.submit.script import GPU_FLAGS

COMMAND_TIMEOUT_S = 30
# The first version that mounts an image without setuid, by user namespaces and FUSE (Apptainer's
# release notes, 1.1); the jobs need nothing newer.
LEAST_APPTAINER = (1, 1)
FUSE = Path("/dev/fuse")
NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
# Settings of Debian and Ubuntu; 1 in the first and 0 in the second allow user namespaces.
CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")
APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
TRY = "unshare --user --map-root-user true"
# gpu_runtime -> platform that torch must be built for
RUNTIMES = {"cuda": "CUDA", "rocm": "ROCm"}
# A job of one minute fits into any gap of the queue, so after QUEUED_S the nodes are busy. Nodes
# that are powering up get NODES_TIMEOUT_S.
QUEUED_S, NODES_TIMEOUT_S = 20, 120
GRACE_S = 20
NUM_NODES = 2
# Most states of nodes out of service to show, and most nodes to name for each state.
MAX_STATES = MAX_NAMED = 8
BACK = "run lockstep slurm nodes to see why nodes take no jobs, or ask the cluster's support"
# A node prints its name in Slurm, its host name, then its network interfaces. The mark
# distinguishes this line from the output of a site's prologs.
MARK = "lockstep-node:"
NODE_SAYS = f'echo {MARK} "${{SLURMD_NODENAME:-$(hostname)}}" "$(hostname)" $(ls /sys/class/net)'


def _container(subject: Subject) -> Container:
    if subject.site is None:
        raise NotNeededError("no --site is given, so there is no image to check")
    if "container.image" in subject.site.to_fill_in:
        raise NotNeededError("container.image of the site file is not filled in yet")
    wanted = subject.site.container
    if wanted is None:
        raise NotNeededError("the site uses no image")
    if wanted.runtime in ("podman-hpc", "pyxis"):
        raise NotNeededError(
            f"lockstep doctor checks only images of Apptainer, but the site uses {wanted.runtime}"
        )
    return wanted


def _report_missing(subject: Subject, problem: str, action: str) -> Finding:
    """Return a "missing", or a warning on a login node, whose jobs run elsewhere."""
    is_job = "SLURM_JOB_ID" in subject.environ
    if subject.site is not None and isinstance(subject.slurm, Cluster) and not is_job:
        return warning(f"{problem} on this login node", action)
    return missing(problem, action)


@check("Image", "Apptainer")
def apptainer(subject: Subject) -> Finding:
    has_singularity = shutil.which("singularity") is not None
    reason, runtime = "", "apptainer"
    try:
        runtime = _container(subject).runtime
    except NotNeededError as error:
        reason = str(error)
    if runtime == "singularity":
        if has_singularity:
            return ok("singularity is installed; the next checks need Apptainer and are skipped")
        action = "load the Singularity module, or ask the cluster's support to install Singularity"
        return _report_missing(subject, "singularity is not on PATH", action)
    if shutil.which("apptainer"):
        version = programs.version()
        if programs.is_older(version, LEAST_APPTAINER):
            action = (
                "ask the cluster's administrators for Apptainer 1.1 or newer, which works without "
                "setuid"
            )
            return warning(f"Apptainer {version} is old", action)
        return ok(version)
    if reason:
        raise NotNeededError(f"apptainer is not on PATH, but is not needed: {reason}")
    if has_singularity:
        action = (
            'load the Apptainer module, or set runtime = "singularity" in the table [container] of '
            "the site file"
        )
        text = "only singularity is installed, but the jobs call apptainer"
        return _report_missing(subject, text, action)
    action = (
        "load the Apptainer module, or ask the cluster's support to install Apptainer; to measure "
        "without an image, set modules or venv in the site file"
    )
    return _report_missing(subject, "apptainer is not on PATH", action)


def _build_configuration() -> str:
    """Return the output of `apptainer buildcfg`, empty if it fails, or raise NotNeededError."""
    if shutil.which("apptainer") is None:
        raise NotNeededError("Apptainer is not installed on this machine")
    try:
        configuration = processes.output(["apptainer", "buildcfg"], COMMAND_TIMEOUT_S)
    except RuntimeError:
        return ""
    if "APPTAINER_SUID_INSTALL=1" in configuration:
        raise NotNeededError(
            "Apptainer is installed with setuid and needs neither user namespaces nor FUSE"
        )
    return configuration


@check("Image", "User namespaces")
def namespaces(subject: Subject) -> Finding:
    _build_configuration()
    for path, setting in ((NAMESPACES, "0"), (CLONE, "0"), (APPARMOR, "1")):
        if path.exists() and path.read_text(encoding="ascii").strip() == setting:
            text = (
                f"ordinary users of {hostname()} cannot create user namespaces, because {path} is "
                f"{setting}"
            )
            action = (
                f"ask the cluster's support to allow user namespaces in {path}, or to install "
                f"apptainer-suid; the command {TRY} shows whether user namespaces work"
            )
            return _report_missing(subject, text, action)
    try:
        processes.output(TRY.split(), COMMAND_TIMEOUT_S)
    except RuntimeError as error:
        text = (
            f"the kernel of {hostname()} does not let ordinary users create user namespaces: "
            f"{error}"
        )
        action = "ask the cluster's support to allow user namespaces, or to install apptainer-suid"
        return _report_missing(subject, text, action)
    return ok("ordinary users may create user namespaces")


@check("Image", "FUSE")
def fuse(subject: Subject) -> Finding:
    configuration = _build_configuration()
    if not FUSE.exists():
        action = "ask the cluster's support to run modprobe fuse"
        return _report_missing(subject, f"{FUSE} does not exist", action)
    mode = FUSE.stat().st_mode
    if mode & 0o006 != 0o006:
        text = f"ordinary users cannot use {FUSE}, because its mode is {stat.filemode(mode)}"
        action = f"ask the cluster's support to run chmod 666 {FUSE}"
        return _report_missing(subject, text, action)
    libexec = re.search(r"^LIBEXECDIR=(.+)$", configuration, re.MULTILINE)
    folder = f"{libexec[1]}/apptainer/bin" if libexec else "/usr/libexec/apptainer/bin"
    for name in ("squashfuse_ll", "squashfuse"):
        if helper := shutil.which(name, path=folder) or shutil.which(name):
            return ok(f"all users may use {FUSE}, and {helper} is installed")
    text = "neither squashfuse_ll nor squashfuse is installed"
    return _report_missing(subject, text, "ask the cluster's support to install squashfuse")


@check("Image", "Image file", is_long=True)
def image(subject: Subject) -> Finding:
    path = Path(_container(subject).image)
    action = (
        "build the image with lockstep image build, or correct container.image in the site file"
    )
    try:
        header, digest = inspection.read_header(path), sha256(path)
    except OSError as error:
        return missing(f"{path}: {error.strerror}", action)
    if header is None:
        return missing(f"{path} is not a SIF image", action)
    here = inspection.architecture_here()
    if header.architecture not in (None, here):
        text = (
            f"the image {path} is built for {header.architecture}, but this machine has the "
            f"architecture {here}"
        )
        action = (
            "build the image on a node of the site, or correct container.image in the site file"
        )
        return _report_missing(subject, text, action)
    num_gb, digest_start = f"{path.stat().st_size / GB:.1f}", digest[:12]
    image_facts = f"the image {path} has {num_gb} GB and the SHA-256 {digest_start}"
    try:
        record = read_record(path)
    except ValueError as error:
        action = f"copy the image again, together with its build record {path.name}.json"
        return warning(f"{image_facts}; {error}", action)
    if record is None:
        return ok(f"{image_facts}; there is no build record to compare the SHA-256 with")
    if record.sha256 != digest:
        recorded = record.sha256[:12]
        text = f"{image_facts}, but its build record has the SHA-256 {recorded}"
        return missing(text, "build the image again, or copy it here again")
    return ok(f"{image_facts}, and its build record has the same SHA-256")


@check("Image", "Image's Python", is_long=True)
def image_runs(subject: Subject) -> Finding:
    wanted = _container(subject)
    runtime = subject.site.gpu_runtime if subject.site and subject.wants_gpus else None
    if shutil.which("apptainer") is None or not Path(wanted.image).is_file():
        raise NotNeededError("Apptainer or the image file is missing, so the image was not started")
    options = ["--cleanenv", "--no-eval", *([GPU_FLAGS[runtime]] if runtime else [])]
    options += [*(f"--bind={bind}" for bind in wanted.binds), *wanted.args]
    command = ["apptainer", "exec", *options, "--env", "PYTHONNOUSERSITE=1", wanted.image]
    try:
        facts = probe([*command, "python3"], Path("/"))
    except RuntimeError as error:
        trial = f"apptainer exec {wanted.image} python3 -c 'import torch'"
        try:
            processes.output([*command, "true"], COMMAND_TIMEOUT_S)
        except RuntimeError:
            # On some machines root lacks capabilities.
            return _report_missing(
                subject, str(error), f"run this command as an ordinary user: {trial}"
            )
        return missing(
            f"the image starts, but its Python cannot measure: {error}",
            f"run this command to see the whole error: {trial}",
        )
    torch_facts = torch_in_words(facts)
    if runtime and not facts[runtime]:
        platform = RUNTIMES[runtime]
        return missing(
            f"the site's GPUs need a torch for {platform}, but the image has {torch_facts}",
            f"build the image from a base image whose torch is built for {platform}, or correct "
            "gpu_runtime in the site file",
        )
    if runtime and facts["nccl"] is None:
        action = "build the image from a base image whose torch has NCCL"
        return missing(f"the image's torch has no NCCL: {torch_facts}", action)
    return judge_versions(facts)


@check("Slurm", "Site file")
def site_file(subject: Subject) -> Finding:
    if subject.site is None:
        raise NotNeededError("no --site given")
    if keys := ", ".join(subject.site.to_fill_in):
        action = f"fill in {keys} in the site file; until then no job can be submitted"
        return missing(f"these keys of the site file are not filled in yet: {keys}", action)
    return ok("every key of the site file is filled in")


@check("Slurm", "Slurm", is_long=True)
def answers(subject: Subject) -> Finding:
    cluster = subject.slurm
    if isinstance(cluster, Cluster):
        names = ", ".join(partition.name for partition in cluster.partitions)
        return ok(f"{cluster.version or 'a'} on {cluster.name}, partitions {names}")
    if subject.site is None and isinstance(cluster, NotInstalledError):
        raise NotNeededError("Slurm is not installed on this machine, and no --site is given")
    if isinstance(cluster, FailedError) and cluster.to_do:
        return missing(cluster.says, cluster.to_do)
    action = "run lockstep doctor on a login node of the cluster, or try again later"
    return missing(str(cluster), action)


def _cluster(subject: Subject) -> Cluster:
    if isinstance(subject.slurm, RuntimeError):
        raise NotNeededError("Slurm does not answer")
    return subject.slurm


def _find_partition(subject: Subject) -> tuple[Site, Cluster, Partition | None]:
    """Return site, cluster and the site's partition; None if the cluster lacks the partition."""
    if subject.site is None:
        raise NotNeededError("no --site given")
    cluster = _cluster(subject)
    return subject.site, cluster, cluster.partition(subject.site.partition)


@check("Slurm", "Partition")
def partition(subject: Subject) -> Finding:
    site, cluster, chosen = _find_partition(subject)
    names = [partition.name for partition in cluster.partitions]
    if chosen is None:
        wanted = f"partition {site.partition}" if site.partition else "the default partition"
        partitions = ", ".join(names)
        action = f"set partition in the site file to one of {partitions}"
        return missing(f"{wanted} does not exist", action)
    if not chosen.is_up:
        action = (
            "set another partition in the site file, or ask the cluster's support when partition "
            f"{chosen.name} will be up"
        )
        return missing(f"partition {chosen.name} is not up", action)
    if absent := ", ".join(sorted(set(site.partitions) - set(names))):
        text = f"the site file describes partitions that do not exist: {absent}"
        action = f"remove the [partitions.NAME] tables of {absent} from the site file"
        return missing(text, action)
    fitting = [node for node in chosen.nodes if not _lacks(site, node)]
    if not fitting:
        lacks = sorted({reason for node in chosen.nodes for reason in _lacks(site, node)})
        reasons = "; ".join(lacks) or "the partition has no nodes"
        action = (
            "correct the site file; lockstep init --dry-run prints a site file that fits the nodes"
        )
        return missing(f"no node of partition {chosen.name} fits the site file: {reasons}", action)
    num_in_service = sum(node.is_here for node in fitting)
    num_fitting, num_nodes = len(fitting), len(chosen.nodes)
    nodes_that_fit = (
        f"{num_fitting} of {num_nodes} nodes of partition {chosen.name} fit the site file"
    )
    if not num_in_service:
        action = f"ask the cluster's support when partition {chosen.name} will be in service"
        return warning(f"{nodes_that_fit}, but none of these nodes is in service", action)
    kinds = {node.kind.shape for node in fitting}
    if len(kinds) > 1 and not site.gpu_types:
        action = "set constraint or gpu_type in the site file, so that a job's nodes are all equal"
        num_kinds = len(kinds)
        return warning(
            f"{nodes_that_fit}, but these nodes have {num_kinds} kinds of hardware", action
        )
    return ok(f"{nodes_that_fit}, and {num_in_service} of these nodes are in service")


def _lacks(site: Site, node: Node) -> list[str]:
    """Return a phrase for each key of the site file that a node does not fulfil."""
    kind = node.kind
    mem = site.mem or "0"  # in MiB without a unit
    mem_mib = (size(f"{mem}M" if mem.isdecimal() else mem) or 0) // MIB
    lacks = [
        f"{key} is {requested} in the site file, but the nodes have {available}"
        for key, requested, available in (
            ("gpus_per_node", site.gpus_per_node, kind.num_gpus),
            ("cpus_per_node", site.cpus_per_node, kind.num_cpus),
            ("mem in MiB", mem_mib, kind.memory_mib),
        )
        if requested > available
    ]
    if site.gpu_type and site.gpu_type != kind.gpu_type:
        gpu_types = kind.gpu_type or ("GPUs without a type" if kind.num_gpus else "no GPUs")
        lacks.append(
            f"gpu_type is {site.gpu_type} in the site file, but the nodes have {gpu_types}"
        )
    # Expressions such as a&b or [a|b] are left to Slurm.
    if site.constraint and site.constraint.isidentifier() and site.constraint not in node.features:
        lacks.append(
            f"the nodes lack the feature {site.constraint}, which constraint in the site file "
            "requires"
        )
    return lacks


@check("Slurm", "Time limit")
def time_limit(subject: Subject) -> Finding:
    site, _, chosen = _find_partition(subject)
    if chosen is None or chosen.max_time is None:
        return ok(f"time in the site file is {site.time}; the partition has no time limit")
    if parse_limit(site.time) > parse_limit(chosen.max_time):
        action = f'set time in the site file to "{chosen.max_time}" or less'
        text = f"partition {chosen.name} allows {chosen.max_time}, but time is {site.time}"
        return missing(text, action)
    text = f"time in the site file is {site.time}; the partition allows up to {chosen.max_time}"
    return ok(text)


@check("Slurm", "Account")
def account(subject: Subject) -> Finding:
    site, cluster, chosen = _find_partition(subject)
    if not cluster.keeps_accounts:
        raise NotNeededError("Slurm has no accounts on this cluster")
    accounts = subject.accounts
    wanted = site.account or accounts.default
    if not accounts.names:
        return warning("you have no account in Slurm", "ask the cluster's support for an account")
    choices = ", ".join(accounts.names)
    if wanted is None:
        text = "the site file names no account, and you have no default account"
        return missing(text, f"set account in the site file to one of {choices}")
    if wanted not in accounts.names:
        action = f"set account in the site file to one of {choices}"
        return missing(f"{wanted} is not one of your Slurm accounts", action)
    usable = accounts.qos[wanted]
    if site.qos and site.qos not in usable:
        allowed = ", ".join(usable)
        action = f"set qos in the site file to one of {allowed}"
        action = action if usable else "remove qos from the site file"
        return missing(f"account {wanted} may not use QOS {site.qos}", action)
    if chosen and chosen.accounts and wanted not in chosen.accounts:
        allowed = listed(chosen.accounts)
        action = f"set account in the site file to one of {allowed}"
        return missing(f"account {wanted} may not use partition {chosen.name}", action)
    if chosen and chosen.qos and site.qos and site.qos not in chosen.qos:
        allowed = listed(chosen.qos)
        action = f"set qos in the site file to one of {allowed}"
        return missing(f"QOS {site.qos} may not use partition {chosen.name}", action)
    qos = f"QOS {site.qos}" if site.qos else "the default QOS"
    return ok(f"jobs use account {wanted} and {qos}")


@check("Slurm", "Job limits")
def job_limits(subject: Subject) -> Finding:
    site, cluster, chosen = _find_partition(subject)
    if not cluster.enforces_limits:
        raise NotNeededError("this Slurm does not enforce limits of accounts and QOS")
    limits = associations.limits(cluster, subject.accounts, chosen, site.account, site.qos)
    for limit in limits:
        if limit.name == "MaxWall" and parse_limit(site.time) > limit.value:
            outcome = (
                "sbatch would refuse the jobs" if limit.denies else "the jobs would wait for ever"
            )
            most = clock(limit.value)
            action = f'set time in the site file to "{most}" or less, or choose another qos'
            shown_limit = limit.text
            text = (
                f"time in the site file is {site.time}, but the limit is {shown_limit}, so "
                f"{outcome}"
            )
            return missing(text, action)
    texts = [limit.text for limit in limits]
    return ok(texts[0], *texts[1:]) if texts else ok("your account and QOS set no limits")


@check("Slurm", "Accounting", is_long=True)
def accounting(subject: Subject) -> Finding:
    if not _cluster(subject).keeps_accounts:
        action = "continue without accounting; reports will lack queue times, memory and billing"
        return warning("Slurm has no accounting on this cluster", action)
    try:
        slurm.ask("sacct", "--noheader", "--allocations", "--format=JobID")
    except RuntimeError as error:
        action = (
            "try again later; until then, reports show only accounting data that were saved earlier"
        )
        return warning(str(error), action)
    return ok("sacct answers")


@check("Slurm", "Nodes", is_long=True)
def nodes(subject: Subject) -> Finding:
    site = subject.site
    if not subject.asks_nodes:
        raise NotNeededError("no node was checked; give --slurm to check two nodes by a short job")
    if isinstance(subject.slurm, RuntimeError):
        text = "Slurm does not answer, so no job can start"
        return missing(text, "run lockstep doctor on a login node of the cluster")
    chosen = subject.slurm.partition(site.partition if site else None)
    members: list[Node] = []
    # With a reservation only Slurm knows the nodes, which may even be in maintenance.
    if chosen and not (site and site.reservation):
        fitting = [node for node in chosen.nodes if site and not _lacks(site, node)]
        members = fitting or list(chosen.nodes)
    gone = [node for node in members if not node.is_here]
    wanted = min(NUM_NODES, chosen.num_usable_nodes) if chosen else NUM_NODES
    num_nodes = min(wanted, len(members) - len(gone)) if gone else wanted
    if not num_nodes:
        return missing("no node of the partition can take a job", BACK, *_states(gone))
    command = srun(site, num_nodes)
    try:
        printed = _ask(command)
    except BusyError as error:
        action = "continue without a check of the nodes, or try again when nodes are free"
        return warning(str(error), action, *_states(gone))
    except RuntimeError as error:
        action = f"try: {shlex.join(command[:-3])} hostname"
        return missing(str(error), action, *_states(gone))
    rows = parse_nodes(printed)
    details = [f"{node}, host {host}: {', '.join(links)}" for node, host, *links in rows]
    if len(rows) < num_nodes:
        num_answers = len(rows)
        return missing(f"only {num_answers} of {num_nodes} nodes answered", "try again", *details)
    for name in named_interfaces(subject):
        lacking = [row[0] for row in rows if not any(link.startswith(name) for link in row[2:])]
        if lacking:
            names = ", ".join(lacking)
            text = f"the network interface {name}, which the site file names, is missing on {names}"
            action = "set interface in the site file to a network interface that every node has"
            return missing(text, action, *details)
    if num_nodes < wanted:
        text = "only one node answered, because no other node can take a job"
        return warning(text, BACK, *details, *_states(gone))
    return ok(
        f"{num_nodes} node(s) answered and have the network interfaces that the site file names",
        *details,
    )


def _states(gone: Sequence[Node]) -> list[str]:
    """Return a line for each state of nodes that take no jobs: some nodes, and the reason."""
    alike: dict[tuple[str, str], list[str]] = {}
    for node in gone:
        alike.setdefault((node.state, node.reason), []).append(node.name)
    lines = []
    for (state, text), names in list(alike.items())[:MAX_STATES]:
        reason = read_reason(text)
        why = f"; {reason_text(reason)}" if reason else ""
        lines.append(f"{listed(names, MAX_NAMED)}: {state}{why}")
    return lines


def parse_nodes(printed: str) -> list[list[str]]:
    """Return a row for each node: its name in Slurm, its host name, then its interfaces."""
    marked = (line.partition(MARK)[2].split() for line in printed.splitlines())
    return sorted({row[0]: row for row in marked if len(row) > 1}.values())


def srun(site: Site | None, num_nodes: int) -> list[str]:
    """Return an srun command, with the site's options, that prints nodes' names and interfaces."""
    options = [f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1"]
    if site is not None:
        keys = ("partition", "account", "qos", "reservation", "mem")
        wanted = {key: getattr(site, key) for key in keys} | {"constraint": site.features}
        if site.gpus_per_node:  # a partition with GPUs may refuse a job without GPUs
            wanted |= gpus_on_node(site, 1)
        options += [f"--{key}={value}" for key, value in wanted.items() if value]
        # The site's jobs may begin later, but this job must start now.
        further = (*site.extra_directives, *site.directives)
        options += [more for more in further if not more.startswith("--begin=")]
    return ["srun", *options, "--time=00:01:00", "--job-name=doctor", "sh", "-c", NODE_SAYS]


class BusyError(RuntimeError):
    """A job waits in the queue for nodes that others use."""


def _ask(command: Sequence[str]) -> str:
    """Run srun and return its output; cancel a job that does not start in time."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as started:
        try:
            printed, complaint = started.communicate(timeout=QUEUED_S)
        except subprocess.TimeoutExpired:
            states = ["--me", "--name=doctor", "--states=PENDING", "--noheader"]
            answer = ""
            with suppress(RuntimeError):
                answer = last_line(slurm.ask("squeue", *states, "--format=%r|%S"))
            reason, _, start = answer.partition("|")
            if reason and reason not in FOR_EVER:
                expected = f", and Slurm expects to start it at {start}" if start != "N/A" else ""
                cancelled = _cancel(started)
                raise BusyError(
                    "the nodes were not checked, because the test job was still pending after "
                    f"{QUEUED_S} s ({reason}){expected}; {cancelled}"
                ) from None
            try:
                printed, complaint = started.communicate(timeout=NODES_TIMEOUT_S - QUEUED_S)
            except subprocess.TimeoutExpired:
                cancelled = _cancel(started)
                late = f"no nodes were free within {NODES_TIMEOUT_S} s; {cancelled}"
                raise RuntimeError(late) from None
    if started.returncode:
        text = f"srun failed with exit code {started.returncode}"
        raise RuntimeError(last_line(complaint) or text)
    return printed


def _cancel(started: "subprocess.Popen[str]") -> str:
    """Let srun cancel its job, and return a phrase about that; a killed srun leaves it queued."""
    started.send_signal(signal.SIGTERM)
    try:
        started.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        started.kill()
        return "the test job may still be queued; check with squeue --me --name=doctor"
    return "the test job was cancelled"


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all checks.

    Attributes:
        runs_here: Whether `lockstep run` can measure on this machine and write the results.
        submits: Whether a site is given, its jobs lack nothing, and results can be written.
    """

    findings: tuple[Finding, ...]
    runs_here: bool
    submits: bool

    @property
    def exit_code(self) -> int:
        """3 if nothing can be measured, 1 if a check found something missing, else 0."""
        return exit_code(self.findings) if self.runs_here or self.submits else EXIT_MACHINE

    @property
    def verdict(self) -> str:
        if not (self.runs_here or self.submits):
            return "Nothing can be measured here, but lockstep plan and lockstep report still work."
        if not self.runs_here:
            return (
                "The site's jobs can be submitted, but lockstep run cannot measure on this machine."
            )
        text = "lockstep run can measure on this machine."
        if self.submits:
            text = "lockstep run can measure on this machine, and the site's jobs can be submitted."
        if num_missing := sum(finding.level == "missing" for finding in self.findings):
            checks = counted(num_missing, "check")
            text += f" {checks} above found something missing."
        return text

    def facts(self) -> dict[str, Any]:
        return {
            "checks": [finding.record() for finding in self.findings], "runs_here": self.runs_here,
            "submits": self.submits, "exit_code": self.exit_code,
        }  # fmt: skip


def examine(subject: Subject, say: Callable[[str, bool], None] = lambda *_: None) -> Diagnosis:
    """Make every check; before each, call `say` with its name, and whether it may take long."""
    findings = []
    for name, (look, is_long) in CHECKS.items():
        say(name, is_long)
        findings.append(look(subject))
    levels = {finding.kind: finding.level for finding in findings}
    job_levels = [finding.level for finding in findings if finding.group in ("Image", "Slurm")]
    is_kept = levels["Results"] != "missing"
    has_slurm = subject.site is not None and levels["Slurm"] == "ok"
    return Diagnosis(tuple(findings), runs_here=is_kept and levels["lockstep run"] == "ok",
                     submits=is_kept and has_slurm and "missing" not in job_levels)  # fmt: skip
