"""What a report says of the phases of a step, and of what of its all-reduce is hidden."""

from lockstep.report.compute.lost_time import attribution, quantities, step_phases
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page.panels.losses import GROUP
from lockstep.report.page.panels.parts import MILLI, Table, table
from lockstep.vocabulary.text import formats
from lockstep.vocabulary.text.formats import number, percent, percent_span

COLUMNS = (
    "Ranks", "Data (ms)", "Forward (ms)", "Backward (ms)", "Optimizer (ms)",
    "All-reduce alone (ms)", "Exposed (ms)", "Overlap (%)", "95 % interval (%)",
)  # fmt: skip
NOTE = (
    "Forward, backward and optimizer are of the turns of the whole step: means over ranks, medians "
    "over turns and launches. Data is what the slowest rank waits for its batch, a mean. "
    "Backward holds the communication that it does not hide. Overlap is 1 less the exposed "
    "communication over the all-reduce of the gradients alone, with nothing beside it: 100 % where "
    "the backward hides all of it. Exposed communication holds DDP's own copies and hooks, too, so "
    "no less than that is hidden."
)


def phase_table(series: Series) -> Table | None:
    """Return the phases of each point's step and what they hide; None where nothing is known."""
    cells = [_cells(point) for point in series.points]
    rows = [row for row in cells if set(row[1:]) != {formats.DASH}]
    if not rows:
        return None
    caption = f"Phases of a step: {series.label}"
    return table(caption, COLUMNS, rows, note=NOTE, folded=True, group=GROUP)


def _cells(point: Point) -> list[str]:
    rows = [] if point.blocked_by else point.rows
    alone = (attribution.pooled(point, name)[0] for name in ("reduce", "exposed"))
    times_s = [*step_phases.columns(point).values(), *alone]
    hidden = quantities.values(rows, "overlap")
    return [
        str(point.world_size),
        *(number(seconds, scale=MILLI) for seconds in times_s),
        percent(quantities.centre(hidden, "overlap") if hidden else None),
        percent_span(quantities.interval(rows, "overlap")),
    ]
