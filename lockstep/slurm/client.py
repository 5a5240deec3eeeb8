"""The client of Slurm: what its commands are asked, how their answers read, what sbatch refuses.

A question that fails has no answer: `None` or `unknown`, never a state that sounds good. Whatever
asks Slurm, here and elsewhere, raises RuntimeError where its command is missing, fails, or gives no
answer in time.
"""

import os
import pwd
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from lockstep.core import files, processes
from lockstep.core.formats import listed, one_line, parse_duration

SITE = "in the site file"
CAMPAIGN = "in the campaign file"
EITHER = f"{SITE} or {CAMPAIGN}"
MAX_LISTED = 12
CHARGED = ("account", "qos")
_CHARGED = re.compile(rf"^#SBATCH --({'|'.join(CHARGED)})=(.*)$", re.MULTILINE)
# A line of sbatch's own: banners, and what a plugin only tells, begin otherwise.
_OWN_LINE = re.compile(r"sbatch: (error: |fatal: |unrecognized |invalid |option )", re.IGNORECASE)
# The answer was lost, not the job: the controller may have taken it.
_LOST_ANSWER = re.compile(
    "socket timed out|unable to contact|connection|transport|zero bytes", re.IGNORECASE
)


@dataclass(frozen=True)
class Refusal:
    """One thing that sbatch refuses.

    Attributes:
        said: Parts of sbatch's messages, in lower case, with | between.
        key: The key, or keys, that it is about.
        where: The file that holds them.
        ask: A command whose answer lists what is allowed; empty where no single call tells.
        noun: What that answer lists.
        pattern: One of them in that answer.
    """

    said: str
    key: str
    where: str = SITE
    ask: tuple[str, ...] = ()
    noun: str = ""
    pattern: str = ".+"


def _sinfo(columns: str) -> tuple[str, ...]:
    return ("sinfo", "--noheader", f"--format={columns}")


# %R partition, %l time limit, %D nodes, %s job sizes, %f features, %G gres, %c CPUs, %m MiB, as
# the page of sinfo(1) lists them.
_PARTITIONS = (_sinfo("%R"), "partitions")
_ACCOUNTS = (("sacctmgr", "--noheader", "--parsable2", "show", "associations", "where",
              "user={user}", "format=Account"), "your accounts")  # fmt: skip
_QOS = (("sacctmgr", "--noheader", "--parsable2", "show", "associations", "where",
         "user={user}", "format=QOS"), "your QOS")  # fmt: skip

# The messages are those of slurm_errno.c and of sbatch's own reading of options, Slurm 22.05 to
# 24.05; the first that fits counts, so the narrower ones come first.
REFUSALS = (
    Refusal("invalid account", "account", SITE, *_ACCOUNTS),
    Refusal("invalid qos", "qos", SITE, *_QOS, pattern=r"[^,\n]+"),
    Refusal("invalid partition|requested partition configuration|user's group not permitted",
            "partition", SITE, *_PARTITIONS),
    Refusal("job violates accounting/qos policy", "qos, account, time, or jobs.share_job for fewer "
            "jobs,", EITHER),
    Refusal("license", "extra_directives (--licenses)"),
    Refusal("invalid feature", "constraint", SITE, _sinfo("%f"), "features",
            pattern=r"[^,\n]+"),
    Refusal("reservation", "reservation", SITE,
            ("scontrol", "show", "reservation", "--oneliner"), "reservations",
            pattern=r"ReservationName=(\S+)"),
    Refusal("time limit|invalid --time", "time", EITHER, _sinfo("%R %l"), "limits"),
    Refusal("memory specification|invalid --mem", "mem", SITE, _sinfo("%m"), "MiB of a node"),
    Refusal("generic resource|trackable resource|invalid gres", "gpu_type or gpus_per_node", SITE,
            _sinfo("%G"), "gres of a node"),
    Refusal("node configuration", "gpus_per_node, gpu_type, cpus_per_node or mem", SITE,
            _sinfo("%R: %c CPUs, %m MiB, %G"), "a node has"),
    # Said of too many CPUs of a node, and of more nodes than the whole cluster has CPUs for.
    Refusal("more processors", "cpus_per_node", f"{SITE}, or world_sizes {CAMPAIGN}",
            _sinfo("%R has %D nodes of %c CPUs"), "partitions"),
    Refusal("cpu count", "cpus_per_node", SITE, _sinfo("%c"), "CPUs of a node"),
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


def find_refusal(message: str) -> Refusal | None:
    """Return what a message of sbatch is about; None if it is about no key."""
    low = message.lower()
    return next((refusal for refusal in REFUSALS if re.search(refusal.said, low)), None)


def explain_refusal(stderr: str, user: str, ask: Callable[..., str], script: Path) -> str | None:
    """Return sbatch's message with the key to change and what is allowed; None if it is no refusal.

    Only sbatch's own lines of errors count, and the last of them says how the submission ended.

    Args:
        stderr: What sbatch said, line by line; all of it is kept in the message.
        user: Who asks, for what only the user's account may do.
        ask: Runs one of Slurm's commands and returns its output.
        script: What was sent.
    """
    errors = [line for line in stderr.splitlines() if _OWN_LINE.match(line)]
    refusal = find_refusal(" ".join(errors))
    if refusal is None or _LOST_ANSWER.search(errors[-1]):
        return None
    facts = []
    if any(name in refusal.key for name in CHARGED) and script.is_file():
        charged = dict(_CHARGED.findall(files.text(script)))
        texts = [f"{name} {charged[name]}" if name in charged else f"no {name}" for name in CHARGED]
        facts.append(f"sent with {', '.join(texts)}")
    if refusal.ask:
        with suppress(RuntimeError):
            answer = ask(*(word.format(user=user) for word in refusal.ask))
            items = [item.strip() for item in re.findall(refusal.pattern, answer)]
            items = [item for item in dict.fromkeys(items) if item not in ("", "(null)", "N/A")]
            facts.append(f"{refusal.noun}: {listed(items, MAX_LISTED) or 'none'}")
    what = f" ({'; '.join(facts)})" if facts else ""
    return f"sbatch said: {one_line(stderr)}; change {refusal.key} {refusal.where}{what}"


Kind = Literal["no_config", "no_controller", "late", "no_database", "not_trusted", "other"]
# Set by `lockstep --verbose`: Slurm's own words follow ours.
VERBOSE = "LOCKSTEP_VERBOSE"
# What sacct says where slurm.conf has no AccountingStorageType.
NO_ACCOUNTING = "accounting storage is disabled"
# kind -> parts of what is printed, in lower case, with | between, as slurm_errno.c and
# fetch_config.c of Slurm 22.05 to 24.05 say it; what that means of a command; what to do. The first
# that fits counts.
FAILURES: dict[Kind, tuple[str, str, str]] = {
    "no_config": (
        "establish a configuration source|resolve_ctls|fetch_config"
        "|unable to process configuration file",
        "{} finds no Slurm here, neither a good slurm.conf nor a controller in DNS",
        "use a login node of the cluster, or name its file in SLURM_CONF",
    ),
    "no_database": (
        "slurmdbd|persistent connection|problem talking to the database",
        "{} does not reach Slurm's accounting (slurmdbd), which is down or out of reach",
        "ask again later",
    ),
    "not_trusted": (
        "munge|protocol authentication error",
        "Slurm does not let {} speak to it, for munge does not run here or has another key",
        "use a login node, or ask the cluster's support",
    ),
    "late": (
        "socket timed out",
        "Slurm's controller was too busy to answer {} in time",
        "ask again later",
    ),
    "no_controller": (
        "unable to contact slurm controller|zero bytes were transmitted",
        "{} does not reach Slurm's controller, which is down or out of reach",
        "ask again later, or see scontrol ping",
    ),
}


class FailedError(RuntimeError):
    """A command of Slurm that ended with an error."""

    def __init__(self, command: str, stderr: str, code: int) -> None:
        low, self.stderr = stderr.lower(), stderr
        fits = (kind for kind, (signs, _, _) in FAILURES.items() if re.search(signs, low))
        self.kind: Kind = next(fits, "other")
        text = f"{command} said: {one_line(stderr) or f'nothing, and exit code {code}'}"
        _, says, self.to_do = FAILURES.get(self.kind, ("", "", ""))
        self.says = says.format(command) or text
        ours = "; ".join(filter(None, [self.says, self.to_do]))
        super().__init__(f"{ours}; {text}" if self.to_do and os.environ.get(VERBOSE) else ours)


class NoAccountingError(FailedError):
    """This cluster keeps no accounts: asking again is of no use."""


class NotInstalledError(RuntimeError):
    """A command of Slurm that is not on this machine: asking again is of no use."""

    def __init__(self, command: str) -> None:
        super().__init__(f"{command} is not installed here; use a login node of the cluster")


TIMEOUT_S = 60
MAX_ELEMENTS = 100_000
# column -> how --format of squeue(1) asks for it
COLUMNS = {
    "job_id": "%i",
    "raw_id": "%A",
    "state": "%T",
    "reason": "%r",
    "user": "%u",
    "partition": "%P",
    "num_nodes": "%D",
    "elapsed": "%M",
    "limit": "%l",
    "submitted": "%V",
    "starts": "%S",
    "waits_for": "%E",
    "priority": "%Q",
    "nodes": "%N",
    "name": "%j",
    "comment": "%k",
    "command": "%o",
}
# Those that are taken as they are.
PLAIN = ("job_id", "name", "user", "raw_id", "comment", "command", "partition", "nodes")
_DEPENDENCY = re.compile(r"(after\w*|singleton)(?::([0-9]+(?:_[0-9*]+)?))?", re.ASCII)
QUEUE_COLUMNS = ("job_id", "raw_id", "state", "reason", "submitted", "user", "comment", "command")
CLUSTER = re.compile(r"[\w.-]+")  # name of one
MAX_DIGITS = 18  # of a number in Slurm's text; a longer one is not read
# Times as seconds, and the elements of an array whole (a text of 64 bytes by default).
ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
# What outside variables say of other jobs, or of how answers are to read, is not for ours.
FOREIGN = ("SBATCH_", "SLURM_", "SQUEUE_", "SACCT_", "SACCTMGR_", "SINFO_", "SCONTROL_", "SCANCEL_")
# Where Slurm is, and who asks: what no command answers without.
KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
# state -> what it means
MEANINGS = {
    "PENDING": "waits",
    "CONFIGURING": "its nodes are being made ready",
    "POWER_UP_NODE": "its nodes are being switched on",
    "RUNNING": "runs",
    "STALLED": "runs, but wrote nothing for longer than a case may take",
    "SUSPENDED": "is suspended, and goes on when Slurm lets it",
    "STOPPED": "is stopped and keeps its nodes, until it gets SIGCONT",
    "SIGNALING": "is being sent a signal",
    "RESIZING": "is getting more nodes, or fewer",
    "COMPLETING": "is being ended by Slurm",
    "EXPEDITING": "waits to run again before others: its nodes were lost",
    "REQUEUED": "was put back into the queue, and waits",
    "REQUEUE_FED": "was put back into the queue of its federation, and waits",
    "REQUEUE_HOLD": "was put back and is held; let it go: scontrol release {id}",
    "RESV_DEL_HOLD": "is held, for its reservation is gone; change reservation",
    "SPECIAL_EXIT": "was put back and is held, for its script asked for that by its exit code; "
    "let it go: scontrol release {id}",
    "STAGE_OUT": "has ended, and Slurm copies what it left",
    "UPDATE_DB": "is being noted by Slurm's accounting",
    "LAUNCH_FAILED": "could not be started on its nodes",
    "RECONFIG_FAIL": "its nodes could not be set up as it asked",
    "COMPLETED": "its script ended well",
    "FAILED": "its script ended with an error",
    "TIMEOUT": "the time limit was reached",
    "DEADLINE": "its deadline was reached",
    "OUT_OF_MEMORY": "it needed more memory than it had asked for",
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not start",
    "PREEMPTED": "another job took its nodes",
    "CANCELLED": "it was cancelled",
    "REVOKED": "another cluster took it",
    "LOST": "neither squeue nor sacct knows it, and it left no record of its end",
    "unknown": "Slurm gave no answer about it; ask again later",
}
# state -> how a summary of an array calls the elements in it
SHORT = {
    "COMPLETED": "done",
    "RUNNING": "run",
    "STALLED": "stalled",
    "COMPLETING": "end",
    "PENDING": "wait",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "over time",
    "OUT_OF_MEMORY": "out of memory",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "preempted",
}
NEVER_SATISFIED = "DependencyNeverSatisfied"
# Why a job waits that Slurm may have planned already: of any other it knows no start.
IN_LINE = ("None", "Priority", "Resources")
# why a pending job waits -> in plain words, and what to change
REASONS = {
    "None": "until Slurm has looked at it",
    "Priority": "jobs of a higher priority come first",
    "Resources": "until enough nodes are free",
    NEVER_SATISFIED: "for ever: the job it waits for failed; cancel it, then resume",
    "Dependency": "for another job",
    "BeginTime": "until the time it may begin",
    "JobArrayTaskLimit": "as many elements of the array run as max_running allows",
    "PartitionDown": "until its partition is up; another partition in the site file may be",
    "PartitionInactive": "until its partition is up; another partition in the site file may be",
    "PartitionNodeLimit": "for ever: it asks for more nodes than its partition gives one job; "
    "lower world_sizes or change partition",
    "PartitionTimeLimit": "for ever: its time is over the partition's limit; lower time",
    "ReqNodeNotAvail": "until its nodes are back: they are down, drained or reserved; lockstep "
    "slurm nodes says which and why",
    "Nodes_required_for_job_are_DOWN": "until its nodes are back: they are down, drained or kept "
    "for jobs of a higher priority; lockstep slurm nodes says which and why",
    "NodeDown": "until its nodes are back: they are down",
    "BadConstraints": "for ever: no node is as asked; change constraint, gpu_type or mem",
    "Licenses": "until a license is free",
    "Reservation": "until its reservation begins",
    "ReservationDeleted": "for ever: its reservation is gone; change reservation",
    "InvalidAccount": "for ever: the account is not valid; change account",
    "InvalidQOS": "for ever: the QOS is not valid; change qos",
    "JobHeldUser": "until its owner lets it go: scontrol release {id}",
    "JobHeldAdmin": "until an administrator lets it go; ask the cluster's support",
    "launch_failed_requeued_held": "for ever: it could not be started on its nodes; look at them "
    "with scontrol show job {id}, then scontrol release {id}",
    "QOSMaxJobsPerUserLimit": "until fewer of your jobs run: the QOS limits them",
    "QOSMaxSubmitJobPerUserLimit": "until fewer of your jobs are queued: the QOS limits them",
    "QOSMaxWallDurationPerJobLimit": "for ever: its time is over the limit of the QOS; lower time "
    "or change qos",
    "AssocGrpGRES": "until jobs of the account end: together they use all its GPUs",
    "AssocMaxWallDurationPerJobLimit": "for ever: its time is over the limit of the account; "
    "lower time",
    "MaxMemPerLimit": "for ever: it asks for more memory than allowed; lower mem",
}
# how the other reasons of a limit begin, the longer first
LIMITS = {
    "QOSGrp": "until jobs of all users of the QOS end: together they are at its limit; another "
    "qos may be free",
    "QOS": "a limit of the QOS is reached; fewer ranks, a shorter time or another qos may pass",
    "AssocGrp": "until jobs of the account end, or for ever if its budget is spent; ask sshare, "
    "or change account",
    "Assoc": "a limit of the account is reached; fewer ranks, a shorter time or another account "
    "may pass",
}


@dataclass(frozen=True)
class State:
    """What Slurm says of a job.

    Attributes:
        name: Slurm's word, or `LOST` or `unknown`.
        reason: Why a pending job waits, or waited until it was cancelled, in Slurm's word; of
            `LOST` and `unknown`, in plain words what is known instead.
        by: Who cancelled it; None where Slurm did, or nobody says.
    """

    name: str
    reason: str | None = None
    by: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the job will write no more."""
        return self.name in ENDED

    @property
    def meaning(self) -> str:
        """The state in plain words."""
        if self.name in ("LOST", "unknown") and self.reason:
            return self.reason
        meant = MEANINGS.get(self.name, f"Slurm calls it {self.name}")
        if self.name == "CANCELLED" and self.by:
            return f"{meant} by {self.by}"
        if self.name == "CANCELLED" and self.reason == NEVER_SATISFIED:
            why = "for the job it waited for did not end as it needs"
            return f"{meant} by Slurm, {why} ({self.reason})"
        if self.name != "PENDING" or not self.reason:
            return meant
        return f"{meant}: {plain(self.reason)}"


UNKNOWN = State("unknown")


def plain(reason: str) -> str:
    """Return why a job waits in plain words, Slurm's own kept where they say more."""
    word = reason.strip("()").partition(",")[0].replace(" ", "_")
    of_limits = (meaning for start, meaning in LIMITS.items() if word.startswith(start))
    meaning = REASONS.get(word) or next(of_limits, None)
    if meaning is None:
        return reason
    if word in IN_LINE:
        return meaning
    return f"{meaning} ({reason.strip('()')})"


def ask(*command: str, environ: Mapping[str, str] | None = None) -> str:
    """Return what one of Slurm's commands says.

    The command's variables are by default ours, with those that make answers readable.
    """
    environ = environment() | ENVIRONMENT if environ is None else environ
    if command[0] == "sacct":  # the only one that does not read SLURM_CLUSTERS
        command = (command[0], *cluster_options(), *command[1:])
    try:
        ended = processes.run(command, TIMEOUT_S, environ=environ)
    except processes.CommandError as error:
        if error.kind == "absent":
            raise NotInstalledError(command[0]) from None
        raise
    if ended.code:
        failure = NoAccountingError if NO_ACCOUNTING in ended.errors else FailedError
        raise failure(command[0], ended.errors, ended.code)
    return ended.output


def environment() -> dict[str, str]:
    """Return our variables without those of a job around us and the user's own filters."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(FOREIGN)
    }


def on_cluster(name: str | None) -> None:
    """Let each command of Slurm be about a cluster; None leaves it to the user's SLURM_CLUSTERS."""
    if name is not None:
        os.environ["SLURM_CLUSTERS"] = name


def cluster_options() -> list[str]:
    """Return the option of Slurm's commands that names the cluster they are about, if one is."""
    name = os.environ.get("SLURM_CLUSTERS")
    return [f"--clusters={name}"] if name else []


def require(command: str) -> None:
    """Check that a command of Slurm is on this machine.

    Raises:
        NotInstalledError: It is not.
    """
    if shutil.which(command) is None:
        raise NotInstalledError(command)


@dataclass(frozen=True)
class Taken:
    """A job that sbatch has sent.

    Attributes:
        id: Its id; of an array, the id that its elements share.
    """

    id: str
    cluster: str | None = None


def sbatch(script: Path, comment: str, *options: str) -> Taken:
    """Submit a script and return the job.

    The job is found by the comment if the answer is lost.

    Raises:
        ValueError: sbatch refuses what a site or campaign file says.
        RuntimeError: Slurm does not answer, and has no such job.
    """
    command = ("sbatch", "--parsable", f"--comment={comment}", *options, str(script))
    try:
        return _taken(ask(*command, environ=environment()))
    except RuntimeError as error:
        stderr = error.stderr if isinstance(error, FailedError) else ""
        if explained := explain_refusal(stderr, own_name(), ask, script):
            raise ValueError(explained) from None
        # sbatch may lose the answer after the job has been taken; one that was refused leaves a
        # record, too.
        refused = State("FAILED", "BadConstraints")
        with suppress(RuntimeError):
            for job in queue([own_name()]).values():
                if job.comment == comment and job.state != refused:
                    return Taken(job.array_id)
        raise


def would_start(script: str) -> str | None:
    """Return when a script would start if it were sent now, which it is not, as Slurm says it."""
    ended = processes.run(
        ("sbatch", "--test-only"),
        TIMEOUT_S,
        environ=environment() | ENVIRONMENT,
        text=script,
        merge_errors=True,
    )
    match = re.search(r" to start at (\S+)", ended.output)
    return None if ended.code or match is None else match[1]


def _taken(answer: str) -> Taken:
    """Return the job in sbatch's answer, `ID` or `ID;CLUSTER`, after what a site's wrapper adds."""
    found = re.findall(r"^([0-9]+)(?:;(.*))?$", answer, re.MULTILINE)
    if not found:
        raise RuntimeError(
            f"sbatch gave no job id but {answer.strip()[:80]!r}; see by squeue --me whether it "
            "took the job, and ask the cluster's support why sbatch --parsable prints no id"
        )
    job_id, cluster = found[-1]
    return Taken(job_id, cluster if CLUSTER.fullmatch(cluster) else None)


def scancel(job_ids: Iterable[str], *, only_waiting: bool = False) -> None:
    """Cancel jobs, or single elements of arrays (`7_3`), by one call; perhaps only what waits."""
    ask("scancel", *(["--state=PENDING"] if only_waiting else []), *job_ids)


@dataclass(frozen=True)
class Queued:
    """A job, or elements of an array, that Slurm still holds; None for what it does not say.

    Attributes:
        job_id: Its id as squeue spells it: `7`, `7_3`, or `7_[4-9%2]` for elements that wait.
        state: Its state, with the reason for which it waits.
        raw_id: The id that the job itself sees as SLURM_JOB_ID.
        elements: Which elements of an array; None for a job of its own.
        comment: What sbatch was given to find it by.
        command: The path of its script, and what that was given.
        partition: Where it runs or is to run; several with commas between.
        nodes: As Slurm writes them, such as `n[1-3]`.
        limit_s: Its time limit; None without one.
        submitted: When it was sent, in seconds of the epoch.
        starts: When it began; for one that waits, when Slurm expects to start it.
        waits_for: (how, job id) of what it waits for, such as `("afterok", "12")`.
        priority: Slurm's number, by which the waiting jobs are ordered.
    """

    job_id: str
    name: str
    user: str
    state: State
    raw_id: str
    elements: tuple[int, ...] | None
    comment: str
    command: str
    partition: str
    num_nodes: int | None
    nodes: str
    elapsed_s: float | None
    limit_s: float | None
    submitted: int | None
    starts: int | None
    waits_for: tuple[tuple[str, str], ...]
    priority: int | None

    @property
    def array_id(self) -> str:
        """Its id; of an array, the id that its elements share."""
        return self.job_id.partition("_")[0]

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun."""
        return self.state.name == "PENDING"


def own_name() -> str:
    """Return the name of the user who runs this command, as Slurm has it."""
    return name_of(os.getuid())


def name_of(uid: int) -> str:
    """Return the name of a user, or the number where this machine knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def squeue(columns: Iterable[str], *selection: str) -> list[Queued]:
    """Return what squeue says of jobs, by columns of `COLUMNS`; the last may hold any character."""
    names = tuple(columns)
    wanted = "|".join(COLUMNS[name] for name in names)
    listing = ask("squeue", *selection, "--noheader", f"--format={wanted}")
    rows = [line.split("|", len(names) - 1) for line in listing.splitlines() if line.strip()]
    whole = [[*row, ""] for row in rows if len(row) >= len(names) - 1]
    return [queued(**dict(zip(names, row, strict=False))) for row in whole]


def queued(**texts: str) -> Queued:
    """Return a job by squeue's text of some columns."""
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
    """Return job id, as squeue spells it, -> the job, of which some may just have ended.

    Args:
        users: Whose jobs; everybody's where none is named. Of one user Slurm finds them quickly.
    """
    whose = [f"--user={','.join(users)}"] if users else []
    return {job.job_id: job for job in squeue(QUEUE_COLUMNS, *whose, "--states=all")}


def instant(text: str) -> int | None:
    """Return a time in seconds of the epoch; None for `Unknown`, `None` and the like.

    Slurm writes a date where it was not asked for seconds, in the time zone of the machine.
    """
    if text.isdecimal():
        return count(text) or None
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def count(text: str | None) -> int | None:
    """Return a whole number of Slurm's text; None for anything else."""
    return int(text) if text and text.isdecimal() and len(text) <= MAX_DIGITS else None


def numbers(text: str) -> Iterator[int]:
    """Yield the elements that Slurm writes as `3` or `[0-5,7,9-21:3%2]`.

    What it left out of a text it cut short (`...`) is not made up, and no more than a site's
    max_array_size allows are given, whatever the text says.
    """
    count = 0
    for part in text.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part, re.ASCII)
        if match:
            first, last, step = match.groups()
            some = range(int(first), int(last or first) + 1, max(1, int(step or 1)))
            some = some[: MAX_ELEMENTS - count]
            count += len(some)
            yield from some
