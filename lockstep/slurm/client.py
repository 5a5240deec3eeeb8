"""The one client of Slurm: runs its commands, reads their answers and explains refusals.

A state that Slurm does not give is `None` or `unknown`, never a good state. Every function that
runs a command of Slurm raises RuntimeError if the command is missing, fails or takes too long.
"""

import os
import pwd
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

from lockstep.core import files, processes
from lockstep.core.formats import listed, one_line, parse_duration

SITE = "the site file"
CAMPAIGN = "the campaign file"
EITHER = f"{SITE} or {CAMPAIGN}"
CHARGED = ("account", "qos")
_CHARGED = re.compile(rf"^#SBATCH --({'|'.join(CHARGED)})=(.*)$", re.MULTILINE)
# Beginning of sbatch's own lines; banners and notes of plugins do not match.
_OWN_LINE = re.compile(r"sbatch: (error: |fatal: |unrecognized |invalid |option )", re.IGNORECASE)
# The answer is lost, but the controller may have accepted the job.
_LOST_ANSWER = re.compile(
    "socket timed out|unable to contact|connection|transport|zero bytes", re.IGNORECASE
)


class Refusal(NamedTuple):
    """One kind of refusal by sbatch."""

    message: str  # regular expression over sbatch's messages in lower case
    key: str  # the key, or keys, to change
    where: str = SITE  # the file that holds them
    ask: tuple[str, ...] = ()  # command that lists the allowed values; empty if there is none
    noun: str = ""  # name of the listed values
    pattern: str = ".+"  # regular expression of one listed value


def _sinfo(columns: str) -> tuple[str, ...]:
    return ("sinfo", "--noheader", f"--format={columns}")


def _associations(column: str) -> tuple[str, ...]:
    show = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "where")
    return (*show, "user={user}", f"format={column}")


# %R partition, %l time limit, %D nodes, %s job sizes, %f features, %G gres, %c CPUs, %m MiB, as
# the page of sinfo(1) lists them.
# Messages of slurm_errno.c and of sbatch's option parser, Slurm 22.05 to 24.05. The first match
# counts, so narrower patterns come first.
REFUSALS = (
    Refusal("invalid account", "account", SITE, _associations("Account"), "your accounts"),
    Refusal("invalid qos", "qos", SITE, _associations("QOS"), "your QOS", pattern=r"[^,\n]+"),
    Refusal("invalid partition|requested partition configuration|user's group not permitted",
            "partition", SITE, _sinfo("%R"), "partitions"),
    Refusal("job violates accounting/qos policy", "qos, account, time or jobs.share_job (true "
                                                  "makes fewer jobs)", EITHER),
    Refusal("license", "extra_directives (--licenses)"),
    Refusal("invalid feature", "constraint", SITE, _sinfo("%f"), "features",
            pattern=r"[^,\n]+"),
    Refusal("reservation", "reservation", SITE,
            ("scontrol", "show", "reservation", "--oneliner"), "reservations",
            pattern=r"ReservationName=(\S+)"),
    Refusal("time limit|invalid --time", "time", EITHER, _sinfo("%R %l"), "limits"),
    Refusal("memory specification|invalid --mem", "mem", SITE, _sinfo("%m"), "MiB of the nodes"),
    Refusal("generic resource|trackable resource|invalid gres", "gpu_type or gpus_per_node", SITE,
            _sinfo("%G"), "gres of the nodes"),
    Refusal("node configuration", "gpus_per_node, gpu_type, cpus_per_node or mem", SITE,
            _sinfo("%R: %c CPUs, %m MiB, %G"), "the nodes have"),
    # Printed for too many CPUs of a node, and for more nodes than the cluster has CPUs for.
    Refusal("more processors", "cpus_per_node", f"{SITE}, or world_sizes in {CAMPAIGN}",
            _sinfo("%R has %D nodes of %c CPUs"), "partitions"),
    Refusal("cpu count", "cpus_per_node", SITE, _sinfo("%c"), "CPUs of the nodes"),
    Refusal("node count", "world_sizes", CAMPAIGN, _sinfo("%R has %D nodes, jobs of %s"),
            "partitions"),
    Refusal("job array", "max_array_size", SITE,
            ("scontrol", "show", "config"), "MaxArraySize", pattern=r"MaxArraySize\s*=(.*)"),
    Refusal("invalid node name", "extra_directives", SITE, _sinfo("%N"), "nodes"),
    Refusal("unrecognized option|invalid option", "extra_directives"),
    Refusal("dos line breaks", "shell_before, shell_after or template (save it with Unix line "
            "ends)"),
    Refusal("does not look like a batch script", "template (it must begin with #!/bin/bash)"),
    Refusal("parameter too long", "world_sizes or repeats (a script may have 4 MB)", CAMPAIGN),
)  # fmt: skip


def explain_refusal(stderr: str, user: str, ask: Callable[..., str], script: Path) -> str | None:
    """Return sbatch's message with the key to change and what is allowed; None for other failures.

    Only sbatch's own error lines count; the last of them says how the submission ended. `ask` runs
    one of Slurm's commands, which list the accounts and QOS of `user`.
    """
    errors = [line for line in stderr.splitlines() if _OWN_LINE.match(line)]
    low = " ".join(errors).lower()
    refusal = next((refusal for refusal in REFUSALS if re.search(refusal.message, low)), None)
    if refusal is None or _LOST_ANSWER.search(errors[-1]):
        return None
    facts = []
    if any(name in refusal.key for name in CHARGED) and script.is_file():
        charged = dict(_CHARGED.findall(files.text(script)))
        texts = [f"{name} {charged[name]}" if name in charged else f"no {name}" for name in CHARGED]
        facts.append(f"submitted with {', '.join(texts)}")
    if refusal.ask:
        with suppress(RuntimeError):
            answer = ask(*(word.format(user=user) for word in refusal.ask))
            items = [item.strip() for item in re.findall(refusal.pattern, answer)]
            items = [item for item in dict.fromkeys(items) if item not in ("", "(null)", "N/A")]
            facts.append(f"{refusal.noun}: {listed(items) or 'none'}")
    with suppress(RuntimeError):
        if name := re.search(r"^ClusterName\s*= *(\S+)", ask("scontrol", "show", "config"), re.M):
            facts.append(f"asked cluster {name[1]}")
    shown = f" ({'; '.join(facts)})" if facts else ""
    return (
        f"sbatch refused the job: {one_line(stderr)}; change {refusal.key} in "
        f"{refusal.where}{shown}"
    )


Kind = Literal[
    "no_cluster", "no_config", "no_controller", "late", "no_database", "not_trusted", "other"
]
# Set by `lockstep --verbose`: Slurm's own message follows ours.
VERBOSE = "LOCKSTEP_VERBOSE"
# sacct's message where slurm.conf has no AccountingStorageType.
NO_ACCOUNTING = "accounting storage is disabled"
# kind -> (pattern of the printed message in lower case, meaning for `{command}`, what to do).
# Messages of slurm_errno.c and fetch_config.c, Slurm 22.05 to 24.05. The first match counts.
FAILURES: dict[Kind, tuple[str, str, str]] = {
    "no_cluster": (
        "no cluster '.*' known|invalid entry for (--cluster|slurm_clusters)",
        "{command} asks for a cluster that Slurm on this machine does not know",
        (
            "use a login node of that cluster, or correct `cluster` in the site file or the "
            "variable SLURM_CLUSTERS"
        ),
    ),
    "no_config": (
        "establish a configuration source|resolve_ctls|fetch_config"
        "|unable to process configuration file",
        "{command} finds neither a valid slurm.conf nor a Slurm controller in DNS",
        "use a login node of the cluster, or set SLURM_CONF to the path of its slurm.conf",
    ),
    "no_database": (
        "slurmdbd|persistent connection|problem talking to the database",
        "{command} cannot reach Slurm's accounting daemon (slurmdbd)",
        "try again later",
    ),
    "not_trusted": (
        "munge|protocol authentication error",
        "Slurm rejects {command}, because munge does not run on this machine or has another key",
        "use a login node, or ask the cluster's support",
    ),
    "late": (
        "socket timed out",
        "Slurm's controller did not answer {command} in time",
        "try again later",
    ),
    "no_controller": (
        "unable to contact slurm controller|zero bytes were transmitted",
        "{command} cannot reach Slurm's controller (slurmctld)",
        "try again later, or check the controller with scontrol ping",
    ),
}


class FailedError(RuntimeError):
    """A command of Slurm ended with an error."""

    def __init__(self, command: str, stderr: str, code: int) -> None:
        low, self.stderr = stderr.lower(), stderr
        fits = (kind for kind, (signs, _, _) in FAILURES.items() if re.search(signs, low))
        self.kind: Kind = next(fits, "other")
        printed = one_line(stderr) or "no message"
        text = f"{command} failed with exit code {code}: {printed}"
        _, says, self.to_do = FAILURES.get(self.kind, ("", "", ""))
        self.says = says.format(command=command) or text
        ours = "; ".join(filter(None, [self.says, self.to_do]))
        super().__init__(f"{ours}; {text}" if self.to_do and os.environ.get(VERBOSE) else ours)


class NoAccountingError(FailedError):
    """This cluster has no accounting; retrying does not help."""


class NotInstalledError(RuntimeError):
    """A command of Slurm is not installed on this machine; retrying does not help."""

    def __init__(self, command: str) -> None:
        super().__init__(f"{command} is not installed here; use a login node of the cluster")


TIMEOUT_S = 60
# scontrol and sinfo ask only the controller; with a broken slurm.conf they try for a minute.
TIMEOUTS_S = {"scontrol": 30, "sinfo": 30}
MAX_ELEMENTS = 100_000
# column -> how --format of squeue(1) asks for it
COLUMNS = {
    "job_id": "%i", "raw_id": "%A", "state": "%T", "reason": "%r", "user": "%u",
    "partition": "%P", "num_nodes": "%D", "elapsed": "%M", "limit": "%l", "submitted": "%V",
    "starts": "%S", "waits_for": "%E", "priority": "%Q", "nodes": "%N", "name": "%j",
    "comment": "%k", "command": "%o",
}  # fmt: skip
# Columns that are copied as text.
PLAIN = ("job_id", "name", "user", "raw_id", "comment", "command", "partition", "nodes")
_DEPENDENCY = re.compile(r"(after\w*|singleton)(?::([0-9]+(?:_[0-9*]+)?))?", re.ASCII)
QUEUE_COLUMNS = ("job_id", "raw_id", "state", "reason", "submitted", "user", "comment", "command")
CLUSTER = re.compile(r"[\w.-]+")  # name of a cluster
MAX_DIGITS = 18  # of a number in Slurm's text; a longer one is not read
# Slurm prints times in seconds, and the whole list of an array's elements (by default 64 bytes).
ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
# Prefixes of variables that belong to another job or change the answers' format.
FOREIGN = ("SBATCH_", "SLURM_", "SQUEUE_", "SACCT_", "SACCTMGR_", "SINFO_", "SCONTROL_", "SCANCEL_")
# Variables that every command needs to find Slurm and to authenticate.
KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
# state -> what it means, as a clause with a subject
MEANINGS = {
    "PENDING": "the job waits",
    "CONFIGURING": "Slurm prepares the job's nodes",
    "POWER_UP_NODE": "the job's nodes are powering up",
    "RUNNING": "the job runs",
    "STALLED": "the job runs, but has written nothing for longer than a case may take",
    "SUSPENDED": "the job is suspended until Slurm resumes it",
    "STOPPED": "the job is stopped and keeps its nodes until it gets SIGCONT",
    "SIGNALING": "Slurm sends the job a signal",
    "RESIZING": "the job changes its number of nodes",
    "COMPLETING": "the job is ending",
    "EXPEDITING": "the job waits with priority to run again, because its nodes were lost",
    "REQUEUED": "the job was requeued and waits",
    "REQUEUE_FED": "the job was requeued in its federation of clusters and waits",
    "REQUEUE_HOLD": "the job was requeued and is held; release it with scontrol release {id}",
    "RESV_DEL_HOLD": "the job is held, because its reservation was deleted; choose another "
    "reservation",
    "SPECIAL_EXIT": "the job was requeued and is held, because of its script's exit code; release "
    "it with scontrol release {id}",
    "STAGE_OUT": "the job has ended, and Slurm copies its files",
    "UPDATE_DB": "the job has ended, and Slurm updates its accounting",
    "LAUNCH_FAILED": "the job could not start on its nodes",
    "RECONFIG_FAIL": "Slurm could not configure the job's nodes",
    "COMPLETED": "the job's script or program succeeded",
    "FAILED": "the job's script or program failed",
    "TIMEOUT": "the job reached its time limit",
    "DEADLINE": "the job reached its deadline",
    "OUT_OF_MEMORY": "the job needed more memory than it requested",
    "NODE_FAIL": "a node of the job failed",
    "BOOT_FAIL": "a node of the job could not boot",
    "PREEMPTED": "Slurm gave the job's nodes to another job",
    "CANCELLED": "the job was cancelled",
    "REVOKED": "another cluster of the federation took over the job",
    "LOST": "squeue and sacct do not know the job, and the job left no record of its end",
    "unknown": "Slurm did not answer; try again later",
}
NEVER_SATISFIED = "DependencyNeverSatisfied"
# Reasons of pending jobs for which Slurm may have planned a start.
IN_LINE = ("None", "Priority", "Resources")
# reason of a pending job -> plain words after "the job waits: ", and what to change
REASONS = {
    "None": "Slurm has not considered the job yet",
    "Priority": "jobs with a higher priority come first",
    "Resources": "not enough nodes are free yet",
    NEVER_SATISFIED: "the job can never start, because a job that it depends on failed; cancel "
    "the job",
    "Dependency": "the job depends on another job",
    "BeginTime": "the job's begin time has not come yet",
    "JobArrayTaskLimit": "the job's array already runs as many elements as it may",
    "PartitionDown": "the job's partition is down; try another partition",
    "PartitionInactive": "the job's partition is down; try another partition",
    "PartitionNodeLimit": "the job can never start, because it requests more nodes than its "
    "partition gives one job; request fewer nodes or change the partition",
    "PartitionTimeLimit": "the job can never start, because its time exceeds the limit of the "
    "partition; lower its time",
    "ReqNodeNotAvail": "the job's nodes are down, drained or reserved; run lockstep slurm nodes "
    "to see why. Before a maintenance, a shorter job may still start",
    "Nodes_required_for_job_are_DOWN": "the job's nodes are down, drained or kept for jobs with a "
    "higher priority; run lockstep slurm nodes to see why",
    "NodeDown": "the job's nodes are down",
    "BadConstraints": "the job can never start, because no node fits; change its constraint, GPU "
    "type or memory",
    "Licenses": "the job waits for a license",
    "Reservation": "the job's reservation has not begun",
    "ReservationDeleted": "the job can never start, because its reservation was deleted; choose "
    "another reservation",
    "InvalidAccount": "the job can never start, because its account is not valid; "
    "change the account",
    "InvalidQOS": "the job can never start, because its QOS is not valid; change the QOS",
    "JobHeldUser": "the job's owner holds it; release it with scontrol release {id}",
    "JobHeldAdmin": "an administrator holds the job; ask the cluster's support",
    "launch_failed_requeued_held": "the job could not start on its nodes and is held; look at "
    "scontrol show job {id}, then release it with scontrol release {id}",
    "QOSNotAllowed": "the job can never start, because its account or partition does not allow its "
    "QOS; change the QOS",
    "QOSMaxJobsPerUserLimit": "your running jobs are at the limit of the QOS",
    "QOSMaxSubmitJobPerUserLimit": "your queued jobs are at the limit of the QOS",
    "QOSMaxWallDurationPerJobLimit": "the job can never start, because its time exceeds the limit "
    "of the QOS; lower its time or change the QOS",
    "AssocGrpGRES": "the account's running jobs use all GPUs that the account may use",
    "AssocMaxWallDurationPerJobLimit": "the job can never start, because its time exceeds the "
    "limit of the account; lower its time",
    "MaxMemPerLimit": "the job can never start, because it requests more memory than allowed; "
    "lower its memory",
}
# beginning of any other reason that is a limit -> plain words; longer beginnings come first
LIMITS = {
    "QOSGrp": "the jobs of all users are at the limit of the QOS; try another QOS",
    "QOSMin": "the job requests less than the minimum of its QOS; request more or change the QOS",
    "QOS": "a limit of the QOS is reached; try fewer ranks, a shorter time or another QOS",
    "AssocGrp": "the account is at its limit, or its budget is spent; check with sshare, "
    "or change the account",
    "Assoc": "a limit of the account is reached; try fewer ranks, a shorter time or another "
    "account",
}


@dataclass(frozen=True)
class State:
    """The state of a job."""

    name: str  # Slurm's, or `LOST` or `unknown`
    # Slurm's word for why a pending job waits, or waited until it was cancelled; for `LOST` and
    # `unknown` a phrase of ours.
    reason: str | None = None
    by: str | None = None  # user who cancelled the job; None for Slurm, or if unknown

    @property
    def has_ended(self) -> bool:
        return self.name in ENDED

    @property
    def meaning(self) -> str:
        """What the state means, as a clause with a subject; `{id}` stands for the job's id."""
        if self.name in ("LOST", "unknown") and self.reason:
            return self.reason
        meaning = MEANINGS.get(self.name, f"the job's state in Slurm is {self.name}")
        if self.name == "CANCELLED" and self.by:
            return f"{meaning} by {self.by}"
        if self.name == "CANCELLED" and self.reason == NEVER_SATISFIED:
            return (
                f"{meaning} by Slurm, because a job that it depends on did not end as required "
                f"({self.reason})"
            )
        if self.name != "PENDING" or not self.reason:
            return meaning
        word = self.reason.strip("()").partition(",")[0].replace(" ", "_")
        of_limits = (text for start, text in LIMITS.items() if word.startswith(start))
        plain = REASONS.get(word) or next(of_limits, None)
        if plain is not None and word not in IN_LINE:
            plain = f"{plain} ({self.reason.strip('()')})"
        return f"{meaning}: {plain or self.reason}"


UNKNOWN = State("unknown")


def ask(*command: str, environ: Mapping[str, str] | None = None) -> str:
    """Run a command of Slurm and return its output, by default in the formats of `ENVIRONMENT`."""
    require(command[0])
    environ = environment() | ENVIRONMENT if environ is None else environ
    if command[0] == "sacct":  # the only command that does not read SLURM_CLUSTERS
        command = (command[0], *cluster_options(), *command[1:])
    conf = environ.get("SLURM_CONF")
    # Slurm's commands would wait a minute for it. Path.exists raises for a folder that is closed.
    if conf and not os.path.exists(conf):  # noqa: PTH110
        raise RuntimeError(
            f"{command[0]} cannot run, because SLURM_CONF is {conf}, which does not exist or "
            "cannot be reached; unset SLURM_CONF, or set it to the path of the cluster's "
            "slurm.conf"
        )
    ended = processes.run(command, TIMEOUTS_S.get(command[0], TIMEOUT_S), environ=environ)
    if ended.code:
        failure = NoAccountingError if NO_ACCOUNTING in ended.errors else FailedError
        raise failure(command[0], ended.errors, ended.code)
    return ended.output


def environment() -> dict[str, str]:
    """Return the environment without variables of a surrounding job or of output formats."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(FOREIGN)
    }


def set_cluster(name: str | None) -> None:
    """Set the cluster for all commands of Slurm; None keeps the user's SLURM_CLUSTERS."""
    if name is not None:
        os.environ["SLURM_CLUSTERS"] = name


def cluster_options() -> list[str]:
    name = os.environ.get("SLURM_CLUSTERS")
    return [f"--clusters={name}"] if name else []


def require(command: str) -> None:
    if shutil.which(command) is None:
        raise NotInstalledError(command)


class Taken(NamedTuple):
    """A job that sbatch has submitted."""

    id: str  # for an array, the id that its elements share
    cluster: str | None = None


def sbatch(script: Path, comment: str, *options: str) -> Taken:
    """Submit a script and return the job; if sbatch's answer is lost, find it by its comment.

    Raises:
        ValueError: sbatch refuses the job because of the site or campaign file.
        RuntimeError: Slurm does not answer, and the job is not in the queue.
    """
    command = ("sbatch", "--parsable", f"--comment={comment}", *options, str(script))
    try:
        answer = ask(*command, environ=environment())
        # `ID` or `ID;CLUSTER`, after lines of a site's wrapper.
        ids = re.findall(r"^([0-9]+)(?:;(.*))?$", answer, re.MULTILINE)
        if not ids:
            printed = answer.strip()[:80]
            raise RuntimeError(
                f"sbatch printed {printed!r} instead of a job id; check with squeue "
                "--me whether the job is queued, and ask the cluster's support about sbatch "
                "--parsable"
            )
        job_id, cluster = ids[-1]
        return Taken(job_id, cluster if CLUSTER.fullmatch(cluster) else None)
    except RuntimeError as error:
        stderr = error.stderr if isinstance(error, FailedError) else ""
        if explained := explain_refusal(stderr, own_name(), ask, script):
            raise ValueError(explained) from None
        # The answer may be lost although Slurm accepted the job. A refused job is in squeue, too.
        refused = State("FAILED", "BadConstraints")
        with suppress(RuntimeError):
            for job in queue([own_name()]).values():
                if job.comment == comment and job.state != refused:
                    return Taken(job.array_id)
        raise


def would_start(script: str) -> int | None:
    """Return when a script would start if submitted now, in seconds since the epoch, or None."""
    environ = environment() | ENVIRONMENT
    command = ("sbatch", "--test-only")
    ended = processes.run(command, TIMEOUT_S, environ=environ, text=script, merge_errors=True)
    match = re.search(r" to start at (\S+)", ended.output)
    return None if ended.code or match is None else instant(match[1])


def scancel(job_ids: Iterable[str], *, only_waiting: bool = False) -> None:
    """Cancel jobs or array elements (`7_3`) in one call; with `only_waiting`, only pending ones."""
    ask("scancel", *(["--state=PENDING"] if only_waiting else []), *job_ids)


@dataclass(frozen=True)
class Queued:
    """A job, or elements of an array, in squeue's answer; None where squeue shows no value."""

    job_id: str  # as squeue spells it: `7`, `7_3`, or `7_[4-9%2]` for elements that wait
    name: str
    user: str
    state: State  # with the reason for which it waits
    raw_id: str  # the job's own SLURM_JOB_ID
    elements: tuple[int, ...] | None  # numbers of the array's elements
    comment: str  # value of sbatch's --comment, which identifies the job
    command: str  # path of the script, and its arguments
    partition: str  # one name, or several separated by commas
    num_nodes: int | None
    nodes: str  # as Slurm writes them, such as `n[1-3]`
    elapsed_s: float | None
    limit_s: float | None
    submitted: int | None  # in seconds since the epoch
    starts: int | None  # when the job started, or when Slurm expects to start it
    waits_for: tuple[tuple[str, str], ...]  # (kind, job id), such as `("afterok", "12")`
    priority: int | None  # Slurm starts pending jobs in this order

    @property
    def array_id(self) -> str:
        """The job's id; for an array, the id that its elements share."""
        return self.job_id.partition("_")[0]

    @property
    def ids(self) -> list[str]:
        """The job's id, or `ID_K` for each element of the row."""
        if self.elements is None:
            return [self.job_id]
        return [f"{self.array_id}_{number}" for number in self.elements]

    @property
    def is_waiting(self) -> bool:
        return self.state.name == "PENDING"


def own_name() -> str:
    return name_of(os.getuid())


def name_of(uid: int) -> str:
    """Return the name of a user, or the number if this machine does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def squeue(columns: Iterable[str], *selection: str) -> list[Queued]:
    """Return jobs with these columns of `COLUMNS`; only the last column may contain a `|`."""
    names = tuple(columns)
    wanted = "|".join(COLUMNS[name] for name in names)
    listing = ask("squeue", *selection, "--noheader", f"--format={wanted}")
    rows = [line.split("|", len(names) - 1) for line in listing.splitlines() if line.strip()]
    # The last column may be missing.
    whole = [[*row, ""] for row in rows if len(row) >= len(names) - 1]
    return [parse_row(**dict(zip(names, row, strict=False))) for row in whole]


def parse_row(**texts: str) -> Queued:
    text = dict.fromkeys(COLUMNS, "") | texts
    element = text["job_id"].partition("_")[2]
    return Queued(
        **{name: text[name] for name in PLAIN},
        state=State(text["state"], text["reason"]),
        elements=tuple(numbers(element)) if element else None,
        num_nodes=count(text["num_nodes"].partition("-")[0]),
        elapsed_s=parse_duration(text["elapsed"]),
        limit_s=parse_duration(text["limit"]),
        submitted=instant(text["submitted"]),
        starts=instant(text["starts"]),
        waits_for=tuple(_DEPENDENCY.findall(text["waits_for"])),
        priority=count(text["priority"]),
    )


def queue(users: Iterable[str] = ()) -> dict[str, Queued]:
    """Return job id, as squeue spells it, -> job, including jobs that ended minutes ago.

    Without `users` it returns the jobs of all users, which is slower.
    """
    whose = [f"--user={','.join(users)}"] if users else []
    return {job.job_id: job for job in squeue(QUEUE_COLUMNS, *whose, "--states=all")}


def instant(text: str) -> int | None:
    """Return a time in seconds since the epoch; None for `Unknown`, `None` and the like.

    Where Slurm writes a date instead of seconds, it is in the machine's time zone.
    """
    if text.isdecimal():
        return count(text) or None
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def count(text: str | None) -> int | None:
    """Return the whole number in Slurm's text; None for anything else."""
    return int(text) if text and text.isdecimal() and len(text) <= MAX_DIGITS else None


def numbers(text: str) -> Iterator[int]:
    """Return the element numbers that Slurm writes as `3` or `[0-5,7,9-21:3%2]`.

    Elements that Slurm cut off (`...`) are missing; at most `MAX_ELEMENTS` are returned.
    """
    parts = text.strip("[]").partition("%")[0].split(",")
    matches = (re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part, re.ASCII)
               for part in parts)  # fmt: skip
    ranges = (
        range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))
        for match in matches
        if match
    )
    return islice(chain.from_iterable(ranges), MAX_ELEMENTS)
