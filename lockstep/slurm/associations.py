"""A user's accounts, and the limits of account and QOS for a job, from sacctmgr.

If several set the same limit, the QOS of the partition overrides that of the job, which overrides
the account (Slurm's documentation, "Resource Limits"). sacctmgr shows with a user's association
the limits that it inherits from the accounts above it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal

from lockstep.core.formats import clock, listed, parse_limit
from lockstep.slurm import client as slurm
from lockstep.slurm import cluster as clusters
from lockstep.slurm.cluster import LIMITING_TIME, Cluster, Partition
from lockstep.slurm.site import Site
from lockstep.slurm.submit.job_spec import JobSpec

USUAL_QOS = "normal"  # of a user who has several QOS and no default
_USER = "user,defaultaccount,account,partition,defaultqos,qos,maxwall,maxtres,maxjobs,maxsubmit"
_QOS = "name,flags,maxwall,maxtres,maxtrespu,maxjobspu,maxsubmitpu"
# Name of a limit in sacctmgr -> the columns of _USER and _QOS that have it.
_LIMITS = {
    "MaxWall": ("maxwall",),
    "MaxJobs": ("maxjobs", "maxjobspu"),
    "MaxSubmit": ("maxsubmit", "maxsubmitpu"),
    "MaxTRES": ("maxtres",),
    "MaxTRESPU": ("maxtrespu",),
}


@dataclass(frozen=True)
class Limit:
    """One limit of a QOS or an account.

    `MaxWall` and `MaxTRES` limit one job, `MaxTRESPU` all running jobs of a user, `MaxJobs` the
    running jobs and `MaxSubmit` the jobs in the queue; each array element counts as a job.
    """

    name: str  # as sacctmgr calls it
    of: str  # who sets the limit: `QOS gold` or `account project`
    value: int  # the largest allowed value; for `MaxWall` in seconds
    tres: str = ""  # the resource of `MaxTRES` and `MaxTRESPU`, such as `node` or `gres/gpu`
    denies: bool = False  # sbatch refuses a job over the limit; else such a job waits for ever

    @property
    def text(self) -> str:
        value = clock(self.value) if self.name == "MaxWall" else f"{self.value:,}"
        return f"{self.name} {f'{self.tres}=' if self.tres else ''}{value} of {self.of}"


@dataclass(frozen=True)
class Association:
    """An account that the user may charge, in one partition or, without a name, in all."""

    account: str
    partition: str = ""
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Quality:
    """A quality of service (QOS)."""

    flags: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Accounts:
    """The accounts that a user may charge; empty if Slurm keeps no accounts."""

    default: str | None = None  # account of a job that names none
    associations: tuple[Association, ...] = ()
    qualities: Mapping[str, Quality] = field(default_factory=dict)

    @property
    def qos(self) -> dict[str, tuple[str, ...]]:
        """Account -> the QOS that it may use."""
        qualities: dict[str, tuple[str, ...]] = {}
        for own in self.associations:
            known = (*qualities.get(own.account, ()), *own.qos)
            qualities[own.account] = tuple(dict.fromkeys(known))
        return qualities

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.qos)

    def association(self, account: str | None, partition: str) -> Association | None:
        """Return an account's association in a partition; the default account's for None."""
        charged = account or self.default
        of_account = {a.partition: a for a in reversed(self.associations) if a.account == charged}
        return of_account.get(partition) or of_account.get("")


def read(cluster: str) -> Accounts:
    """Return the accounts of the current user on a cluster, from sacctmgr."""
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    which = ("user", slurm.own_name(), "withassoc", f"cluster={cluster}", f"format={_USER}")
    return parse(slurm.ask(*show, *which), slurm.ask(*show, "qos", f"format={_QOS}"))


def parse(associations: str, qualities: str = "") -> Accounts:
    own = [row for row in _rows(associations, _USER) if row["account"]]
    return Accounts(
        next((row["defaultaccount"] for row in own if row["defaultaccount"]), None),
        tuple(
            Association(
                row["account"], row["partition"], row["defaultqos"], _split(row["qos"]),
                _limits(f"account {row['account']}", row),
            )
            for row in own
        ),
        {
            row["name"]: Quality(_split(row["flags"]), _limits(f"QOS {row['name']}", row))
            for row in _rows(qualities, _QOS)
        },
    )  # fmt: skip


def _rows(text: str, columns: str) -> list[dict[str, str]]:
    names = columns.split(",")
    rows = [line.split("|") for line in text.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _split(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _limits(of: str, row: Mapping[str, str]) -> tuple[Limit, ...]:
    limits = []
    for name, columns in _LIMITS.items():
        text = next((row[column] for column in columns if column in row), "")
        if name == "MaxWall":
            limits += [Limit(name, of, parse_limit(text))] if LIMITING_TIME.fullmatch(text) else []
            continue
        # Of a TRES `gres/gpu=8,node=2`; memory such as `mem=4T` is not counted.
        for item in _split(text) if "TRES" in name else [text]:
            tres, _, number = item.rpartition("=")
            if (value := slurm.count(number)) is not None:
                limits.append(Limit(name, of, value, tres))
    return tuple(limits)


def limits(
    cluster: Cluster,
    accounts: Accounts,
    partition: Partition | None,
    account: str | None = None,
    qos: str | None = None,
) -> tuple[Limit, ...]:
    """Return the limits of a job; by default with the account and QOS that Slurm would choose."""
    if not cluster.enforces_limits:
        return ()
    charged = accounts.association(account, partition.name if partition else "")
    usual = USUAL_QOS
    if charged:
        usual = charged.default_qos or (charged.qos[0] if len(charged.qos) == 1 else USUAL_QOS)
    names = [partition.own_qos or "" if partition else "", qos or usual]
    qualities = [accounts.qualities[name] for name in names if name in accounts.qualities]
    if qualities and "OverPartQOS" in qualities[-1].flags:
        qualities.reverse()
    denies = any("DenyOnLimit" in quality.flags for quality in qualities)
    known = [limit for quality in qualities for limit in quality.limits]
    chosen: dict[tuple[str, str], Limit] = {}
    for limit in [*known, *(charged.limits if charged else ())]:
        is_denied = denies or limit.name == "MaxSubmit"
        chosen.setdefault((limit.name, limit.tres), replace(limit, denies=is_denied))
    return tuple(chosen.values())


def limits_of_jobs(site: Site) -> tuple[Limit, ...]:
    """Return the limits of a site's jobs; raise RuntimeError on a machine of another cluster."""
    cluster = clusters.read()
    chosen = cluster.partition(site.partition)
    if chosen is None or not any(
        kind.num_cpus >= site.cpus_per_node
        and kind.num_gpus >= site.gpus_per_node
        and site.gpu_type in (None, kind.gpu_type)
        for kind, _ in chosen.kinds
    ):
        raise RuntimeError(
            f"this machine's cluster {cluster.name} has no {site.partition or 'default'} "
            f"partition with nodes of {site.cpus_per_node} CPUs and {site.gpus_per_node} "
            f"{site.gpu_type or 'GPUs'}; run this command on a login node of the site's cluster"
        )
    accounts = read(cluster.name) if cluster.keeps_accounts else Accounts()
    if site.account and accounts.names and site.account not in accounts.names:
        raise RuntimeError(f"you have no account {site.account} on cluster {cluster.name}")
    return limits(cluster, accounts, chosen, site.account, site.qos)


SHOWN_JOBS = 3


@dataclass(frozen=True)
class Excess:
    """Jobs over one limit."""

    # Slurm refuses these jobs, never starts them, or starts them once other jobs have ended.
    kind: Literal["refused", "held", "queued"]
    limit: Limit
    jobs: tuple[str, ...]  # names; for `MaxSubmit`, only of the jobs beyond the limit
    needs: int  # need of the largest job; for `MaxSubmit` and `MaxJobs`, the number of jobs

    @property
    def text(self) -> str:
        limit, shown_limit = self.limit, self.limit.text
        if self.kind == "queued":
            jobs = f"{limit.value:,} of {self.needs:,} jobs"
            return f"Only {jobs} may run at the same time, because of the limit {shown_limit}."
        match limit.name:
            case "MaxWall":
                why = (
                    f"a time of {clock(self.needs)} exceeds the limit {shown_limit}; lower time or "
                    "change qos in the site file"
                )
            case "MaxSubmit":
                why = (
                    f"{self.needs:,} jobs exceed the limit {shown_limit}; to need fewer jobs, "
                    'set share_job = true or allocation = "ladder" in [jobs] of the campaign '
                    "file"
                )
            case _:
                why = (
                    f"{limit.tres}={self.needs:,} exceeds the limit {shown_limit}; leave out the "
                    "largest world_sizes of the campaign, or change qos in the site file"
                )
        effect = "refuse" if self.kind == "refused" else "never start"
        return f"Slurm would {effect} {listed(self.jobs, SHOWN_JOBS)}: {why}."


def excesses(jobs: Sequence[JobSpec], site: Site, limits: Sequence[Limit]) -> list[Excess]:
    """Return the jobs over each limit; other jobs of the user are not counted."""
    exceeded = []
    for limit in limits:
        if limit.name == "MaxJobs":
            most = _num_at_once(jobs)
            exceeded += [Excess("queued", limit, (), most)] if most > limit.value else []
            continue
        needs = [_needs(job, site, limit) for job in jobs]
        if limit.name == "MaxSubmit":
            needs = list(accumulate(needs))
        over = {job.name: n for job, n in zip(jobs, needs, strict=True) if n > limit.value}
        if over:
            kind: Literal["refused", "held"] = "refused" if limit.denies else "held"
            exceeded.append(Excess(kind, limit, tuple(over), max(over.values())))
    return exceeded


def _needs(job: JobSpec, site: Site, limit: Limit) -> int:
    """Return how much of the limited resource a job uses; 0 if unknown."""
    if limit.name == "MaxWall":
        return job.time_s
    if limit.name == "MaxSubmit":
        return job.num_elements
    of_node = {
        "node": 1,
        "cpu": site.cpus_per_node if site.is_exclusive else job.cpus_per_node,
        "gres/gpu": job.billed_per_node,
        f"gres/gpu:{site.gpu_type}": job.billed_per_node,
    }
    return of_node.get(limit.tres, 0) * job.num_nodes


def _num_at_once(jobs: Sequence[JobSpec]) -> int:
    depth: dict[str, int] = {}
    together: Counter[int] = Counter()
    for job in jobs:  # in this order each job follows those that it waits for
        depth[job.name] = 1 + max((depth.get(wait.job, 0) for wait in job.after), default=0)
        together[depth[job.name]] += job.num_elements
    return max(together.values(), default=0)
