"""One point cut out of a campaign: what a bug report needs, and no more."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.core import record
from lockstep.core.formats import listed
from lockstep.report.load import sources
from lockstep.report.load.results import Results, Row

LARGEST_BYTES = 1_000_000
MAX_LISTED = 8
# Of one case nobody looks for drift in these, and they are most of a file.
LONG = ("telemetry", "rank_variant_s", "rank_phase_s", "rank_alone_s", "bucket_lead_s")


def find(results: Results, wanted: str) -> list[Row]:
    """Return the rows of the point that `CASE@SIZE` names, one a launch.

    Raises:
        ValueError: No case of a launch is meant by it, or several are.
    """
    name, _, size = wanted.rpartition("@")
    launches = {launch.name for launch in results.launches}
    measured = [row for row in results.rows if row.launch in launches and row.origin == "measured"]
    if not measured:
        raise ValueError(
            f"--point {wanted}: no launch has measured a case here, and training runs and tables "
            "hold none to cut out; leave --point out to bundle all"
        )
    named = [row for row in measured if name in row.recorded_case]
    rows = [row for row in named if str(row.world_size) == size]
    # A whole name means its own case, also where others begin with it.
    rows = [row for row in rows if row.recorded_case == name] or rows
    cases = list(dict.fromkeys(row.recorded_case for row in rows))
    if len(cases) != 1:
        if name and named and not rows:
            sizes = sorted({row.world_size for row in named})
            raise ValueError(
                f"--point {wanted}: {name} was measured at world size "
                f"{listed(sizes, MAX_LISTED)}, not at {size or 'an unnamed one'}"
            )
        near = rows or named or measured
        known = dict.fromkeys(f"{one.recorded_case}@{one.world_size}" for one in near)
        shown = "; ".join(list(known)[:MAX_LISTED])
        raise ValueError(
            f"--point {wanted}: {len(cases) or 'no'} cases are meant by it; write a part of one "
            f"case's name, an @ and a world size, of: {shown}"
        )
    return rows


def documents(results: Results, rows: list[Row], *, whole: bool) -> Iterator[dict[str, Any]]:
    """Yield each launch's result with that case alone, without its long details if not `whole`."""
    wanted = {row.launch: row.recorded_case for row in rows}
    for launch in results.launches:
        if case := wanted.get(launch.name):
            yield _cut(sources.read_document(launch.path), case, whole=whole)


def _cut(document: Mapping[str, Any], case: str, *, whole: bool) -> dict[str, Any]:
    entries = [one for one in document["benchmarks"] if record.case_name(one) == case]
    if not whole:
        for entry in entries:
            details = entry["extra_info"][record.KEY]["details"]
            entry["extra_info"][record.KEY]["details"] = {
                name: value for name, value in details.items() if name not in LONG
            }
    block = dict(document.get(record.KEY) or {})
    own = [one for one in block.get("expected") or [] if str(one).endswith(case)]
    # What ended, failed or was skipped stays true of the launch; what is left of it is a cut.
    cut = {"expected": own, "cut": True}
    return {**document, "benchmarks": entries, record.KEY: block | cut}


def write(found: Iterator[dict[str, Any]], folder: Path) -> None:
    """Write results as the folder of a campaign has them."""
    for number, document in enumerate(found):
        place = folder / sources.LAUNCHES / f"{number}"
        place.mkdir(parents=True)
        (place / sources.RESULT).write_text(json.dumps(document, indent=1, allow_nan=False))
