"""The document of an optimisation: what was lost to what, what was tried, and what it gained.

It projects the page of a comparison and the losses of both sides into the form of a pack.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lockstep.core.formats import capital, counted
from lockstep.core.metrics import GOOD_EFFICIENCY
from lockstep.core.studies import LADDERS
from lockstep.measure.causes.bound import NAMES, Cause
from lockstep.report.compare import comparison
from lockstep.report.compare.comparison import Campaign, Comparison
from lockstep.report.compute import quantities
from lockstep.report.compute.evaluation import Evaluation, evaluate
from lockstep.report.compute.quantities import CAUSES, Loss
from lockstep.report.load.results import Row
from lockstep.report.pack import choices, texts
from lockstep.report.pack.texts import refuse_foreign as refuse_foreign
from lockstep.report.page import parts
from lockstep.report.page.parts import ms, ms_span
from lockstep.report.words import verdict_card

FORM = "optimisation"
COLUMNS = ("Scaling", "Ranks", "Lost to", "Before (ms)", "95 % interval (ms)", "After (ms)",
           "95 % interval (ms)")  # fmt: skip
LOST = "Time that a step takes beyond the ideal time, by cause, at the largest size of each ladder"


def write(
    page: Mapping[str, Any], made: Comparison, campaigns: tuple[Campaign, Campaign], folder: Path,
    redacted: Callable[[Any], Any],
) -> list[Path]:  # fmt: skip
    """Write the document of a comparison's page into a folder, and return its files.

    Raises:
        ValueError: The first campaign has neither strong nor weak scaling.
    """
    before, after = (evaluate(each.results) for each in campaigns)
    chosen = choices.choose(before.series, None, GOOD_EFFICIENCY)
    sections = {section["id"]: section for section in page["sections"]}
    ladders = [sections[study] for study in LADDERS if study in sections]
    specs = [figure for each in ladders for figure in each["figures"] if figure["kind"] == "curve"]
    losses = [*_losses(made, before, after)]
    rows = [
        [pair.a[0].study, str(pair.world_size), capital(NAMES[cause]), *_cells(lost[0], cause),
         *_cells(lost[1], cause)]
        for pair, lost in losses for cause in CAUSES
        if any(_cells(side, cause)[1] for side in lost)
    ]  # fmt: skip

    def paragraphs(lines: list[str]) -> list[texts.Block]:
        return [{"kind": "text", "text": line} for line in lines]

    differs = sections["differs"]
    blocks = {
        "[[outcome]]": paragraphs(
            [capital(page["headlines"][0]["text"]), *filter(None, [page["band"]])]
        ),
        "[[lost]]": paragraphs([*_reasons(before)])
        + ([parts.table(LOST, COLUMNS, rows, 3, "")] if rows else []),
        "[[tried]]": paragraphs(differs["lead"]) + differs["tables"],
        "[[gained]]": [table for each in ladders for table in each["tables"]]
        + [{**spec, "kind": "figure"} for spec in specs],
        "[[left]]": paragraphs([*_reasons(after), page["next"]]),
        "[[judged]]": paragraphs(sections["method"]["lead"]),
    }
    against = [each for side in (before, after) for each in choices.objections(side, chosen, False)]
    both = replace(before.results, launches=[*before.results.launches, *after.results.launches])
    text = texts.document(
        choices.read_form(FORM), both, chosen, choices.read_planned_runs(None), None,
        None, specs,
        list({each.text: each for each in against}.values()), None, GOOD_EFFICIENCY, blocks,
    )  # fmt: skip
    numbers = {
        "schema": 1,
        "programme": FORM,
        "comparison": comparison.document(made, (campaigns[0].name, campaigns[1].name)),
        "losses": [
            {"case": pair.case, "world_size": pair.world_size, "before": asdict(lost[0]),
             "after": asdict(lost[1])}
            for pair, lost in losses
        ],
    }  # fmt: skip
    return texts.write(folder, *redacted((text, specs, numbers)))


def _losses(
    made: Comparison, before: Evaluation, after: Evaluation
) -> Iterator[tuple[comparison.Pair, tuple[Loss, Loss]]]:
    """Yield the largest common size of each ladder with the losses of both sides, where known."""
    largest = {pair.case: pair for pair, _ in made.points if pair.a[0].study in LADDERS}
    for pair in largest.values():
        lost = _loss(before, pair.a[0]), _loss(after, pair.b[0])
        if lost[0] and lost[1]:
            yield pair, (lost[0], lost[1])


def _loss(evaluation: Evaluation, row: Row) -> Loss | None:
    return next((
        quantities.parts_and_loss(curve, point)[1]
        for curve in evaluation.series if curve.case == row.case
        for point in curve.points
        if (point.world_size, point.rows[0].num_nodes) == (row.world_size, row.num_nodes)
    ), None)  # fmt: skip


def _cells(lost: Loss, cause: Cause) -> list[str]:
    """Return the time lost to a cause and its interval; empty without an interval, as no claim."""
    part = next((part for part in lost.parts if part.cause == cause and part.interval), None)
    return [ms(part.seconds), ms_span(part.interval)] if part else ["", ""]


def _reasons(evaluation: Evaluation) -> Iterator[str]:
    """Yield a sentence on each ladder: to what the first size below the good efficiency loses."""
    for curve in evaluation.series:
        if curve.row.study not in LADDERS or curve.row.origin != "measured":
            continue
        point = verdict_card.loss_point(curve, GOOD_EFFICIENCY)
        why = quantities.reason(curve, point)
        known = "the causes of the lost time were not timed"
        if why:
            is_little = why.kind == "little"
            known = "little time is lost" if is_little else "no cause of the lost time is shown"
        ranks = counted(point.world_size, "rank")
        yield verdict_card.why_short(curve, point, why) or f"{curve.label} on {ranks}: {known}."
