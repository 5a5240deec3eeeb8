"""What `lockstep check` finds, on the page: errors first, verdicts they block, and all of it."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from lockstep.core.text.formats import counted, listed
from lockstep.report.check import checker, terminal, wording
from lockstep.report.check.checker import Finding, blocked_by
from lockstep.report.compute.scaling import Series, series_of
from lockstep.report.load.reading import gather
from lockstep.report.load.results import Results, Row
from lockstep.report.page.panels.parts import Panel, panel, table

# Errors that stand above everything else; the panel has them all.
MAX_FIRST = 5
# Places that one line of the panel names.
MAX_PLACES = 40
# Kinds of what the check finds of a launch until it is complete.
UNTIL_COMPLETE = ("not-run", "no-result", "early-end")
PANEL = "check"


def errors(found: Sequence[Finding]) -> list[str]:
    """Return the errors as sentences, for the top of the page."""
    groups = terminal.grouped(one for one in found if one.level == "error")
    lines = [f"{one.rule}: {one.where()}: {one.message()}." for one in groups[:MAX_FIRST]]
    more = len(groups) - MAX_FIRST
    return [*lines, f"{counted(more, 'error')} more in the table below."] if more > 0 else lines


def blocked(series: Series, found: Sequence[Finding], left_out: Sequence[Row]) -> str:
    """Return why nothing is concluded from a series, without its name; empty where something is."""
    rows = [row for point in series.points for row in point.rows]
    rows += [row for row in left_out if row.case == series.case]
    rules = blocked_by(found, rows)
    return f"no verdict, {wording.blocked(rules)}." if rules else ""


def mark(series: Sequence[Series], found: Sequence[Finding]) -> None:
    """Note on each point which findings forbid its ratios: those that touch it or its baseline.

    A table of targets says of itself that nobody measured it; its ratios stay. Of warnings it is
    noted whether there are some.
    """
    warned = checker.warned(found)
    wrong = checker.blocking(found)  # of ten thousand points most have a warning
    for one in series:
        for point in one.points:
            point.is_warned_of = (one.case, point.world_size) in warned
        for point in one.points if one.row.origin != "target" else ():
            point.blocked_by = blocked_by(wrong, [*point.rows, *one.base.rows])


def series_in(folder: Path, coming: Collection[str] = ()) -> list[Series]:
    """Return the series of `results_in`."""
    return results_in(folder, coming)[1]


def results_in(folder: Path, coming: Collection[str] = ()) -> tuple[Results, list[Series]]:
    """Return a folder's results and their series that may be pooled, marked by the check.

    What may not be pooled is left out, not refused: a campaign that was resumed on another machine
    still ends with what its other launches say. What a launch lacks that is still `coming` is not
    missing.

    Raises:
        ValueError: Nothing is measured, or a file is broken.
    """
    results = gather([folder])
    series = series_of(results.split()[0])
    found = checker.check(results)
    mark(series, [
        one for one in found
        if one.hit.kind not in UNTIL_COMPLETE or not set(one.hit.launches) <= set(coming)
    ])  # fmt: skip
    return results, series


def not_pooled(left_out: Sequence[Row]) -> str:
    """Name the launches that were left out, and count their points."""
    names = list(dict.fromkeys(row.launch for row in left_out))
    points = len({row.point for row in left_out})
    return (
        f"{counted(len(names), 'launch')} left out of {counted(points, 'point')}, since they may "
        f"not be pooled with the others: {listed(names)}"
    )


def next_step(found: Sequence[Finding]) -> str:
    """Return what to do about the first error; empty where there is none."""
    if not found:
        return ""
    return f"Mend what the check calls an error, first {found[0].rule}: {found[0].action}."


def findings_panel(found: Sequence[Finding]) -> Panel | None:
    """Return all that the check has found, or None where it finds nothing."""
    if not found:
        return None
    groups = terminal.grouped(found)
    rows = [
        [one.level, one.rule, one.where(MAX_PLACES), str(len(one.points) or ""),
         f"{one.message()}.", f"{one.action}."]
        for one in groups
    ]  # fmt: skip
    made = panel(PANEL, "What the check finds")
    made["lead"] = [
        f"{terminal.counts(found)}. An error makes a number wrong or not comparable and blocks "
        "every verdict it touches; a warning limits what may be concluded."
    ]
    columns = ("Level", "Rule", "Where", "Points", "What", "What to do")
    rules = Counter(one.rule for one in found)
    said = listed(f"{rule} {count}" for rule, count in rules.items())
    caption, prints_all = "Findings of lockstep check", "lockstep check --json"
    made["tables"] = [table(caption, columns, rows, len(columns), prints_all, finding=said)]
    return made
