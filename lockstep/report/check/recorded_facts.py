"""The rules about what is recorded of launches and cases: equal within a series, or listed here.

Every fact of a record is compared over the launches of a series, at all world sizes, unless
`MAY_DIFFER` gives a reason why it may differ. A fact is named by its path in a result; a listed
path includes all below it. Other rules here are about the jobs and the order of repeats.
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
    in_series,
    joined,
    rule,
)
from lockstep.report.compute.replicates import MOST_APART, begun, lead
from lockstep.report.compute.scaling import Series
from lockstep.report.load.conflicts import BATCHES, OF_A_CASE, odd_ones
from lockstep.report.load.results import Launch

RANKS, DETAILS = "provenance.ranks", "case.details"
TELEMETRY = f"{DETAILS}.telemetry"
# Clocks to which a device is set; they do not follow from the load.
CLOCKS = ("sm_clock_mhz", "memory_clock_mhz", "power_limit_w")


def _below(path: str, names: str) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for name in names.split())


# Reason why facts are not compared here -> these facts.
MAY_DIFFER: dict[str, tuple[str, ...]] = {
    "another rule, or another part of this one, compares it": (
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
    "it names one launch, or one process of it": (
        *("launch", "campaign", "repeat", "part", "skipped", "provenance.command"),
        *_below(RANKS, "rank local_rank pid device clock_offset_s"),
        *_below("provenance.slurm", "SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_NNODES "
                "SLURM_STEP_ID SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID"),
        *_below("provenance.environment", "NCCL_COMM_ID NCCL_HOSTID"),
        f"{DETAILS}.command.line", *_below("case.training", "checkpoints steps_file"),
    ),
    "it is drawn anew for each launch, so that order and seed vary": (
        *("order_seed", "provenance.seed", f"{DETAILS}.order_seed"),
        *_below("case", "position training.seed factors.seed"),
    ),
    "it describes the file format": ("schema", "case.schema"),
    # How a session was started; the record of a case holds what it was measured with.
    "the record of a case holds the part that matters": (
        "measured_with", "studies", "provenance.dropped_environment",
        *_below(DETAILS, "ignored command.over command.metrics input"),
    ),
    "the digest identifies the image": ("provenance.image_path",),
    "it does not affect the timing": _below("provenance", "pytest pytest_benchmark"),
    "a job numbers the devices that it was given": ("provenance.environment.CUDA_VISIBLE_DEVICES",),
    "a processor's clock depends on the number of busy cores": (
        f"{TELEMETRY}.cpu_frequency_mhz",
    ),
    "it depends on the placement of ranks": _below(
        "provenance.transport", "adapters transports links"
    ),
    "it depends on the settings of DDP and the order in which gradients are ready": (
        f"{DETAILS}.bucket_bytes",
    ),
    "it depends on the global batch": _below("case.training", "lr samples_per_epoch"),
    "it is measured": (
        *_below("case", "peak_memory_bytes peak_reserved_bytes training.rows "
                "training.best_accuracy training.time_to_target_s"),
        *_below(DETAILS, "algbw_gb_per_s busbw_gb_per_s bucket_lead_s first_reduce_s loader_idle "
                "rank_phase_s"),
        *_below(TELEMETRY, "memory_utilisation gpu_memory_bytes gpu_memory_total_bytes power_w "
                "temperature_c energy_j process_cores rss_bytes cpu_s core_utilisation elapsed_s"),
    ),
}  # fmt: skip
LISTED = frozenset(name for names in MAY_DIFFER.values() for name in names)
# Facts absent here are "not set"; other absent facts are unknown and not compared.
SETTINGS = ("provenance.environment", "case.factors", f"{DETAILS}.ddp_settings")
# Variables that name a file of the launch.
OF_A_FILE = "_FILE"
# Sizes measured further apart in time did not share the state of the machine.
FAR_APART = timedelta(hours=12)

Facts = dict[str, str]


@rule("circumstances", "warning", "this may be the cause of a difference in speed",
      "measure all sizes in turn, on the same hosts, with one commit and the same "
      "settings")  # fmt: skip
def circumstances(evidence: Evidence) -> Iterator[Finding]:
    """A recorded fact differs at a size or in a launch: host, date, commit, setting, clock.

    All recorded facts are compared except those that `--rules --json` lists with a reason.
    """
    launches = evidence.results.launches
    entries = {(entry.launch.name, *entry.point): entry for entry in evidence.entries}
    facts = {launch.name: flat(launch.facts) for launch in launches}
    about = {launch.name: launch.about for launch in launches}
    for series in evidence.measured:
        places = [(row.launch, row.case, row.world_size) for p in series.points for row in p.rows]
        own = [entries[place] for place in places if place in entries]
        cores = _other_cores(own)
        known = [
            facts[entry.launch.name] | flat(entry.block, "case") | cores.get(entry.launch.name, {})
            for entry in own
        ]
        yield from _odd_entries(own, known)
        for name in CLOCKS:
            yield from _other_gauge(series, name)
    # Files of pytest-benchmark that were taken for repeats.
    for series, point in ((own, p) for own in evidence.measured for p in own.points):
        known = [about.get(row.launch, {}) for row in point.rows]
        for fact in dict.fromkeys(name for facts_of_file in known for name in facts_of_file):
            values = list(dict.fromkeys(each[fact] for each in known if fact in each))
            if len(values) > 1:
                text = f"its files are not repeats: {fact} varies: {joined(values)}"
                action = ("compare two of them with lockstep compare A B, or give "
                          "only those of one commit and host")  # fmt: skip
                size = point.world_size
                yield in_series(
                    "history", text, series, size, action=action, fact=fact, found=values
                )
    yield from _far_from_others(launches)


def flat(value: Any, path: str = "") -> Facts:
    """Return the facts below a path, except those of `MAY_DIFFER`, as text by full path."""
    if path in LISTED or path.endswith(OF_A_FILE) or value is None:
        return {}
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        # A list of ranks: the values of all ranks.
        names = dict.fromkeys(name for rank in value for name in rank)
        value = {name: sorted({str(rank.get(name)) for rank in value}) for name in names}
    if isinstance(value, dict):
        facts = {path: ""} if path in SETTINGS else {}
        for name, item in value.items():
            facts |= flat(item, f"{path}.{name}" if path else str(name))
        return facts
    if isinstance(value, list):
        is_text = value and all(isinstance(item, str) for item in value)
        return {path: ", ".join(value)} if is_text else {}
    # Three digits, as in reports: memory sizes of equal nodes differ by a few kilobytes.
    is_amount = isinstance(value, float) or (isinstance(value, int) and path.endswith("_bytes"))
    return {path: f"{value:.3g}" if is_amount else str(value)}


def _odd_entries(entries: Sequence[Entry], known: Sequence[Facts]) -> Iterator[Finding]:
    """Yield the launches of a series in which a fact differs from that of most launches."""

    def sizes(pairs: Sequence[tuple[Entry, str]]) -> list[int]:
        return sorted({entry.point[1] for entry, _ in pairs})

    for path in dict.fromkeys(path for facts in known for path in facts):
        group = next((name for name in SETTINGS if path.startswith(f"{name}.")), path)
        pairs = [
            (entry, facts.get(path, "not set"))
            for entry, facts in zip(entries, known, strict=True)
            if group in facts
        ]
        fact = path.rpartition(".")[2]
        for usual, odd in odd_ones(pairs, [value for _, value in pairs]):
            value, usually, at = odd[0][1], usual[0][1], joined(sizes(odd))
            values = {"value": value, "usual": usually, "sizes": sizes(odd), "fact": fact}
            kind, where = "circumstance", odd
            text = f"{fact} is {value} at world size {at}, but {usually} in most launches"
            if len(usual) == len(odd):
                kind, where = "circumstances-differ", [*usual, *odd]
                values["usual_sizes"] = sizes(usual)
                text = f"the launches differ: {fact} is {usually} at world size"
                text = f"{text} {joined(sizes(usual))}, and {value} in as many at {at}"
            # A fact of a launch holds for all of its cases.
            is_of_case = path.startswith("case.")
            yield Finding(
                kind, text, values=values, cases=(where[0][0].case,) if is_of_case else (),
                world_sizes=tuple(sizes(where)) if is_of_case else (),
                launches=tuple(dict.fromkeys(entry.launch.name for entry, _ in where)),
            )  # fmt: skip


def _other_cores(entries: Sequence[Entry]) -> dict[str, Facts]:
    """Return the cores per rank of each launch, where no usual way of sharing cores explains them.

    Launchers give each rank a fixed number, or all cores of its host, or an equal part of these.
    """
    shares = {}
    for launch in {entry.launch.name: entry.launch for entry in entries}.values():
        host = [
            rank.get("cores") or [] for rank in launch.ranks if rank.get("host") == launch.hosts[0]
        ]
        if host and all(host):
            together = len({core for cores in host for core in cores})
            shares[launch.name] = (len(host[0]), together, together / len(host))
    if any(len(set(column)) == 1 for column in zip(*shares.values(), strict=True)):
        return {}
    return {name: {"provenance.cores_per_rank": str(own[0])} for name, own in shares.items()}


def _other_gauge(series: Series, name: str) -> Iterator[Finding]:
    """Yield the sizes at which the means of all ranks lie outside those of all other sizes.

    For utilisation, and with two sizes, only lower means count: more ranks wait more.
    """
    means: dict[int, list[float]] = {}
    for row in (row for point in series.points for row in point.rows):
        telemetry = row.details.get("telemetry")
        gauge = telemetry.get(name) if isinstance(telemetry, dict) else None
        ranks = gauge.get("mean") if isinstance(gauge, dict) else None
        for mean in ranks if isinstance(ranks, list) else []:
            if isinstance(mean, int | float):
                means.setdefault(row.world_size, []).append(mean)
    for size, own in means.items():
        others = [mean for other, known in means.items() if other != size for mean in known]
        is_low = others and max(own) < (1 - NOTABLE_LOSS) * min(others)
        is_high = len(means) > 2 and (1 - NOTABLE_LOSS) * min(own) > max(others)
        if is_low or (is_high and name in CLOCKS):
            value, usual = median(own), median(others)
            text = f"{name} is {value:.3g}, but {usual:.3g} at the other sizes"
            yield in_series("gauge", text, series, size, fact=name, value=value, usual=usual)


def _far_from_others(launches: Sequence[Launch]) -> Iterator[Finding]:
    """Yield the sizes that share no host with another size, or began far from all others in time.

    With two sizes, only the larger is named.
    """
    sizes: dict[int, list[Launch]] = {}
    for launch in launches:
        sizes.setdefault(int(launch.facts.get("world_size") or 0), []).append(launch)
    hosts = {size: {h for run in own for h in run.named_hosts} for size, own in sizes.items()}
    times = {size: [t for run in own if (t := begun(run))] for size, own in sizes.items()}
    chosen = sorted(sizes)[len(sizes) == 2 :]
    for size in chosen:
        others = {host for other in sizes if other != size for host in hosts[other]}
        if hosts[size] and others and not hosts[size] & others:
            own, theirs = sorted(hosts[size]), sorted(others)
            text = f"the ranks ran on {joined(own)}, those of the other sizes on {joined(theirs)}"
            values: dict[str, Any] = {"own": own, "others": theirs}
            yield Finding("other-hosts", text, values=values, world_sizes=(size,))
    for size in chosen:
        gaps = [
            abs(own - when)
            for own in times[size] for other in sizes if other != size for when in times[other]
        ]  # fmt: skip
        if gaps and min(gaps) > FAR_APART:
            date, hours = str(min(times[size]).date()), min(gaps) / timedelta(hours=1)
            text = (
                f"this size was measured on {date}, {hours:.0f} hours from the nearest other size"
            )
            values = {"hours": hours, "date": date}
            yield Finding("other-date", text, values=values, world_sizes=(size,))


@rule("idle-devices", "note", "there they wait for other ranks, for input or for kernel launches",
      "see which cause the report names for this size: communication, input or a fixed "
      "cost")  # fmt: skip
def idle_devices(evidence: Evidence) -> Iterator[Finding]:
    """GPUs are busy for less of the time at one size than at any other."""
    for series in evidence.measured:
        yield from _other_gauge(series, "gpu_utilisation")


@rule("several-settings", "note", "each setting is a series of its own, with its own baseline",
      "compare the series at one size, or measure all launches with one setting")  # fmt: skip
def several_settings(evidence: Evidence) -> Iterator[Finding]:
    """Launches of a case differ in a setting that should be constant, such as threads."""
    for series in evidence.measured:
        if series.main and any(point is series.base for point in series.points):
            sizes = [point.world_size for point in series.points]
            text = f"the launches differ in a setting: some have {series.layout}"
            yield in_series("other-setting", text, series, *sizes, setting=series.layout)


def _job(launch: Launch) -> Any:
    """Return the number of a launch's Slurm job, if it has one."""
    return (launch.provenance.get("slurm") or {}).get("SLURM_JOB_ID")


@rule("shared-job", "warning",
      "the effect of these nodes is in every repeat, so intervals do not cover it",
      "run each repeat in its own job (share_job = false)", doubts=False)  # fmt: skip
def shared_job(evidence: Evidence) -> Iterator[Finding]:
    """Repeats of a world size ran in one Slurm job, on the same nodes."""
    jobs: dict[tuple[int, str], dict[str, str]] = {}
    for launch in evidence.results.launches:
        size, repeat = launch.facts.get("world_size"), launch.facts.get("repeat")
        if (job := _job(launch)) and size and repeat is not None:
            jobs.setdefault((int(size), str(job)), {})[str(repeat)] = launch.name
    for (size, job), repeats in jobs.items():
        if (count := len(repeats)) > 1:
            yield Finding("one-job", f"{count} repeats ran in job {job}", world_sizes=(size,),
                          values={"count": count, "job": job},
                          launches=tuple(repeats.values()))  # fmt: skip


@rule("not-in-turn", "warning", "a drift of the machine would look like scaling",
      "measure each repeat of all sizes before the next repeat, as lockstep run does")  # fmt: skip
def not_in_turn(evidence: Evidence) -> Iterator[Finding]:
    """Nearly all launches of a size ran before, or after, those of the smallest size.

    Only launches of the same job, or of no job, are compared: they may share a machine's state.
    """
    times: dict[int, list[tuple[Any, datetime]]] = {}
    for launch in evidence.results.launches:
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
        text = f"the launches at world size {joined(sizes)} came all or nearly all before, or"
        text = f"{text} after, those at {base}"
        values: Mapping[str, Any] = {"sizes": sizes, "base": base}
        yield Finding("not-in-turn", text, values=values, world_sizes=tuple(sizes))
