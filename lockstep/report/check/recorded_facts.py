"""Rules about recorded facts of launches and cases, and about the order of repeats.

A fact is named by its path in a result; a path in `MAY_DIFFER` includes all below it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import product
from statistics import median
from typing import Any

from lockstep.core.processes import THREAD_VARIABLES
from lockstep.core.record import POOLING_FACTS
from lockstep.report.check.evidence import (
    NOTABLE_LOSS,
    Entry,
    Evidence,
    Finding,
    fact,
    joined,
    place,
    rule,
)
from lockstep.report.compute import quantities
from lockstep.report.compute.replicates import MOST_APART, begun, lead
from lockstep.report.compute.scaling import Series
from lockstep.report.load.conflicts import BATCHES, OF_A_CASE, find_minorities
from lockstep.report.load.results import Launch

RANKS, DETAILS = "provenance.ranks", "case.details"
TELEMETRY = f"{DETAILS}.telemetry"
# Clocks that a user sets; they do not follow the load.
CLOCKS = ("sm_clock_mhz", "memory_clock_mhz", "power_limit_w")


def _below(path: str, names: str) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for name in names.split())


# Reason why facts are not compared here -> these facts.
MAY_DIFFER: dict[str, tuple[str, ...]] = {
    "facts that lockstep check compares in separate rules": (
        "world_size", "num_nodes", "rounds", "expected", "failed", "complete", "in_flight",
        "left_behind", "sessions", "started",
        *(f"provenance.{name}" for name in (*POOLING_FACTS, "hostname", "threads_per_rank")),
        *(f"provenance.environment.{name}" for name in THREAD_VARIABLES),
        *_below(RANKS, "device_name driver host cores gpu_uuid num_threads"),
        *(f"case.{name}" for name in (*OF_A_CASE, *BATCHES)),
        *_below("case", "workload_sha256 factors.global_batch factors.local_batch world_size "
                "num_nodes rank_hosts rank_round_s samples elapsed_s checks flags mean_mfu "
                "mean_throughput_samples_per_s"),
        *_below(DETAILS, "gradient_bytes out_of_memory alone_step_s rank_alone_s rank_variant_s"),
        *_below(TELEMETRY, " ".join(CLOCKS)),
        *_below(TELEMETRY, "gpu_utilisation clocks_held_back throttled_s"),
    ),
    "facts that identify one launch or one process": (
        *("launch", "campaign", "repeat", "part", "skipped", "provenance.command"),
        *_below(RANKS, "rank local_rank pid device clock_offset_s"),
        *_below("provenance.slurm", "SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_NNODES "
                "SLURM_STEP_ID SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID"),
        *_below("provenance.environment", "NCCL_COMM_ID NCCL_HOSTID"),
        f"{DETAILS}.command.line", *_below("case.training", "checkpoints steps_file"),
    ),
    "order and seed, which should differ between launches": (
        *("order_seed", "provenance.seed", f"{DETAILS}.order_seed"),
        *_below("case", "position training.seed factors.seed"),
    ),
    "facts that describe the file format": ("schema", "case.schema"),
    # Options of a session; the record of a case has the settings of the measurement.
    "options of a session: the settings recorded in each case are compared instead": (
        "measured_with", "studies", "provenance.dropped_environment",
        *_below(DETAILS, "ignored command.over command.metrics input"),
    ),
    "path of the image: the digest of the image is compared instead": ("provenance.image_path",),
    "facts that do not affect the timing": _below("provenance", "pytest pytest_benchmark"),
    "numbers of devices: each job counts from 0, so equal numbers may be different devices": (
        "provenance.environment.CUDA_VISIBLE_DEVICES",
    ),
    "clock of a processor, which depends on the number of busy cores": (
        f"{TELEMETRY}.cpu_frequency_mhz",
    ),
    "facts that depend on the placement of ranks": _below(
        "provenance.transport", "adapters transports links"
    ),
    "facts that follow from DDP's settings and the order in which gradients are ready": (
        f"{DETAILS}.bucket_bytes",
    ),
    "facts that depend on the global batch": _below("case.training", "lr samples_per_epoch"),
    "facts that are results of the measurement": (
        *_below("case", "peak_memory_bytes peak_reserved_bytes training.rows "
                "training.best_accuracy training.time_to_target_s"),
        *_below(DETAILS, "algbw_gb_per_s busbw_gb_per_s bucket_lead_s first_reduce_s loader_idle "
                "rank_phase_s"),
        *_below(TELEMETRY, "memory_utilisation gpu_memory_bytes gpu_memory_total_bytes power_w "
                "temperature_c energy_j process_cores rss_bytes cpu_s core_utilisation elapsed_s "
                "child_cores fabric_sent_gb_per_s sockets_sent_gb_per_s"),
    ),
}  # fmt: skip
LISTED = frozenset(name for names in MAY_DIFFER.values() for name in names)
# Facts absent here are "not set"; other absent facts are unknown and not compared.
SETTINGS = ("provenance.environment", "case.factors", f"{DETAILS}.ddp_settings")
# Variables that name a file of the launch.
OF_A_FILE = "_FILE"
# After this time between sizes, the state of the machine may have changed.
FAR_APART = timedelta(hours=12)

Facts = dict[str, str]


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two recorded facts are equal; their texts decide, since True == 1."""
    return one is other or (one == other and str(one) == str(other))


@rule("circumstances", "warning", "a fact that may change the speed differs between launches",
      "measure all sizes in one campaign, on the same hosts, with one commit")  # fmt: skip
def circumstances(evidence: Evidence) -> Iterator[Finding]:
    """A recorded fact differs at a size or in a launch: host, date, commit, setting, clock.

    All recorded facts are compared except those that `--rules --json` lists with a reason.
    """
    entries = {(entry.launch.name, *entry.point): entry for entry in evidence.entries}
    facts = {launch.name: flat(launch.facts) for launch in evidence.launches}
    shares = {launch.name: _share_of_cores(launch) for launch in evidence.launches}
    for series in evidence.measured:
        places = [(row.launch, row.case, row.world_size) for p in series.points for row in p.rows]
        own = [entries[place] for place in places if place in entries]
        names = dict.fromkeys(entry.launch.name for entry in own)
        cores = _other_cores({name: share for name in names if (share := shares[name])})
        # Most facts are equal in all records, and then none of their parts differs.
        first, *others = (entry.block for entry in own) if own else ({},)
        equal = set(first)
        for block in others:
            equal = {name for name in equal if name in block and _is_same(block[name], first[name])}
        known = [
            facts[entry.launch.name]
            | flat({n: value for n, value in entry.block.items() if n not in equal}, "case")
            | cores.get(entry.launch.name, {})
            for entry in own
        ]
        yield from _odd_entries(own, known)
        for name in CLOCKS:
            yield from (place(finding, series) for finding in _other_gauge(series, name))
    # pytest-benchmark files that were read as repeats of one point.
    about = {launch.name: launch.about for launch in evidence.launches if launch.about}
    for series, point in ((own, p) for own in evidence.measured for p in own.points if about):
        known = [about.get(row.launch, {}) for row in point.rows]
        for name in dict.fromkeys(name for of_file in known for name in of_file):
            values = list(dict.fromkeys(each[name] for each in known if name in each))
            if len(values) > 1:
                different_values = joined(values)
                text = (
                    f"the files of this point are no repeats, because {name} differs between them: "
                    f"{different_values}"
                )
                action = ("compare two of the files with lockstep compare A B, or give only "
                          "files of one commit and host")  # fmt: skip
                yield fact("history", text, point.world_size, at=series, action=action,
                           fact=name, found=values)  # fmt: skip
    yield from _far_from_others(evidence.launches)


def flat(value: Any, path: str = "") -> Facts:
    """Return the facts below a path, except those of `MAY_DIFFER`, as text by full path."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        # For a list of ranks, collect the values of all ranks.
        names = dict.fromkeys(name for rank in value for name in rank)
        value = {name: sorted({str(rank.get(name)) for rank in value}) for name in names}
    if isinstance(value, dict):
        facts = {path: ""} if path in SETTINGS else {}
        for name, item in value.items():
            below = f"{path}.{name}" if path else name
            if item is not None and below not in LISTED and not below.endswith(OF_A_FILE):
                facts |= flat(item, below)
        return facts
    if isinstance(value, list):
        are_texts = value and all(isinstance(item, str) for item in value)
        return {path: ", ".join(value)} if are_texts else {}
    # Three digits, as in reports: memory sizes of equal nodes differ by a few kilobytes.
    is_amount = isinstance(value, float) or (isinstance(value, int) and path.endswith("_bytes"))
    return {path: f"{value:.3g}" if is_amount else str(value)}


def _odd_entries(entries: Sequence[Entry], known: Sequence[Facts]) -> Iterator[Finding]:
    """Yield the launches of a series with a fact that differs from most launches."""

    def sizes(pairs: Sequence[tuple[Entry, str]]) -> list[int]:
        return sorted({entry.point[1] for entry, _ in pairs})

    differ = {
        path for facts in known[1:] if facts != known[0]
        for path, _ in facts.items() ^ known[0].items()
    }  # fmt: skip
    for path in dict.fromkeys(path for facts in known for path in facts if path in differ):
        group = next((name for name in SETTINGS if path.startswith(f"{name}.")), path)
        pairs = [
            (entry, facts.get(path, "not set"))
            for entry, facts in zip(entries, known, strict=True)
            if group in facts
        ]
        name = path.rpartition(".")[2]
        for usual, odd in find_minorities(pairs, [value for _, value in pairs]):
            value, usual_value, odd_sizes = odd[0][1], usual[0][1], joined(sizes(odd))
            values = {"value": value, "usual": usual_value, "sizes": sizes(odd), "fact": name}
            kind, where = "circumstance", odd
            text = (
                f"{name} is {value} at world size {odd_sizes}, but {usual_value} in most launches"
            )
            if len(usual) == len(odd):
                kind, where = "circumstances-differ", [*usual, *odd]
                values["usual_sizes"] = sizes(usual)
                usual_sizes = joined(sizes(usual))
                text = (
                    f"{name} is {usual_value} in launches at world size {usual_sizes}, "
                    f"but {value} in equally many launches at world size {odd_sizes}"
                )
            # A fact of a launch holds for all of its cases.
            is_of_case = path.startswith("case.")
            yield Finding(
                kind, text, values=values, cases=(where[0][0].case,) if is_of_case else (),
                world_sizes=tuple(sizes(where)) if is_of_case else (),
                launches=tuple(dict.fromkeys(entry.launch.name for entry, _ in where)),
            )  # fmt: skip


# Cores of a rank, those of its host together, and the equal part of a rank.
Share = tuple[int, int, float]


def _share_of_cores(launch: Launch) -> Share | None:
    ranks, hosts = launch.ranks, launch.hosts
    host = [rank.get("cores") or [] for rank in ranks if rank.get("host") == hosts[0]]
    if not (host and all(host)):
        return None
    together = len({core for cores in host for core in cores})
    return len(host[0]), together, together / len(host)


def _other_cores(shares: Mapping[str, Share]) -> dict[str, Facts]:
    """Return the cores per rank of each launch, where no usual way of sharing cores explains them.

    Launchers give each rank a fixed number, or all cores of its host, or an equal part of these.
    """
    if any(len(set(column)) == 1 for column in zip(*shares.values(), strict=True)):
        return {}
    return {name: {"provenance.cores_per_rank": str(own[0])} for name, own in shares.items()}


def _other_gauge(series: Series, name: str) -> Iterator[Finding]:
    """Yield the sizes at which the means of all ranks lie outside those of all other sizes."""
    means: dict[int, list[float]] = {}
    for row in series.rows:
        if own := [mean for mean in quantities.telemetry(row, name, "mean") if mean is not None]:
            means.setdefault(row.world_size, []).extend(own)
    for size, own in means.items():
        others = [mean for other, known in means.items() if other != size for mean in known]
        is_low = others and max(own) < (1 - NOTABLE_LOSS) * min(others)
        # A higher utilisation, or a higher mean of two sizes, is normal: fewer ranks wait less.
        is_high = len(means) > 2 and (1 - NOTABLE_LOSS) * min(own) > max(others)
        if is_low or (is_high and name in CLOCKS):
            value, usual = median(own), median(others)
            text = f"{name} is {value:.3g}, but {usual:.3g} at the other sizes"
            yield fact("gauge", text, size, fact=name, value=value, usual=usual)


def _far_from_others(launches: Sequence[Launch]) -> Iterator[Finding]:
    """Yield the sizes that share no host with another size, or began hours from all others."""
    sizes: dict[int, list[Launch]] = {}
    for launch in launches:
        sizes.setdefault(int(launch.facts.get("world_size") or 0), []).append(launch)
    hosts = {size: {h for run in own for h in run.named_hosts} for size, own in sizes.items()}
    times = {size: [t for run in own if (t := begun(run))] for size, own in sizes.items()}
    chosen = sorted(sizes)[len(sizes) == 2 :]  # report only the larger of two sizes
    for size in chosen:
        own = sorted(hosts[size])
        others = sorted({host for other in sizes if other != size for host in hosts[other]})
        if own and others and not {*own} & {*others}:
            own_hosts, other_hosts = joined(own), joined(others)
            text = (
                f"this size ran on the hosts {own_hosts}, but the other sizes ran on {other_hosts}"
            )
            yield fact("other-hosts", text, size, own=own, others=others)
    for size in chosen:
        theirs = [when for other in sizes if other != size for when in times[other]]
        gaps = [abs(own - when) for own in times[size] for when in theirs]
        if gaps and min(gaps) > FAR_APART:
            date, hours = str(min(times[size]).date()), min(gaps) / timedelta(hours=1)
            text = (
                f"this size was measured on {date}, at least {hours:.0f} hours apart from "
                "every other size"
            )
            yield fact("other-date", text, size, hours=hours, date=date)


@rule("idle-devices", "note", "idle devices wait for other ranks, for input or for kernel launches",
      "look in the report for the cause: communication, input or a fixed cost",
      "measured")  # fmt: skip
def idle_devices(series: Series) -> Iterator[Finding]:
    """GPUs are busy for less of the time at one size than at any other."""
    return _other_gauge(series, "gpu_utilisation")


@rule(
    "several-settings",
    "note",
    "launches with another setting form a separate series, with its own baseline",
    "compare the settings at one size, or measure all launches with one setting",
    "measured",
)
def several_settings(series: Series) -> Iterator[Finding]:
    """Launches of a case differ in a setting that should be constant, such as threads."""
    if series.main and any(point is series.base for point in series.points):
        sizes = series.sizes
        text = f"only some of the launches have this setting: {series.layout}"
        yield fact("other-setting", text, *sizes, setting=series.layout)


@rule(
    "shared-job",
    "warning",
    "every repeat ran on the same nodes, so intervals leave out the differences between nodes",
    "run each repeat in its own job: set share_job = false under [jobs] in the campaign",
    doubts=False,
)
def shared_job(evidence: Evidence) -> Iterator[Finding]:
    """Repeats of a world size ran in one Slurm job, on the same nodes."""
    jobs: dict[tuple[int, str], dict[str, str]] = {}
    for launch in evidence.launches:
        size, repeat = launch.facts.get("world_size"), launch.facts.get("repeat")
        if (job := _job(launch)) and size and repeat is not None:
            jobs.setdefault((int(size), str(job)), {})[str(repeat)] = launch.name
    for (size, job), repeats in jobs.items():
        if (count := len(repeats)) > 1:
            yield fact("one-job", f"{count} repeats ran in the same Slurm job, {job}", size,
                       launches=repeats.values(), count=count, job=job)  # fmt: skip


def _job(launch: Launch) -> Any:
    return (launch.provenance.get("slurm") or {}).get("SLURM_JOB_ID")


@rule("not-in-turn", "warning",
      "the sizes were not measured in turn, so a drift of the machine's speed would look like "
      "scaling",
      "measure all sizes once before the next repeat begins, as lockstep run does")  # fmt: skip
def not_in_turn(evidence: Evidence) -> Iterator[Finding]:
    """Nearly all launches of a size ran before, or after, those of the smallest size.

    Only launches of the same job, or of no job, are compared: they may share a machine's state.
    """
    times: dict[int, list[tuple[Any, datetime]]] = {}
    for launch in evidence.launches:
        if (when := begun(launch)) and (size := launch.facts.get("world_size")):
            times.setdefault(int(size), []).append((_job(launch), when))
    base = min(times, default=0)
    sizes = []
    for size in sorted(times)[1:]:
        pairs = [
            (own, other) for (job, own), (other_job, other) in product(times[base], times[size])
            if job == other_job and abs(own - other) <= FAR_APART
        ]  # fmt: skip
        # With one launch of each size, some order is unavoidable.
        if len(pairs) > max(len(times[base]), len(times[size])) and abs(lead(pairs)) > MOST_APART:
            sizes.append(size)
    if sizes:
        other_sizes = joined(sizes)
        text = (
            f"the launches at world size {base} were not interleaved with the launches at world "
            f"size {other_sizes}, but nearly all ran earlier or nearly all later"
        )  # fmt: skip
        yield fact("not-in-turn", text, *sizes, sizes=sizes, base=base)
