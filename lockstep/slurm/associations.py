"""A user's accounts, and the limits of account and QOS for a job, from sacctmgr.

Where several set one limit, one of them counts: the QOS of the partition goes before that of the
job, which goes before the account (Slurm's documentation, "Resource Limits"). sacctmgr shows with a
user's association what that has from the accounts above it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Literal

from lockstep.core.formats import clock, parse_limit
from lockstep.slurm import client as slurm
from lockstep.slurm import cluster as clusters
from lockstep.slurm.cluster import LIMITING_TIME, Cluster, Partition
from lockstep.slurm.site import Site
from lockstep.slurm.submit.job_spec import JobSpec

# What a job has whose user has several QOS and no default.
USUAL_QOS = "normal"
_USER = "user,defaultaccount,account,partition,defaultqos,qos,maxwall,maxtres,maxjobs,maxsubmit"
_QOS = "name,flags,maxwall,maxtres,maxtrespu,maxjobspu,maxsubmitpu"


@dataclass(frozen=True)
class Limit:
    """One limit of a QOS or an account.

    Attributes:
        name: What sacctmgr calls it: `MaxWall` and `MaxTRES` of a job, `MaxTRESPU` of all running
            jobs of a user, `MaxJobs` that run and `MaxSubmit` that are in the queue, an array's
            elements counted each.
        of: Whose it is, `QOS gold` or `account project`.
        value: The most: seconds of `MaxWall`, else a number.
        tres: What `MaxTRES` and `MaxTRESPU` count, such as `node` or `gres/gpu`; else empty.
        denies: Whether sbatch refuses a job over it, which otherwise waits for ever.
    """

    name: str
    of: str
    value: int
    tres: str = ""
    denies: bool = False

    @property
    def text(self) -> str:
        """Its name, value and owner as a phrase."""
        value = clock(self.value) if self.name == "MaxWall" else f"{self.value:,}"
        return f"{self.name} {f'{self.tres}=' if self.tres else ''}{value} of {self.of}"


@dataclass(frozen=True)
class Association:
    """An account that the user may charge; in one partition alone, or in all that have none."""

    account: str
    partition: str = ""
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    @property
    def usual_qos(self) -> str:
        """The QOS of a job that names none."""
        return self.default_qos or (self.qos[0] if len(self.qos) == 1 else USUAL_QOS)


@dataclass(frozen=True)
class Quality:
    """A quality of service."""

    flags: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Accounts:
    """What a user may charge; empty where Slurm keeps no accounts.

    Attributes:
        default: What is charged where a job names none.
    """

    default: str | None = None
    associations: tuple[Association, ...] = ()
    qualities: Mapping[str, Quality] = field(default_factory=dict)

    @property
    def qos(self) -> dict[str, tuple[str, ...]]:
        """Account -> the qualities of service that it has."""
        qualities: dict[str, tuple[str, ...]] = {}
        for association in self.associations:
            earlier = qualities.get(association.account, ())
            qualities[association.account] = tuple(dict.fromkeys([*earlier, *association.qos]))
        return qualities

    @property
    def names(self) -> tuple[str, ...]:
        """All accounts."""
        return tuple(self.qos)

    def association(self, account: str | None, partition: str) -> Association | None:
        """Return what an account has in a partition; the default account for None."""
        charged = account or self.default
        of_account = {a.partition: a for a in reversed(self.associations) if a.account == charged}
        return of_account.get(partition) or of_account.get("")


def read(cluster: str) -> Accounts:
    """Return the accounts of the current user on a cluster, from sacctmgr."""
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    which = ("user", slurm.own_name(), "withassoc", f"cluster={cluster}", f"format={_USER}")
    return parse(slurm.ask(*show, *which), slurm.ask(*show, "qos", f"format={_QOS}"))


def parse(associations: str, qualities: str = "") -> Accounts:
    """Read the associations of one user and all QOS, a line each, from sacctmgr's output."""
    found = []
    for row in _rows(associations, _USER):
        if row["account"]:
            of = f"account {row['account']}"
            limits = _limits(of, row["maxwall"], row["maxjobs"], row["maxsubmit"], row["maxtres"])
            qos = _listed(row["qos"])
            usual, place = row["defaultqos"], row["partition"]
            found.append(Association(row["account"], place, usual, qos, limits))
    of_qos = {}
    for row in _rows(qualities, _QOS):
        of = f"QOS {row['name']}"
        jobs = (row["maxwall"], row["maxjobspu"], row["maxsubmitpu"])
        limits = _limits(of, *jobs, row["maxtres"], row["maxtrespu"])
        of_qos[row["name"]] = Quality(_listed(row["flags"]), limits)
    defaults = [row["defaultaccount"] for row in _rows(associations, _USER) if row["account"]]
    return Accounts(next(filter(None, defaults), None), tuple(found), of_qos)


def _rows(text: str, columns: str) -> list[dict[str, str]]:
    names = columns.split(",")
    rows = [line.split("|") for line in text.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _limits(
    of: str, wall: str, running: str, queued: str, tres: str, of_user: str = ""
) -> tuple[Limit, ...]:
    limits = []
    if LIMITING_TIME.fullmatch(wall):
        limits.append(Limit("MaxWall", of, parse_limit(wall)))
    for name, text in (("MaxJobs", running), ("MaxSubmit", queued)):
        if (value := slurm.count(text)) is not None:
            limits.append(Limit(name, of, value))
    # `gres/gpu=8,mem=4T,node=2`, but for memory, of which jobs ask a node's.
    for name, text in (("MaxTRES", tres), ("MaxTRESPU", of_user)):
        for item in _listed(text):
            kind, _, number = item.partition("=")
            if (value := slurm.count(number)) is not None:
                limits.append(Limit(name, of, value, kind))
    return tuple(limits)


def limits(
    cluster: Cluster,
    accounts: Accounts,
    partition: Partition | None,
    account: str | None = None,
    qos: str | None = None,
) -> tuple[Limit, ...]:
    """Return what limits a job; of a limit that several set, the one that counts.

    Account and QOS are by default those that Slurm would choose.
    """
    if not cluster.enforces_limits:
        return ()
    charged = accounts.association(account, partition.name if partition else "")
    usual = charged.usual_qos if charged else USUAL_QOS
    names = [partition.own_qos or "" if partition else "", qos or usual]
    qualities = [accounts.qualities[name] for name in names if name in accounts.qualities]
    if qualities and "OverPartQOS" in qualities[-1].flags:
        qualities.reverse()
    denies = any("DenyOnLimit" in quality.flags for quality in qualities)
    of_qualities = chain.from_iterable(quality.limits for quality in qualities)
    chosen: dict[tuple[str, str], Limit] = {}
    for limit in chain(of_qualities, charged.limits if charged else ()):
        chosen.setdefault(
            (limit.name, limit.tres), replace(limit, denies=denies or limit.name == "MaxSubmit")
        )
    return tuple(chosen.values())


def limits_of_jobs(site: Site) -> tuple[Limit, ...]:
    """Ask the Slurm of this machine what limits the jobs of a site.

    Raises:
        RuntimeError: Slurm does not answer, or is not the site's: it has no such partition, nodes
            or account.
    """
    cluster = clusters.read()
    chosen = cluster.partition(site.partition)
    if chosen is None or not any(
        kind.num_cpus >= site.cpus_per_node
        and kind.num_gpus >= site.gpus_per_node
        and site.gpu_type in (None, kind.gpu_type)
        for kind, _ in chosen.kinds
    ):
        raise RuntimeError(
            f"cluster {cluster.name} has no {site.partition or 'default'} partition with nodes "
            f"of {site.cpus_per_node} CPUs and {site.gpus_per_node} {site.gpu_type or 'GPUs'}"
        )
    accounts = read(cluster.name) if cluster.keeps_accounts else Accounts()
    if site.account and accounts.names and site.account not in accounts.names:
        raise RuntimeError(f"you have no account {site.account} on cluster {cluster.name}")
    return limits(cluster, accounts, chosen, site.account, site.qos)


SHOWN_JOBS = 3


@dataclass(frozen=True)
class Excess:
    """Jobs over one limit.

    Attributes:
        kind: What Slurm does: it refuses them (`refused`), never starts them (`held`), or starts
            them once others have ended (`queued`).
        jobs: Which jobs; of those in the queue together, the ones that are too many.
        needs: What the largest of them needs, or all of them together, in the limit's unit.
    """

    kind: Literal["refused", "held", "queued"]
    limit: Limit
    jobs: tuple[str, ...]
    needs: int

    @property
    def text(self) -> str:
        """Which jobs are affected and how, why, and what to do, as a sentence."""
        if self.kind == "queued":
            most = f"Only {self.limit.value:,} of {self.needs:,} jobs"
            return f"{most} may run at once: {self.limit.text}."
        effect = "Slurm would refuse" if self.kind == "refused" else "Slurm would never start"
        names, more = ", ".join(self.jobs[:SHOWN_JOBS]), len(self.jobs) - SHOWN_JOBS
        return f"{effect} {names}{f' and {more:,} more' if more > 0 else ''}: {self._why}."

    @property
    def _why(self) -> str:
        if self.limit.name == "MaxWall":
            return f"{clock(self.needs)} exceeds {self.limit.text}; lower time, or change qos"
        if self.limit.name == "MaxSubmit":
            return (
                f"{self.needs:,} jobs exceed {self.limit.text}; for fewer jobs set share_job or "
                'allocation = "ladder" in [jobs] of the campaign'
            )
        return (
            f"{self.limit.tres}={self.needs:,} exceeds {self.limit.text}; leave out the largest "
            "world_sizes, or change qos"
        )


def excesses(jobs: Sequence[JobSpec], site: Site, limits: Sequence[Limit]) -> list[Excess]:
    """Return the jobs over each limit, one `Excess` per limit.

    Other jobs of the user also count for limits over all of a user's jobs; they are not known here.
    """
    exceeded = []
    for limit in limits:
        if limit.name == "MaxSubmit":
            totals = accumulate(job.num_elements for job in jobs)
            numbers = {j.name: total for j, total in zip(jobs, totals, strict=True)}
        elif limit.name == "MaxJobs":
            exceeded += _one_after_another(jobs, limit)
            continue
        else:
            numbers = {job.name: _needs(job, site, limit) for job in jobs}
        over = {name: needs for name, needs in numbers.items() if needs > limit.value}
        is_refused = limit.denies or limit.name == "MaxSubmit"
        if over:
            kind: Literal["refused", "held"] = "refused" if is_refused else "held"
            exceeded.append(Excess(kind, limit, tuple(over), max(over.values())))
    return exceeded


def _needs(job: JobSpec, site: Site, limit: Limit) -> int:
    """Return how much of the limited resource a job uses; 0 if that is not known."""
    if limit.name == "MaxWall":
        return job.time_s
    cpus = site.cpus_per_node if site.is_exclusive else job.cpus_per_node
    of_node = {"node": 1, "cpu": cpus, "gres/gpu": job.billed_per_node}
    if site.gpu_type:
        of_node[f"gres/gpu:{site.gpu_type}"] = job.billed_per_node
    return of_node.get(limit.tres, 0) * job.num_nodes


def _one_after_another(jobs: Sequence[JobSpec], limit: Limit) -> list[Excess]:
    """Return the excess of jobs that could run at once over MaxJobs."""
    depth: dict[str, int] = {}
    together: Counter[int] = Counter()
    for job in jobs:  # each after those that it waits for; a singleton for an earlier one
        depth[job.name] = 1 + max((depth.get(wait.job, 0) for wait in job.after), default=0)
        together[depth[job.name]] += job.num_elements
    most = max(together.values(), default=0)
    return [Excess("queued", limit, (), most)] if most > limit.value else []
