"""Short names of series: what tells them from each other, after what all share is said once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from lockstep.core.formats import listed
from lockstep.core.studies import STUDIES, TRAINING
from lockstep.report.compute.scaling import Series


def short(series: Sequence[Series]) -> tuple[list[Series], str]:
    """Return series named by their study and what differs within it, and a line of what is shared.

    The line gives in full what all steps measured here share, then what those of one study do.
    """
    own = [curve for curve in series if _is_step(curve)]
    shared = _common(own)
    by_study = {
        study: _common([curve for curve in own if curve.row.study == study])
        for study in dict.fromkeys(curve.row.study for curve in own)
    }
    named = []
    for curve in series:
        if curve.row.study in by_study and _is_step(curve):
            known = by_study[curve.row.study]
            differs = dict(item for item in _factors(curve).items() if item not in known.items())
            texts = [curve.row.study, _text(differs), curve.layout]
            curve = replace(curve, label=", ".join(filter(None, texts)))
        named.append(curve)
    apart = {
        study: dict(item for item in known.items() if item not in shared.items())
        for study, known in by_study.items()
    }
    studies: dict[str, list[str]] = {}
    for study in STUDIES:  # in the order of a page
        if more := apart.get(study):
            studies.setdefault(_text(more), []).append(study)
    texts = [_text(shared), *(f"{listed(alike)} {more}" for more, alike in studies.items())]
    return named, f"all series: {'; '.join(filter(None, texts))}" if own else ""


def name_of(series: Series) -> str:
    """Return the study, or the origin of what was not measured, and the label."""
    return series.label if series.label.startswith(series.row.study) else series.name


def within(series: Series) -> str:
    """Return a label without the study in front, for where that is said."""
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


def _common(series: Sequence[Series]) -> dict[str, object]:
    return reduce(
        lambda known, more: {k: v for k, v in known.items() if more.get(k) == v},
        map(_factors, series[1:]), _factors(series[0]) if series else {},
    )  # fmt: skip


def _text(factors: Mapping[str, object]) -> str:
    return ", ".join(
        str(value) if name == "workload" else f"{name}={value}" for name, value in factors.items()
    )
