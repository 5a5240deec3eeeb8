"""What must be known of a figure that is saved alone: on what, and on which machine, it rests."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results, Row
from lockstep.vocabulary.text import formats
from lockstep.vocabulary.text.formats import counted

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
        sentences = IMPORTED.get(section["origin"])
        said = [sentences] if sentences else [*_steps(rows), *_machine(results, rows)]
        for figure in section["figures"]:
            figure["basis"] = said


def _rows(section: Mapping[str, Any], series: Sequence[Series]) -> list[Row]:
    """Return what was measured for a section; for one of no study, all that was."""
    measured = [one for one in series if one.row.origin == "measured"]
    own = [one for one in measured if one.row.study == section["id"]] or measured
    return [row for one in own for point in one.points for row in point.rows]


def _steps(rows: Sequence[Row]) -> list[str]:
    """Say on what data and with which optimizer and precision steps were taken."""
    given = [basis for row in rows if isinstance(basis := row.details.get("basis"), dict)]
    if not given:
        return []
    values = {
        name: formats.listed(dict.fromkeys(str(one[name]) for one in given if name in one))
        for name in dict.fromkeys(name for one in given for name in one)
    }
    precisions = formats.listed(dict.fromkeys(row.precision for row in rows if row.precision))
    listed = ", ".join(f"{name} {value}" for name, value in values.items())
    bound = (
        ": an upper bound, for reading real data takes its time beside this"
        if "not timed" in values.get("input", "")
        else ""
    )
    return [f"Training steps: {listed}, precision {precisions or formats.DASH}{bound}."]


def _machine(results: Results, rows: Sequence[Row]) -> list[str]:
    """Name devices, nodes and image, and what is not known of them."""
    known = [one.provenance for one in results.launches]
    devices = dict.fromkeys(str(name) for one in known for name in one.get("device_names") or [])
    images = dict.fromkeys(
        str(one["image_sha256"])[:DIGEST] for one in known if one.get("image_sha256")
    )
    nodes = max((row.num_nodes or 1 for row in rows), default=1)
    image = f"image {formats.listed(images, 2)}" if images else "no image"
    if not known:
        return []
    return [
        f"Machine: {formats.listed(devices, 3) or 'unknown devices'}, up to "
        f"{counted(nodes, 'node')}, {image}; whether others shared the nodes is not recorded."
    ]
