"""The rules about what is recorded of launches and cases: equal within a series, or listed here.

Every fact of a record is compared over the launches of a series, at all world sizes, unless
`OTHER_RULES` names the rule that compares it, or `MAY_DIFFER` the reason why it may differ. A fact
has the path that it has in a result; what is listed stands for all below it.

Rules about the repeats of points: missing ones, their jobs, rounds and order in time.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby, product
from statistics import median
from typing import Any

from lockstep.core.processes import THREAD_VARIABLES
from lockstep.core.record import POOLING_FACTS
from lockstep.report.check.evidence import Entry, Evidence, Hit, hit, rule
from lockstep.report.check.work import NOTABLE_LOSS
from lockstep.report.compute.replicates import MOST_APART, begun, lead
from lockstep.report.compute.scaling import Series
from lockstep.report.load.conflicts import BATCHES, OF_A_CASE, odd_ones
from lockstep.report.load.results import Launch

RANKS, DETAILS = "provenance.ranks", "case.details"
TELEMETRY = f"{DETAILS}.telemetry"
# What a device is set to, not what comes of the work.
CLOCKS = ("sm_clock_mhz", "memory_clock_mhz", "power_limit_w")
# Rule -> the facts that it compares.
OTHER_RULES: dict[str, tuple[str, ...]] = {
    "mixed-provenance": (
        *(f"provenance.{name}" for name in POOLING_FACTS), f"{RANKS}.device_name",
        f"{RANKS}.driver",
    ),
    "mixed-cases": (
        *(f"case.{name}" for name in (*OF_A_CASE, "workload_sha256")), f"{DETAILS}.gradient_bytes",
    ),
    "constant-work": (
        *(f"case.{name}" for name in BATCHES), f"{DETAILS}.out_of_memory",
        "case.factors.global_batch", "case.factors.local_batch",
    ),
    # Below: its hosts, its date, the cores of its ranks, and the clocks of its devices.
    "circumstances": (
        *("started", "case.rank_hosts", "provenance.hostname"), f"{RANKS}.host", f"{RANKS}.cores",
        *(f"{TELEMETRY}.{name}" for name in CLOCKS),
    ),
    "shared-gpu": (f"{RANKS}.gpu_uuid",),
    "idle-devices": (f"{TELEMETRY}.gpu_utilisation",),
    "unequal-ranks": (
        *("provenance.threads_per_rank", f"{RANKS}.num_threads"),
        *(f"provenance.environment.{name}" for name in THREAD_VARIABLES),
    ),
    "launch-disagrees": ("world_size", "num_nodes", "case.world_size", "case.num_nodes"),
    "uneven-rounds": ("rounds",),
    "missing-case": ("expected",),
    "failed-case": ("failed",),
    "unfinished-launch": ("complete", "in_flight"),
    "samples-time": (
        *("case.rank_round_s", "case.samples", "case.elapsed_s"),
        "case.mean_throughput_samples_per_s",
    ),
    "above-peak": ("case.mean_mfu",),
    "wrong-result": ("case.checks",),
    "alone-longer": tuple(
        f"{DETAILS}.{name}" for name in ("alone_step_s", "rank_alone_s", "rank_variant_s")
    ),
    "flagged": ("case.flags", "left_behind", "sessions", f"{TELEMETRY}.clocks_held_back",
                f"{TELEMETRY}.throttled_s"),
}  # fmt: skip
# Why facts may differ -> these facts.
MAY_DIFFER: dict[str, tuple[str, ...]] = {
    "it names one launch, or one process of it": (
        *("launch", "campaign", "repeat", "part", "skipped", "provenance.command"),
        *(f"{RANKS}.{name}" for name in ("rank", "local_rank", "pid", "device", "clock_offset_s")),
        *(f"provenance.slurm.SLURM_{name}" for name in (
            "JOB_ID", "JOB_NAME", "JOB_NODELIST", "NNODES", "STEP_ID", "ARRAY_JOB_ID",
            "ARRAY_TASK_ID")),
        "provenance.environment.NCCL_COMM_ID", "provenance.environment.NCCL_HOSTID",
        f"{DETAILS}.command.line", "case.training.checkpoints", "case.training.steps_file",
    ),
    "it is drawn anew for each launch, so that no order and no seed is always the same": (
        *("order_seed", "case.position", "provenance.seed", "case.training.seed"),
        "case.factors.seed", f"{DETAILS}.order_seed",
    ),
    "it is a form of the file": ("schema", "case.schema"),
    # What a session was started with beside; of it the record has what a case was measured with.
    "a case's own record has what of it counts": (
        "measured_with", "studies", "provenance.dropped_environment", f"{DETAILS}.ignored",
        f"{DETAILS}.command.over", f"{DETAILS}.command.metrics", f"{DETAILS}.input",
    ),
    "the digest of the image says which it is": ("provenance.image_path",),
    "nothing is timed by it": ("provenance.pytest", "provenance.pytest_benchmark"),
    "a job numbers its devices as it got them": ("provenance.environment.CUDA_VISIBLE_DEVICES",),
    "a processor's clock follows from how many of its cores are busy": (
        f"{TELEMETRY}.cpu_frequency_mhz",
    ),
    "it follows from where the ranks lie": tuple(
        f"provenance.transport.{name}" for name in ("adapters", "transports", "links")
    ),
    "it follows from the settings of DDP and the order in which gradients are ready": (
        f"{DETAILS}.bucket_bytes",
    ),
    "it follows from the global batch": ("case.training.lr", "case.training.samples_per_epoch"),
    "it is measured": (
        *("case.peak_memory_bytes", "case.peak_reserved_bytes", "case.training.rows"),
        *("case.training.best_accuracy", "case.training.time_to_target_s"),
        *(f"{DETAILS}.{name}" for name in (
            "algbw_gb_per_s", "busbw_gb_per_s", "bucket_lead_s", "first_reduce_s", "loader_idle",
            "rank_phase_s")),
        *(f"{TELEMETRY}.{name}" for name in (
            "memory_utilisation", "gpu_memory_bytes", "gpu_memory_total_bytes", "power_w",
            "temperature_c", "energy_j", "process_cores", "rss_bytes", "cpu_s",
            "core_utilisation", "elapsed_s")),
    ),
}  # fmt: skip
LISTED = frozenset(
    name for listed in (OTHER_RULES, MAY_DIFFER) for names in listed.values() for name in names
)
# Of these what is not there is not set; else it is unknown, and differs from nothing.
SETTINGS = ("provenance.environment", "case.factors", f"{DETAILS}.ddp_settings")
# Variables that name a file of the launch.
OF_A_FILE = "_FILE"
# Sizes measured so far apart did not share the state of a machine.
FAR_APART = timedelta(hours=12)

Facts = dict[str, str]
Sizes = Mapping[int, list[Launch]]


@rule(
    "circumstances", "warning", "it may be the cause of a difference between them",
    "measure all sizes in turn, on the same hosts, with one commit and the same settings",
    facts={
        "circumstance": "{fact} is {value} at world size {sizes}, and {usual} in most launches",
        "circumstances-differ": "the launches differ: {fact} is {usual} at world size "
        "{usual_sizes}, and {value} in as many at {sizes}",
        "history": "its files are no repeats but a history: {fact} is {found}",
        "other-hosts": "its ranks ran on {own}, those of the other sizes on {others}",
        "other-date": "it was measured on {date}, {hours:.0f} hours from the nearest other size",
    },
    actions={
        "history": "compare two of them, lockstep compare A B, or name those of one commit "
        "and host",
    },
)  # fmt: skip
def circumstances(evidence: Evidence) -> Iterator[Hit]:
    """What is recorded differs at a size or in a launch: host, date, commit, setting, clock.

    All that is recorded is compared, but for what `--rules --json` lists with its reason.
    """
    entries = {(entry.launch.name, *entry.point): entry for entry in evidence.entries}
    facts = {one.name: _flat(one.facts) for one in evidence.results.launches}
    for series in evidence.measured:
        places = [(row.launch, row.case, row.world_size) for p in series.points for row in p.rows]
        own = [entries[place] for place in places if place in entries]
        cores = _other_cores(own)
        known = [
            facts[entry.launch.name] | _flat(entry.block, "case") | cores.get(entry.launch.name, {})
            for entry in own
        ]
        yield from _odd_entries(own, known)
        for name in CLOCKS:
            yield from _other_gauge(series, name)
    sizes: dict[int, list[Launch]] = {}
    for launch in evidence.results.launches:
        sizes.setdefault(int(launch.facts.get("world_size") or 0), []).append(launch)
    yield from _histories(evidence)
    yield from _other_hosts(sizes)
    yield from _other_days(sizes)


def _histories(evidence: Evidence) -> Iterator[Hit]:
    """Yield what differs in the files of pytest-benchmark's that are taken for repeats."""
    about = {launch.name: launch.about for launch in evidence.results.launches}
    for series in evidence.measured:
        for point in series.points:
            known = [about.get(row.launch, {}) for row in point.rows]
            for fact in dict.fromkeys(name for one in known for name in one):
                found = list(dict.fromkeys(one[fact] for one in known if fact in one))
                if len(found) > 1:
                    yield hit("history", series, point.world_size, fact=fact, found=found)


@rule(
    "idle-devices", "note", "they wait there, for the other ranks, for input or for launches",
    "look at what the report says of that size: communication, input, a fixed cost",
)  # fmt: skip
def idle_devices(evidence: Evidence) -> Iterator[Hit]:
    """GPUs are busy for less of the time at one size than at any other."""
    for series in evidence.measured:
        yield from _other_gauge(series, "gpu_utilisation")


def _flat(value: Any, path: str = "") -> Facts:
    """Return the facts below a path that are not listed, each as text."""
    if path in LISTED or path.endswith(OF_A_FILE):
        return {}
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        # Of ranks, the values of all of them.
        names = dict.fromkeys(name for one in value for name in one)
        value = {name: sorted({str(one.get(name)) for one in value}) for name in names}
    if isinstance(value, dict):
        found = {path: ""} if path in SETTINGS else {}
        for name, one in value.items():
            found |= _flat(one, f"{path}.{name}" if path else str(name))
        return found
    if isinstance(value, list):
        is_text = value and all(isinstance(one, str) for one in value)
        return {path: ", ".join(value)} if is_text else {}
    if value is None:
        return {}
    # To as many digits as a report shows: a node has a few kilobytes more than the next.
    is_amount = isinstance(value, float) or (isinstance(value, int) and path.endswith("_bytes"))
    return {path: f"{value:.3g}" if is_amount else str(value)}


def _odd_entries(entries: Sequence[Entry], known: Sequence[Facts]) -> Iterator[Hit]:
    """Yield the launches of a series in which a fact is not what it is in most."""
    for path in dict.fromkeys(path for facts in known for path in facts):
        group = next((one for one in SETTINGS if path.startswith(f"{one}.")), path)
        told = [
            (entry, facts.get(path, "not set"))
            for entry, facts in zip(entries, known, strict=True)
            if group in facts
        ]
        for usual, odd in odd_ones(told, [value for _, value in told]):
            values = {"value": odd[0][1], "usual": usual[0][1], "sizes": _sizes(odd)}
            kind, where = "circumstance", odd
            if len(usual) == len(odd):
                kind, where = "circumstances-differ", [*usual, *odd]
                values["usual_sizes"] = _sizes(usual)
            values["fact"] = path.rpartition(".")[2]
            launches = tuple(dict.fromkeys(entry.launch.name for entry, _ in where))
            # What a launch has is so in all of its cases.
            of_case = path.startswith("case.")
            cases = (where[0][0].case,) if of_case else ()
            yield Hit(kind, values, cases, tuple(_sizes(where)) if of_case else (), launches)


def _sizes(told: Sequence[tuple[Entry, str]]) -> list[int]:
    return sorted({entry.point[1] for entry, _ in told})


def _other_cores(entries: Sequence[Entry]) -> dict[str, Facts]:
    """Return each launch's cores of a rank, where they differ otherwise than launchers share them.

    Launchers give each rank as many at every size, or each all that its host has, or bind the ranks
    of a host to equal parts of these.
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


def _other_gauge(series: Series, name: str) -> Iterator[Hit]:
    """Yield the sizes at which all ranks' means lie beyond those of all ranks elsewhere.

    Of utilisation, and of two sizes, the lower one: more ranks wait for one another more.
    """
    found = {
        point.world_size: [mean for row in point.rows for mean in _means(row.details, name)]
        for point in series.points
    }
    means = {size: own for size, own in found.items() if own}
    for size, own in means.items():
        others = [mean for other, known in means.items() if other != size for mean in known]
        is_low = others and max(own) < (1 - NOTABLE_LOSS) * min(others)
        is_high = len(means) > 2 and (1 - NOTABLE_LOSS) * min(own) > max(others)
        if is_low or (is_high and name in CLOCKS):
            yield hit("gauge", series, size, fact=name, value=median(own), usual=median(others))


def _means(details: Mapping[str, Any], name: str) -> list[float]:
    """Return the mean of each rank where telemetry has it."""
    known = details.get("telemetry")
    gauge = known.get(name) if isinstance(known, dict) else None
    means = gauge.get("mean") if isinstance(gauge, dict) else None
    ranks = means if isinstance(means, list) else []
    return [mean for mean in ranks if isinstance(mean, int | float)]


def _other_hosts(sizes: Sizes) -> Iterator[Hit]:
    """Yield the sizes that share no host with any other; of two sizes, the larger."""
    hosts = {
        size: {host for launch in launches for host in launch.named_hosts}
        for size, launches in sizes.items()
    }
    for size, own in sorted(hosts.items())[len(hosts) == 2 :]:
        others = {host for other, known in hosts.items() if other != size for host in known}
        if own and others and not own & others:
            values = {"own": sorted(own), "others": sorted(others)}
            yield Hit("other-hosts", values, world_sizes=(size,))


def _other_days(sizes: Sizes) -> Iterator[Hit]:
    """Yield the sizes whose launches all began far from those of all others; of two, the larger."""
    times = {size: list(filter(None, map(begun, launches))) for size, launches in sizes.items()}
    for size, own in sorted(times.items())[len(times) == 2 :]:
        others = [when for other, known in times.items() if other != size for when in known]
        if own and others and all(abs(a - b) > FAR_APART for a in own for b in others):
            gap = min(abs(a - b) for a in own for b in others)
            values = {"hours": gap / timedelta(hours=1), "date": str(min(own).date())}
            yield Hit("other-date", values, world_sizes=(size,))


@rule(
    "several-settings", "note", "they are series of their own, each over its own baseline",
    "compare them at one size, or measure all launches with one setting",
    facts={"other-setting": "its launches differ in a setting, and some have {setting}"},
)  # fmt: skip
def several_settings(evidence: Evidence) -> Iterator[Hit]:
    """Launches of a case differ in a setting that is kept over world sizes, such as threads."""
    for series in evidence.measured:
        if series.main and any(point is series.base for point in series.points):
            sizes = [point.world_size for point in series.points]
            yield hit("other-setting", series, *sizes, setting=series.layout)


@rule(
    "repeat-holes", "warning", "were the best launches kept?",
    "keep every launch, or say which were left out and why",
    facts={"repeat-holes": "repeats {gone} are missing, and {there} are there"},
)  # fmt: skip
def repeat_holes(evidence: Evidence) -> Iterator[Hit]:
    """Numbers of repeats are missing among those of a world size, and no plan names them."""
    # What cannot be read is there, and what was planned is named by `missing-case`.
    if evidence.results.unread or evidence.results.campaign:
        return
    known = [
        (int(launch.facts["world_size"]), int(repeat))
        for launch in evidence.results.launches
        if (repeat := str(launch.facts.get("repeat"))).isdecimal()
        and launch.facts.get("world_size")
    ]
    for size, group in groupby(sorted(set(known)), key=lambda pair: pair[0]):
        there = [repeat for _, repeat in group]
        gone = sorted(set(range(there[-1])) - set(there))
        if gone:
            yield Hit("repeat-holes", {"there": there, "gone": gone}, world_sizes=(size,))


@rule(
    "shared-job", "warning", "what its nodes add is in all of them, and in no interval",
    "send each repeat in a job of its own: share_job = false",
    doubts=False,
    facts={"one-job": "{count} repeats ran in job {job}"},
)  # fmt: skip
def shared_job(evidence: Evidence) -> Iterator[Hit]:
    """Repeats of a world size ran in one Slurm job, on the same nodes."""
    jobs: dict[tuple[int, str], dict[str, str]] = {}
    for launch in evidence.results.launches:
        job = (launch.provenance.get("slurm") or {}).get("SLURM_JOB_ID")
        size, repeat = launch.facts.get("world_size"), launch.facts.get("repeat")
        if job and size and repeat is not None:
            jobs.setdefault((int(size), str(job)), {})[str(repeat)] = launch.name
    for (size, job), repeats in jobs.items():
        if len(repeats) > 1:
            values = {"count": len(repeats), "job": job}
            yield Hit("one-job", values, world_sizes=(size,), launches=tuple(repeats.values()))


@rule(
    "not-in-turn", "warning", "a machine that drifts meanwhile looks like scaling",
    "measure each repeat of all sizes before the next repeat, as lockstep run does",
    facts={
        "not-in-turn": "the launches at world size {sizes} came all or nearly all before, "
        "or after, those at {base}",
    },
)  # fmt: skip
def not_in_turn(evidence: Evidence) -> Iterator[Hit]:
    """The launches of a size came all, or nearly all, before or after those of the smallest size.

    Held against each other are launches of one job, or of none, that may share a machine's state.
    """
    sizes: dict[int, list[tuple[Any, datetime]]] = {}
    for launch in evidence.results.launches:
        job = (launch.provenance.get("slurm") or {}).get("SLURM_JOB_ID")
        if (when := begun(launch)) and (size := launch.facts.get("world_size")):
            sizes.setdefault(int(size), []).append((job, when))
    base = min(sizes, default=0)
    found = []
    for size in sorted(sizes)[1:]:
        pairs = [
            (own, other) for (job, own), (other_job, other) in product(sizes[base], sizes[size])
            if job == other_job and abs(own - other) <= FAR_APART
        ]  # fmt: skip
        # One launch of each is in some order, whatever was planned.
        if len(pairs) > max(len(sizes[base]), len(sizes[size])) and abs(lead(pairs)) > MOST_APART:
            found.append(size)
    if found:
        yield Hit("not-in-turn", {"sizes": found, "base": base}, world_sizes=tuple(found))


@rule(
    "uneven-rounds", "warning", "were rounds left out?",
    "measure every launch with the same --rounds",
    facts={"round-counts": "the launches hold {counts} rounds"},
)  # fmt: skip
def uneven_rounds(evidence: Evidence) -> Iterator[Hit]:
    """The launches of a case hold other numbers of rounds, though a fixed number was asked for."""
    if any(_has_goal(launch) for launch in evidence.results.launches):
        return
    for series in evidence.measured:
        counts = {point.world_size: [row.rounds for row in point.rows] for point in series.points}
        found = {rounds for own in counts.values() for rounds in own if rounds}
        if len(found) > 1:
            most = max(found)
            few = [size for size, own in counts.items() if set(own) != {most}]
            yield hit("round-counts", series, *few, counts=sorted(found), most=most)


def _has_goal(launch: Launch) -> bool:
    """Tell whether a launch measured until it was precise enough."""
    words: list[Any] = launch.provenance.get("command") or []
    return any(str(word).startswith("--benchmark-precision") for word in words)
