"""What must be known of a figure that is saved alone: on what, and on which machine, it rests."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.core import formats, record
from lockstep.core.studies import TRAINING
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results, Row
from lockstep.report.words import method

# Studies that take training steps.
IMPORTED = {
    "cited": "Cited: published or logged by others, not measured by Lockstep.",
    "target": "Targets: expected by their authors, measured by nobody.",
}
# Characters of an image's digest that tell it apart.
DIGEST = 12


def put(sections: Sequence[dict[str, Any]], results: Results, series: Sequence[Series]) -> None:
    """Give each figure of the sections the basis it rests on, as `basis`."""
    for section in sections:
        rows = _rows(section, series)
        imported = IMPORTED.get(section["origin"])
        said = [imported] if imported else [*sentences(rows), *_machine(results, rows)]
        for figure in section["figures"]:
            figure["basis"] = said


def _rows(section: Mapping[str, Any], series: Sequence[Series]) -> list[Row]:
    """Return what was measured for a section; for one of no study, all that was."""
    measured = [one for one in series if one.row.origin == "measured"]
    own = [one for one in measured if one.row.study == section["id"]] or measured
    return [row for one in own for point in one.points for row in point.rows]


def sentences(rows: Sequence[Row]) -> list[str]:
    """Say on what training steps rest; nothing where none was taken."""
    steps = [row for row in rows if row.study in TRAINING and not row.program]
    found = [record.basis_of(row.details) for row in steps]
    return [method.basis(found, [row.precision for row in steps])] if steps else []


def _machine(results: Results, rows: Sequence[Row]) -> list[str]:
    """Name devices, nodes and image, and what is not known of them."""
    known = [one.provenance for one in results.launches]
    images = dict.fromkeys(
        str(one["image_sha256"])[:DIGEST] for one in known if one.get("image_sha256")
    )
    image = f"image {formats.listed(images, 2)}" if images else "no image"
    if not known:
        return []
    return [
        f"Machine: {formats.listed(results.device_names, 3) or 'unknown devices'}, "
        f"{method.nodes(rows)}, {image}; whether others shared the nodes is not recorded."
    ]
