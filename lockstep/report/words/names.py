"""Short names of series: the factors in which they differ, and a line of shared factors."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lockstep.core.formats import listed
from lockstep.core.studies import STUDIES, TRAINING
from lockstep.report.compute.scaling import Series


def short(series: Sequence[Series]) -> tuple[list[Series], str]:
    """Return series named by study and differing factors, and a line of shared factors.

    The line has the factors of all steps measured here, then those of the steps of one study.
    """
    steps: dict[str, list[dict[str, object]]] = {}
    for curve in filter(_is_step, series):
        steps.setdefault(curve.row.study, []).append(_factors(curve))
    by_study = {study: _common(every) for study, every in steps.items()}
    shared = _common([*by_study.values()])
    named = []
    for curve in series:
        if _is_step(curve):
            shared_here = by_study[curve.row.study].items()
            differs = {k: v for k, v in _factors(curve).items() if (k, v) not in shared_here}
            texts = [curve.row.study, factors_text(differs, ("workload",)), curve.layout]
            curve = replace(curve, label=", ".join(filter(None, texts)))
        named.append(curve)
    studies: dict[str, list[str]] = {}
    for study in STUDIES:  # the order of the page
        items = by_study.get(study, {}).items()
        if more := {name: value for name, value in items if (name, value) not in shared.items()}:
            studies.setdefault(factors_text(more, ("workload",)), []).append(study)
    texts = [
        factors_text(shared, ("workload",)),
        *(f"{listed(alike)} {more}" for more, alike in studies.items()),
    ]
    return named, f"all series: {'; '.join(filter(None, texts))}" if steps else ""


def name_of(series: Series) -> str:
    """Return the study (the origin, if not measured) and the label."""
    return series.label if series.label.startswith(series.row.study) else series.name


def within(series: Series) -> str:
    """Return a label without the study in front, for places that already name the study."""
    return series.label.removeprefix(series.row.study).removeprefix(", ")


def _is_step(series: Series) -> bool:
    row = series.row
    return (
        row.origin == "measured" and row.study in TRAINING and not row.is_own_test
        and not row.training and not row.program and bool(row.factors)
    )  # fmt: skip


def _factors(series: Series) -> dict[str, object]:
    row = series.row
    factors = {"workload": row.workload, "precision": row.precision} | row.factors
    return {name: value for name, value in factors.items() if value is not None}


def _common(every: Sequence[Mapping[str, object]]) -> dict[str, object]:
    first = every[0] if every else {}
    return {k: v for k, v in first.items() if all(more.get(k) == v for more in every)}


def factors_text(factors: Mapping[str, object], bare: Collection[str] = ()) -> str:
    """Return factors as name=value; those in `bare` as their value alone."""
    texts = (str(value) if name in bare else f"{name}={value}" for name, value in factors.items())
    return ", ".join(texts)
