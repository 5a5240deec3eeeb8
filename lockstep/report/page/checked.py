"""What `lockstep check` finds, on the page: errors first, verdicts they block, and all of it."""

from collections import Counter
from collections.abc import Sequence

from lockstep.core.formats import counted, listed
from lockstep.report.check import terminal, wording
from lockstep.report.check.checker import Finding, blocked_by
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Row
from lockstep.report.page.panels.parts import Panel, panel, table

# Errors that stand above everything else; the panel has them all.
MAX_FIRST = 5
# Places that one line of the panel names.
MAX_PLACES = 40
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
