"""What surrounds the numbers: flags, gaps, method and provenance, as plain data.

What `lockstep check` finds, on the page: errors first, verdicts they block, and all of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.core.formats import DASH, counted, listed, number
from lockstep.core.record import DDP_SETTINGS, LOADER_SETTINGS
from lockstep.core.studies import OTHER
from lockstep.report.check import checker, evidence
from lockstep.report.check.checker import Finding, blocked_by
from lockstep.report.compute import quantities
from lockstep.report.compute.diagnosis import FEWEST, MODE_FEWEST
from lockstep.report.compute.scaling import Series
from lockstep.report.load import gaps as missing
from lockstep.report.load.gaps import Gap
from lockstep.report.load.results import Launch, Results, Row
from lockstep.report.page.parts import GIGA, Panel, Table, panel, table
from lockstep.report.words.method import timing

# Facts of provenance that get a row of their own, in this order; the others follow.
FIRST_FACTS = (
    "lockstep_version", "torch", "cuda", "cudnn", "nccl", "driver", "backend", "python",
    "image_path", "image_sha256", "device_names", "git_commit", "git_dirty", "project_commit",
    "project_dirty", "threads_per_rank", "cores_per_node", "memory_bytes", "os", "kernel",
    "seed", "command",
)  # fmt: skip
# Those that the closed table names.
IN_SHORT = ("torch", "cuda", "nccl", "driver", "device_names")
# Column -> gauge of `lockstep.machine.telemetry`, and what makes the column's unit of it.
MEANS = {
    "GPU in use (%)": ("gpu_utilisation", 100),
    "GPU memory in use (GB)": ("gpu_memory_bytes", 1 / GIGA),
    "Power (W)": ("power_w", 1),
    "Temperature (\u00b0C)": ("temperature_c", 1),
    "Cores kept busy": ("process_cores", 1),
    "Resident (GB)": ("rss_bytes", 1 / GIGA),
}
MEANT = (
    "What device and process did are means over the timed rounds of the launch's cases; the rows "
    "that they are made of are in telemetry/ beside the launch's journal."
)

PROGRAM = (
    "A program is run whole, after runs that do not count. Its wall time lasts from the call of "
    "what starts it until that has ended, its start included; other metrics are what it printed."
)
TRAINING = (
    "A training run goes through whole epochs. An epoch lasts from the barrier before its first "
    "update to the last one of the slowest rank; it is then validated on the whole validation set, "
    "each item counted once, and that is not in its time. Runs are pooled where they agree in "
    "model, data, precision, batch, optimizer, rate, schedule, epochs, device and ranks: then "
    "seeds and repeats are all that is left. A mean accuracy has Student's t interval over seeds."
)


RATES = (
    "Throughput is the samples of all ranks in a step, counted once, over the step time, so "
    "that throughput times time is samples. Imbalance is what the slowest rank of a step takes "
    "longer than a rank usually does, in milliseconds; peak memory is the largest rank's. MFU "
    "is model FLOP/s over the datasheet peak of all devices, and absent where that is unknown."
)
MEANINGS = (
    "Speed-up is the ratio of throughput to the baseline, the smallest world size of the "
    "series unless another was asked for; where only times are known, the ratio of work per "
    "second. Parallel efficiency is speed-up divided by the ratio of world sizes. For weak "
    "scaling that equals the baseline's step time over the point's, given as time ratio.",
    "Intervals are 95 % Student t on the logarithm of one value per launch; those of ratios "
    "are Welch's and contain the baseline's uncertainty. They are centred on the geometric "
    "mean of the launches, while a point is their median: of skewed launches the median may "
    "lie off the centre, or outside. The baseline's own ratio is 1 by definition and has no "
    "interval, and a point with one launch has none.",
)


def flags(series: Sequence[Series]) -> Panel | None:
    """Return the flags with the points they concern, or None without any."""
    places: dict[tuple[int, str], list[str]] = {}
    for curve in series:
        for point in curve.points:
            texts = dict.fromkeys(map(str, point.flags))
            for flag in zip(point.flag_numbers, texts, strict=True):
                places.setdefault(flag, []).append(f"{curve.label} at {point.world_size}")
    if not places:
        return None
    rows = [
        [str(number), flag, listed(where, 4), str(len(where))]
        for (number, flag), where in sorted(places.items())
    ]
    made = table(
        "Flags and the points they concern", ("Number", "Flag", "Where", "Points"), rows, 3,
        row_ids=[f"flag-{row[0]}" for row in rows], folded=False,
    )  # fmt: skip
    lead = "A flagged point is no evidence for a proposal until its cause is gone."
    return panel("flags", "Flags", lead=[lead], tables=[made])


def gaps(
    results: Results, is_meant: Callable[[Gap], bool] = lambda _: True
) -> list[tuple[str, str, str]]:
    """Return the gaps that are meant as (what, why, launches); those of one test are one line."""
    launches: dict[tuple[str, str], list[str]] = {}
    for gap in filter(is_meant, missing.gaps(results)):
        what = f"every case at world size {gap.world_size}" if gap.case is None else gap.case
        launches.setdefault((what, _why(gap)), []).append(gap.launch)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (what, why), names in launches.items():
        alike.setdefault((what.partition("[")[0], why, listed(names, 8)), []).append(what)
    return [
        (cases[0] if len(cases) == 1 else f"{test}, {counted(len(cases), 'case')}", why, names)
        for (test, why, names), cases in alike.items()
    ]


def _why(gap: Gap) -> str:
    if gap.kind in ("failed", "skipped"):
        return f"{gap.kind}: {gap.reason}"
    if gap.kind == "too-few-gpus":
        return f"skipped: it needs {gap.world_size} GPUs, and the machine has {gap.num_gpus}"
    if gap.kind == "below-floor":
        return "left out: a smaller size missed until_efficiency"
    if gap.kind == "not-run":
        return "the launch was planned and left no result"
    return "expected, but the launch holds no result"


def not_measured(results: Results) -> Panel | None:
    """Return the gaps as a panel, or None where all that was planned was measured."""
    lines = gaps(results)
    broken = [launch.name for launch in results.launches if not launch.complete]
    if not (lines or broken or results.unread):
        return None
    made = panel("gaps", "Not measured")
    made["lead"] = [f"Not in this report, for it cannot be read: {why}." for why in results.unread]
    if broken:
        made["lead"].append(
            f"{counted(len(broken), 'launch')} incomplete: {listed(broken)}. "
            "What was finished is in this report."
        )
    if lines:
        caption, columns = "Cases and launches without a result", ("What", "Why", "Launches")
        made["tables"] = [table(caption, columns, lines, 3, "")]
    return made


def method(results: Results, series: Sequence[Series], threshold: float) -> Panel:
    """Return how the numbers came about, and what each of them means."""
    measured = [
        curve for curve in series if curve.row.origin == "measured" and curve.row.study != OTHER
    ]
    lead = [TRAINING] if any(curve.row.training for curve in measured) else []
    lead += [PROGRAM] if any(curve.row.program for curve in measured) else []
    if steps := [curve for curve in measured if not (curve.row.training or curve.row.program)]:
        versions = (launch.provenance.get("lockstep_version") for launch in results.launches)
        lead += timing(
            [point for curve in steps for point in curve.points],
            listed(dict.fromkeys(str(one) for one in versions if one)) or DASH,
            [launch.facts.get("warmup_rounds") for launch in results.launches],
            bool(results.campaign.get("launches")),
        )
        lead.append(RATES)
    lead += [
        *MEANINGS,
        f"Efficiency is called good from {100 * threshold:.0f} %. Device-hours are world size "
        "times hours: of one run in tables of times, of a million samples elsewhere, at the mean "
        "step, since a cost adds up; all else is at the median, the steady state.",
    ]
    # How many rounds lie far from the others, or that there are too few to tell.
    rows = [row for curve in series for point in curve.points for row in point.rows]
    count = sum(row.num_far_out or 0 for row in rows)
    rounds = sum(row.rounds or 0 for row in rows if row.num_far_out is not None)
    timed = [row.rounds for row in rows if row.origin == "measured" and row.rounds]
    if timed and min(timed) < FEWEST:
        lead.append(
            f"Launches of fewer than {FEWEST} rounds show neither drift nor rounds far out, fewer "
            f"than {MODE_FEWEST} no two modes: measure with --rounds 20 to look for them."
        )
    elif count:
        lead.append(
            f"{count} of {counted(rounds, 'timed round')} lie far out, more than three "
            "interquartile ranges from the nearer quartile of their launch (Tukey). None is left "
            "out."
        )
    return panel("method", "Method", lead=lead)


def provenance(results: Results) -> Panel | None:
    """Return versions, hardware, launches and the map of ranks, or None where none is known."""
    launches = [launch for launch in results.launches if launch.provenance]
    tables = []
    if launches:
        tables += [_launch_table(results.launches), _fact_table(launches)]
    tables += _settings_tables(results.rows)
    if launches:
        # The ranks and the environment are those of the largest launch.
        name = max(launches, key=lambda launch: launch.facts.get("world_size") or 0).name
        known = next(launch.provenance for launch in launches if launch.name == name)
        if ranks := known.get("ranks"):
            own = [row for row in results.rows if row.launch == name]
            tables.append(_rank_table(name, ranks, own))
        if environment := known.get("environment"):
            rows = [[variable, str(value)] for variable, value in sorted(environment.items())]
            tables.append(table(
                f"Environment of launch {name}", ("Variable", "Value"), rows, 2, "",
                finding=counted(len(rows), "variable"),
            ))  # fmt: skip
    return panel("provenance", "Provenance", tables=tables) if tables else None


def _launch_table(launches: list[Launch]) -> Table:
    columns = (
        "Launch", "Campaign", "Started", "Host", "State", "Ranks", "Nodes", "Repeat", "Cases",
    )  # fmt: skip
    rows = [
        [
            launch.name,
            *(_cell(launch.facts.get(key)) for key in ("campaign", "started")),
            _cell(launch.provenance.get("hostname")),
            "complete" if launch.complete else "incomplete",
            *(_cell(launch.facts.get(key)) for key in ("world_size", "num_nodes", "repeat")),
            str(launch.num_cases),
        ]
        for launch in launches
    ]
    broken = sum(not launch.complete for launch in launches)
    ended = f"{broken} incomplete" if broken else "all complete"
    text = f"{counted(len(launches), 'launch')}, {ended}"
    return table("Launches", columns, rows, 5, "", finding=text)


def _fact_table(launches: list[Launch]) -> Table:
    """Return each fact with its values, and the launches of each where they differ."""
    facts: dict[str, str] = {}
    for name in dict.fromkeys([*FIRST_FACTS, *(n for one in launches for n in one.provenance)]):
        if name in ("ranks", "environment", "hostname"):
            continue
        values: dict[str, list[str]] = {}
        for launch in launches:
            values.setdefault(_fact(name, launch.provenance.get(name)), []).append(launch.name)
        if set(values) != {DASH}:
            facts[name] = next(iter(values)) if len(values) == 1 else "; ".join(
                f"{value} ({listed(who, 4)})" for value, who in values.items()
            )  # fmt: skip
    text = listed(f"{name} {facts[name]}" for name in IN_SHORT if name in facts)
    rows = [[name, value] for name, value in facts.items()]
    return table("Software and hardware of the launches", ("Fact", "Value"), rows, 2, finding=text)


def _settings_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the settings of DDP and of loaders that were in force, with the studies of each."""
    studies: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in rows:
        for part, key in (("DDP", DDP_SETTINGS), ("loader", LOADER_SETTINGS)):
            for name, value in (row.details.get(key) or {}).items():
                studies.setdefault((part, name, _cell(value)), {})[row.study] = None
    if not studies:
        return []
    lines = [[*setting, listed(names)] for setting, names in sorted(studies.items())]
    several = len({setting[:2] for setting in studies}) < len(studies)
    return [table(
        "Settings of DDP and loaders in force", ("Of", "Setting", "Value", "Studies"),
        lines, 4, "", finding="several values" if several else "one value each",
    )]  # fmt: skip


def _rank_table(name: str, ranks: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Table:
    """Return the ranks of a launch, and what telemetry has of each."""
    keys = ("rank", "local_rank", "host", "device", "device_name", "cores")
    columns = ("Rank", "Local rank", "Host", "Device", "Device name", "Cores")
    cells = [
        [*(_cell(rank.get(key)) for key in keys),
         *(number(quantities.rank_mean(rows, gauge, i), scale=scale)
           for gauge, scale in MEANS.values())]
        for i, rank in enumerate(ranks)
    ]  # fmt: skip
    hosts = len({rank.get("host") for rank in ranks})
    text = f"{counted(len(ranks), 'rank')} on {counted(hosts, 'host')}"
    made = table(f"Ranks of launch {name}", (*columns, *MEANS), cells, len(keys), "", finding=text)
    if not all(column["text"] for column in made["columns"]):
        made["note"] = " ".join(filter(None, (made.get("note"), MEANT)))
    return made


def _fact(name: str, value: object) -> str:
    if name == "transport" and isinstance(value, Mapping):  # every link would be a page of its own
        counts = value.get("transports")
        links = counts.items() if isinstance(counts, Mapping) else ()
        return listed((f"{kind}: {count} links" for kind, count in links), 8)
    if name == "command" and isinstance(value, list):  # it is read, and copied, with its spaces
        return " ".join(map(str, value))
    return _cell(value)


def _cell(value: object) -> str:
    if value is None or value in ("", [], {}):
        return DASH
    if isinstance(value, list | tuple):
        return listed(value, 16)
    if isinstance(value, dict):
        return listed((f"{k}={v}" for k, v in value.items()), 16)
    return number(value) if isinstance(value, float) else str(value)


# Errors that stand above everything else; the panel has them all.
MAX_FIRST = 5
# Places that one line of the panel names.
MAX_PLACES = 40
PANEL = "check"


def error_lines(findings: Sequence[Finding]) -> list[str]:
    """Return the errors as sentences, for the top of the page."""
    groups = checker.grouped(finding for finding in findings if finding.level == "error")
    lines = [
        f"{group.first.rule}: {group.where()}: {group.message()}." for group in groups[:MAX_FIRST]
    ]
    more = len(groups) - MAX_FIRST
    return [*lines, f"{counted(more, 'error')} more in the table below."] if more > 0 else lines


def why_blocked(series: Series, findings: Sequence[Finding], left_out: Sequence[Row]) -> str:
    """Return why nothing is concluded from a series, without its name; empty where something is."""
    rows = [row for point in series.points for row in point.rows]
    rows += [row for row in left_out if row.case == series.case]
    rules = blocked_by(findings, rows)
    return f"no verdict, {evidence.blocked(rules)}." if rules else ""


def mend_first_error(findings: Sequence[Finding]) -> str:
    """Return what to do about the first error; empty where there is none."""
    if not findings:
        return ""
    return f"Mend what the check calls an error, first {findings[0].rule}: {findings[0].action}."


def findings_panel(findings: Sequence[Finding]) -> Panel | None:
    """Return all that the check has found, or None where it finds nothing."""
    if not findings:
        return None
    groups = checker.grouped(findings)
    rows = [
        [group.first.level, group.first.rule, group.where(MAX_PLACES), str(len(group.points) or ""),
         f"{group.message()}.", f"{group.first.action}."]
        for group in groups
    ]  # fmt: skip
    made = panel(PANEL, "What the check finds")
    made["lead"] = [
        f"{checker.counts(findings)}. An error makes a number wrong or not comparable and blocks "
        "every verdict it touches; a warning limits what may be concluded."
    ]
    columns = ("Level", "Rule", "Where", "Points", "What", "What to do")
    rules = Counter(finding.rule for finding in findings)
    text = listed(f"{rule} {count}" for rule, count in rules.items())
    caption, prints_all = "Findings of lockstep check", "lockstep check --json"
    made["tables"] = [table(caption, columns, rows, len(columns), prints_all, finding=text)]
    return made
