"""The timeline of one profiled step as a picture: a lane for each part, a row for each profile."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.core.phases import Kind
from lockstep.report.profiles.profiles import Profile
from lockstep.report.profiles.step_shares import MILLI, title

ENDINGS = (".svg", ".pdf", ".png")
COLOURS: dict[Kind, str] = {
    "compute": "#2a6db0", "range": "#a9c4e2", "communication": "#d9822b", "copy": "#7a5ba6",
    "input": "#c23b3b",
}  # fmt: skip
LANE = 0.8
INCHES = (10.0, 0.28)  # width, and height of a lane


def draw(profiles: Sequence[Profile], to: Path) -> None:
    """Draw the step of median duration of each profile that has steps, on one scale of time.

    Raises:
        ValueError: The ending of the file is no format, or no profile has a step.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if to.suffix not in ENDINGS:
        endings = ", ".join(ENDINGS)
        raise ValueError(f"{to}: the name of a timeline file must end in one of {endings}")
    drawn = [(each, each.step) for each in profiles if each.step]
    if not drawn:
        raise ValueError(
            "no profile has the start and end of a step's parts; give a trace of torch.profiler, "
            "or a file of nsys export --type sqlite"
        )
    titles = [title(each) for each, _ in drawn]
    if len(set(titles)) < len(titles):
        titles = [each.path.name for each, _ in drawn]
    order = dict.fromkeys(span.part for each, _ in drawn for span in each.spans)
    lanes = [
        [part for part in order if part in {span.part for span in each.spans}] for each, _ in drawn
    ]
    figure = Figure(
        figsize=(INCHES[0], INCHES[1] * sum(map(len, lanes)) + len(drawn)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    every = figure.subplots(
        len(drawn), sharex=True, squeeze=False, height_ratios=[len(own) + 1 for own in lanes]
    )
    for axes, (each, (begin_s, end_s)), own, name in zip(
        every[:, 0], drawn, lanes, titles, strict=True
    ):
        for span in each.spans:
            low, high = max(span.begin_s, begin_s), min(span.end_s, end_s)
            axes.barh(
                own.index(span.part), MILLI * (high - low), LANE, MILLI * (low - begin_s),
                color=COLOURS[span.kind],
            )  # fmt: skip
        axes.set_yticks(range(len(own)), own)
        axes.invert_yaxis()
        axes.set_title(f"{name}: {MILLI * (end_s - begin_s):.4g} ms", loc="left")
    every[-1, 0].set_xlim(0, MILLI * max(end_s - begin_s for _, (begin_s, end_s) in drawn))
    every[-1, 0].set_xlabel("Time in the step (ms)")
    figure.savefig(to)
