"""The panels around the numbers: findings, flags, gaps, method, provenance, profiled kernels."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.core.formats import DASH, counted, listed, number
from lockstep.core.metrics import GIGA, TERA
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
from lockstep.report.page.parts import Figure, Panel, Table, panel, table
from lockstep.report.profiles import step_shares
from lockstep.report.profiles.profiles import NCU, Profile, name_of_all, rank_of, read
from lockstep.report.profiles.roofline import COLUMNS, roofline
from lockstep.report.words.method import timing

# Facts of provenance that get a row of their own, in this order; the others follow.
FIRST_FACTS = (
    "lockstep_version", "torch", "cuda", "cudnn", "nccl", "driver", "backend", "python",
    "image_path", "image_sha256", "device_names", "git_commit", "git_dirty", "project_commit",
    "project_dirty", "threads_per_rank", "cores_per_node", "memory_bytes", "os", "kernel",
    "seed", "command",
)  # fmt: skip
# Facts that are whole texts -> the command that printed them.
TEXTS = {"gpu_topology": "nvidia-smi topo -m", "nvlink": "nvidia-smi nvlink -s"}
# Facts in the line of the folded table.
IN_SHORT = ("torch", "cuda", "nccl", "driver", "device_names")
# Column -> (gauge of `lockstep.machine.telemetry`, factor to the column's unit).
MEANS = {
    "GPU in use (%)": ("gpu_utilisation", 100),
    "GPU memory in use (GB)": ("gpu_memory_bytes", 1 / GIGA),
    "Power (W)": ("power_w", 1),
    "Temperature (\u00b0C)": ("temperature_c", 1),
    "Cores kept busy": ("process_cores", 1),
    "Resident (GB)": ("rss_bytes", 1 / GIGA),
    "Workers' busy cores": ("child_cores", 1),
    "Sent by the host over InfiniBand (GB/s)": ("fabric_sent_gb_per_s", 1),
    "Sent by the host over other networks (GB/s)": ("sockets_sent_gb_per_s", 1),
}
MEANT = (
    "Values of devices and processes are means over the timed rounds of the launch's cases. The "
    "folder telemetry/ beside the launch's journal has the single readings."
)

PROGRAM = (
    "A program is timed as a whole, after warm-up runs that do not count. Its wall time includes "
    "its start. All other metrics are values that the program printed."
)
TRAINING = (
    "A training run has whole epochs. An epoch lasts from the barrier before its first update to "
    "the last update of the slowest rank. The model is then validated on the whole validation set, "
    "each item counted once; the epoch's time excludes validation. Runs are pooled if they differ "
    "only in seed and repeat: model, data, precision, batch, optimizer, rate, schedule, epochs, "
    "device and ranks are equal. A mean accuracy has a Student t interval over seeds."
)


RATES = (
    "Throughput is the samples of all ranks in a step, counted once, divided by the step time. "
    "Throughput times time gives samples. Imbalance is the number of milliseconds that the slowest "
    "rank of a step takes longer than a usual rank. Peak memory is that of the rank that uses "
    "most. MFU is model FLOP/s divided by the datasheet peak of all devices. There is no MFU if "
    "that peak is unknown."
)
MEANINGS = (
    "Speed-up is throughput divided by the baseline's throughput. If only times are known, it is "
    "work per second divided by the baseline's work per second. The baseline is the smallest "
    "world size of the series unless another was requested. Parallel efficiency is speed-up "
    "divided by the ratio of world sizes. For weak scaling it equals the time ratio: the "
    "baseline's step time divided by the point's.",
    "Intervals are 95 % Student t intervals of the logarithm of one value per launch. Intervals of "
    "ratios are Welch's and contain the baseline's uncertainty. The centre of an interval is the "
    "geometric mean of the launches. The value of a point is the median of the launches, which may "
    "lie off the centre or outside the interval if the launches are skewed. The baseline's own "
    "ratio is 1 by definition and has no interval. A point with one launch has no interval.",
)


def flags(series: Sequence[Series]) -> Panel | None:
    """Return the flags with the points they concern; None without any."""
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
        "Flags (warnings), and the points that have them", ("Number", "Flag", "Where", "Points"),
        rows, 3, row_ids=[f"flag-{row[0]}" for row in rows], folded=False,
    )  # fmt: skip
    lead = "A flagged point is no evidence for a proposal until the cause of its flag is gone."
    return panel("flags", "Flags", lead=[lead], tables=[made])


def gaps(
    results: Results, is_meant: Callable[[Gap], bool] = lambda _: True
) -> list[tuple[str, str, str]]:
    """Return (what, why, launches) of the gaps for which `is_meant` is true, a line per test."""
    launches: dict[tuple[str, str], list[str]] = {}
    for gap in filter(is_meant, missing.gaps(results)):
        what = f"every case at world size {gap.world_size}" if gap.case is None else gap.case
        launches.setdefault((what, _reason(gap)), []).append(gap.launch)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (what, why), names in launches.items():
        alike.setdefault((what.partition("[")[0], why, listed(names, 8)), []).append(what)
    return [
        (cases[0] if len(cases) == 1 else f"{test}, {counted(len(cases), 'case')}", why, names)
        for (test, why, names), cases in alike.items()
    ]


def _reason(gap: Gap) -> str:
    match gap.kind:
        case "failed" | "skipped":
            return f"{gap.kind}: {gap.reason}"
        case "too-few-gpus":
            return f"skipped: this size needs {gap.world_size} GPUs; the machine has {gap.num_gpus}"
        case "below-floor":
            return "not measured: the efficiency of a smaller size was below until_efficiency"
        case "dropped":
            return "dropped: repeats or world sizes were lowered after the launch had been planned"
        case "not-run":
            return "the launch was planned but has no result"
    return "the case was expected, but the launch has no result for it"


def gaps_panel(results: Results) -> Panel | None:
    """Return the gaps as a panel; None if all that was planned was measured."""
    lines = gaps(results)
    broken = [launch.name for launch in results.launches if not launch.complete]
    lead = [
        f"A file is not in this report, because it cannot be read: {why}." for why in results.unread
    ]
    if broken:
        num_broken, names = counted(len(broken), "launch"), listed(broken)
        lead.append(
            f"{num_broken} did not finish: {names}. The cases that these launches finished are in "
            "this report."
        )
    caption, columns = "Cases and launches without a result", ("What", "Why", "Launches")
    tables = [table(caption, columns, lines, 3, "")] if lines else []
    return panel("gaps", "Not measured", lead=lead, tables=tables) if lead or lines else None


def method(results: Results, series: Sequence[Series], threshold: float) -> Panel:
    """Return the panel on the method: how numbers were measured, and their meanings."""
    measured = [
        curve for curve in series if curve.row.origin == "measured" and curve.row.study != OTHER
    ]
    lead = [TRAINING] if any(curve.row.training for curve in measured) else []
    lead += [PROGRAM] if any(curve.row.program for curve in measured) else []
    if steps := [curve for curve in measured if not (curve.row.training or curve.row.program)]:
        lead += [*timing(results, [p for curve in steps for p in curve.points]), RATES]
    lead += [
        *MEANINGS,
        f"An efficiency of {100 * threshold:.0f} % or more is called good. Device-hours are world "
        "size times hours, for one run in tables of times, else for a million samples. "
        "Device-hours use the mean step time, since costs add up. All other values use the median, "
        "which shows the steady state.",
    ]
    rows = [row for curve in series for point in curve.points for row in point.rows]
    count = sum(row.num_far_out or 0 for row in rows)
    rounds = sum(row.rounds or 0 for row in rows if row.num_far_out is not None)
    if any(row.rounds and row.rounds < FEWEST for row in rows if row.origin == "measured"):
        lead.append(
            f"Launches of fewer than {FEWEST} rounds cannot show drift or outliers. Launches of "
            f"fewer than {MODE_FEWEST} rounds cannot show two modes. Measure with --rounds 20 to "
            "see all of these."
        )
    elif count:
        all_rounds = counted(rounds, "timed round")
        lead.append(
            f"{count} of {all_rounds} are outliers: they lie more than three "
            "interquartile ranges from the nearer quartile of their launch (Tukey). All rounds are "
            "kept."
        )
    return panel("method", "Method", lead=lead)


def provenance(results: Results) -> Panel | None:
    """Return versions, hardware, launches and the map of ranks, or None if none is known."""
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
        for fact, command in TEXTS.items():
            if isinstance(text := known.get(fact), list):
                tables.append(table(
                    f"GPUs of launch {name} by {command}", ("Launch", "Host"),
                    [[name, _cell(known.get("hostname"))]], 2, "", text="\n".join(map(str, text)),
                ))  # fmt: skip
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
            str(len(launch.entries)),
        ]
        for launch in launches
    ]
    broken = sum(not launch.complete for launch in launches)
    state = f"{broken} incomplete" if broken else "complete"
    text = f"{counted(len(launches), 'launch')}, {state}"
    return table("Launches", columns, rows, 5, "", finding=text)


def _fact_table(launches: list[Launch]) -> Table:
    facts: dict[str, str] = {}
    for name in dict.fromkeys(
        [*FIRST_FACTS, *(n for launch in launches for n in launch.provenance)]
    ):
        if name in ("ranks", "environment", "hostname", *TEXTS):
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
    studies: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in rows:
        for part, key in (("DDP", DDP_SETTINGS), ("loader", LOADER_SETTINGS)):
            for name, value in (row.details.get(key) or {}).items():
                studies.setdefault((part, name, _cell(value)), {})[row.study] = None
    if not studies:
        return []
    lines = [[*setting, listed(names)] for setting, names in sorted(studies.items())]
    is_same = len({setting[:2] for setting in studies}) == len(studies)
    return [table(
        "Settings that DDP and the loaders used", ("Of", "Setting", "Value", "Studies"),
        lines, 4, "", finding="one value each" if is_same else "several values",
    )]  # fmt: skip


def _rank_table(name: str, ranks: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Table:
    keys = ("rank", "local_rank", "host", "device", "device_name", "cores")
    columns = ("Rank", "Local rank", "Host", "Device", "Device name", "Cores")
    means = [
        [number(mean, scale=scale) for mean in quantities.rank_means(rows, gauge, len(ranks))]
        for gauge, scale in MEANS.values()
    ]
    cells = [
        [*(_cell(rank.get(key)) for key in keys), *of_rank]
        for rank, *of_rank in zip(ranks, *means, strict=True)
    ]
    hosts = len({rank.get("host") for rank in ranks})
    text = f"{counted(len(ranks), 'rank')} on {counted(hosts, 'host')}"
    made = table(f"Ranks of launch {name}", (*columns, *MEANS), cells, len(keys), "", finding=text)
    if not all(column["text"] for column in made["columns"]):
        made["note"] = " ".join(filter(None, (made.get("note"), MEANT)))
    return made


def _fact(name: str, value: object) -> str:
    match name, value:
        case "transport", {**facts}:  # the number of links, since all links would fill a page
            counts = facts.get("transports")
            links = counts.items() if isinstance(counts, Mapping) else ()
            return listed((f"{kind}: {count} links" for kind, count in links), 8)
        case "command", [*words]:  # with spaces, to be copied
            return " ".join(map(str, words))
    return _cell(value)


def _cell(value: object) -> str:
    if value is None or value in ("", [], {}):
        return DASH
    if isinstance(value, list | tuple):
        return listed(value, 16)
    if isinstance(value, dict):
        return listed((f"{k}={v}" for k, v in value.items()), 16)
    return number(value) if isinstance(value, float) else str(value)


# Most errors at the top of the page, and most places in one line of the panel.
MAX_FIRST, MAX_PLACES = 5, 40


def error_lines(findings: Sequence[Finding]) -> list[str]:
    """Return the errors as sentences, for the top of the page."""
    groups = checker.group_findings(checker.errors(findings))
    lines = [f"{each.first.rule}: {each.where()}: {each.message()}." for each in groups[:MAX_FIRST]]
    more = len(groups) - MAX_FIRST
    more_errors = counted(more, "more error")
    return [*lines, f"The table below has {more_errors}."] if more > 0 else lines


def why_blocked(series: Series, findings: Sequence[Finding], left_out: Sequence[Row]) -> str:
    """Return why a series has no verdict; empty if it has one."""
    rows = series.rows
    rows += [row for row in left_out if row.case == series.case]
    rules = blocked_by(findings, rows)
    return f"no verdict, {evidence.blocked_text(rules)}." if rules else ""


def findings_panel(findings: Sequence[Finding], results: Results) -> Panel | None:
    """Return all findings of the check; None without any."""
    if not findings:
        return None
    groups = checker.group_findings(findings)
    rows = [
        [group.first.level, group.first.rule, group.where(MAX_PLACES), str(len(group.points) or ""),
         f"{group.message()}.", f"{group.first.action}."]
        for group in groups
    ]  # fmt: skip
    lead = (
        f"{checker.counts(findings, results)}. An error makes a number wrong or not comparable, "
        "and blocks every verdict that uses the number. A warning limits the conclusions."
    )
    columns = ("Level", "Rule", "Where", "Points", "What", "What to do")
    rules = Counter(finding.rule for finding in findings)
    made = table(
        "Findings of lockstep check", columns, rows, len(columns), "lockstep check --json",
        finding=listed(f"{rule} {count}" for rule, count in rules.items()),
    )  # fmt: skip
    return panel("check", "What lockstep check finds", lead=[lead], tables=[made])


PROFILED = (
    "A profiler slows a program, so trust the shares and not the times. These steps are not part "
    "of the results."
)
# Most traces that a page reads, rank 0 of each case first.
MAX_PROFILES = 16


def profile_panels(results: Results) -> list[Panel]:
    """Return the panels of the profiles that a campaign's jobs left in `profiles/`.

    Those are traces of torch.profiler, and what was exported from Nsight Systems and Compute.
    """
    folders = {  # file -> its folder below `profiles/`
        file: str(file.parent.relative_to(folder / "profiles"))
        for folder in results.plans
        for kind in ("json.gz", "sqlite", "csv")
        for file in sorted(folder.glob(f"profiles/**/*.{kind}"))
    }
    tables = [file for file in folders if file.suffix == ".csv"]
    traces = sorted(folders.keys() - set(tables), key=lambda file: (rank_of(file) or 0, file))
    lead, profiles = [PROFILED], list[Profile]()
    for file in (*traces[:MAX_PROFILES], *tables):
        try:
            profiles.append(read(file))
        except ValueError as error:
            if file in traces:  # a CSV may be of something else
                lead.append(f"Not read: {error}.".replace(str(file), file.name))
    if (more := len(traces) - MAX_PROFILES) > 0:
        files = counted(more, "more file")
        lead.append(f"The page omits {files}, which lockstep explain can read.")
    lead += filter(None, map(step_shares.busy, profiles))
    shares = list(_share_tables(profiles, folders))
    kernels = roofline_panel(results, [each for each in profiles if each.tool == NCU])
    made = panel("profiles", "Inside profiled steps", lead=lead, tables=shares)
    return [*([made] if shares or len(lead) > 1 else []), *([kernels] if kernels else [])]


def _share_tables(profiles: Sequence[Profile], folders: Mapping[Path, str]) -> Iterator[Table]:
    groups: dict[tuple[Path, str], list[Profile]] = {}
    for each in profiles:
        if each.phases:
            groups.setdefault((each.path.parent, name_of_all(each.path)), []).append(each)
    for (_, name), own in groups.items():
        columns = [(step_shares.title(each), each.phases) for each in own if each.phases]
        cells = [
            [part.strip(), *(DASH if text == step_shares.UNKNOWN else text for text in texts)]
            for part, texts in step_shares.rows(columns)
        ]
        heads = ("Part", *(title for title, _ in columns))
        caption = f"{own[0].tool}, {folders[own[0].path]}/{name}"
        steps, said = columns[0][1].num_steps, step_shares.verdict(columns)[0]
        note = f"Mean over {counted(steps, 'step')}. {said}"
        yield table(caption, heads, cells, 1, "", note=note, finding=said)


ROOFLINE = (
    "Nsight Compute counted FLOP and bytes of device memory, and ran each kernel alone. The peaks "
    "are those of the datasheet. A kernel left of the ridge point is limited by memory bandwidth."
)


def roofline_panel(results: Results, profiles: Sequence[Profile]) -> Panel | None:
    """Return the panel of the CSV files of Nsight Compute; None without any."""
    names = {n for launch in results.launches for n in launch.provenance.get("device_names") or ()}
    device_name = names.pop() if len(names) == 1 else None
    lead, figures, tables = [ROOFLINE], list[Figure](), list[Table]()
    for profile in profiles:
        file = profile.path.name
        try:
            made = roofline(profile, device_name)
        except ValueError as error:
            lead.append(str(error))
            continue
        points = [
            {"label": place.name, "precision": place.precision, "x": place.flop_per_byte,
             "y": place.flop_per_s / TERA}
            for place in made.places
        ]  # fmt: skip
        figures.append({
            "kind": "roofline", "id": f"roofline-{len(figures) + 1}", "title": made.title,
            "desc": f"FLOP per second of the kernels of {file} against FLOP per byte, below the "
            "GPU's peaks.",
            "xlabel": "FLOP per byte of device memory", "ylabel": "TFLOP/s",
            "tb_per_s": made.bytes_per_s / TERA, "points": points,
            "peaks": {name: peak / TERA for name, peak in made.peaks.items()},
            "note": "Dashed lines are the peaks. The numbers refer to the rows of the table.",
        })  # fmt: skip
        rows = [[str(n), *place.cells()] for n, place in enumerate(made.places, start=1)]
        caption = f"Kernels of {file} under the roofline"
        tables.append(table(caption, ("Number", *COLUMNS), rows, 4, "", note=made.note))
    if not tables and len(lead) == 1:
        return None
    return panel("roofline", "Roofline", lead=lead, figures=figures, tables=tables)
