"""The texts of a bundle: how to reproduce it, its artefact description, and its metadata.

One point cut out of a campaign: what a bug report needs, and no more.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lockstep import content
from lockstep.core import record
from lockstep.core.formats import DASH, in_words, listed, number, span
from lockstep.report.bundle.opening import Source, digest
from lockstep.report.compute.scaling import Series
from lockstep.report.load import sources
from lockstep.report.load.results import Results, Row
from lockstep.report.page import accounts
from lockstep.report.words import escapes, method

FOLDER = content.ROOT / "reports" / "bundle"
# What a campaign's record holds beside the keys of a campaign file.
NOT_KEYS = ("launches", "left_out")
# Options of a launch that name its own files.
OWN_OPTIONS = ("--label", "--journal", "--benchmark-json", "--after", "--junitxml")
MILLI = 1e3
KINDS = {
    ".json": "application/json", ".jsonl": "application/jsonl", ".html": "text/html",
    ".md": "text/markdown", ".toml": "application/toml",
}  # fmt: skip
LATEST = "1970-01-01"


@dataclass(frozen=True)
class Described:
    """What the texts say.

    Attributes:
        point: The rows of the one point that it is of; None of a whole campaign.
    """

    name: str
    results: Results
    series: Sequence[Series]
    point: Sequence[Row] | None = None


def campaign_toml(campaign: Mapping[str, Any]) -> str:
    """Return the campaign file that measures the same again."""
    keys = {name: value for name, value in campaign.items() if name not in NOT_KEYS}
    tables = {name: value for name, value in keys.items() if value and isinstance(value, dict)}
    lines = [f"{name} = {_toml(value)}" for name, value in keys.items() if _is_plain(value)]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in table.items() if _is_plain(value)]
    return "\n".join(lines) + "\n"


def _is_plain(value: object) -> bool:
    return value is not None and value != [] and not isinstance(value, dict)


def _toml(value: object) -> str:
    # Numbers, texts, truths and lists of them are alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=True)


def command(described: Described) -> str:
    """Return the command that measures the one point again; empty of a whole campaign."""
    if described.point is None:
        return ""
    row = described.point[0]
    launch = next(one for one in described.results.launches if one.name == row.launch)
    options = [
        word for word in map(str, launch.provenance.get("command") or [])
        if word.startswith("--") and "=" in word and not word.startswith(OWN_OPTIONS)
    ]  # fmt: skip
    expected = map(str, launch.facts.get("expected") or [])
    own = (one for one in expected if one.endswith(row.recorded_case))
    case = next(own, row.recorded_case)
    start = ["torchrun", f"--nproc-per-node={row.world_size}", "-m", "pytest"]
    # Tests of one's own have no conftest.py that brings the options.
    plugin = ["-p", "lockstep.launch.hooks"] if row.is_own_test else []
    return shlex.join([*start, case, *plugin, *options, "--benchmark-json=again.json"])


def own_tests(described: Described) -> str:
    """Name the tests of one's own that were measured; empty where the suite's were."""
    if described.point is None:
        return listed(described.results.campaign.get("tests") or [])
    row = described.point[0]
    return row.workload if row.is_own_test else ""


def own_commit(results: Results) -> str:
    """Say at which commit the repository of the tests was."""
    commit = results.provenance.get("project_commit")
    if not commit:
        return "no commit of which is recorded"
    changed = ", with changes" if results.provenance.get("project_dirty") else ""
    return f"at commit {commit}{changed}"


def texts(described: Described) -> dict[str, bytes]:
    """Return the texts by their names."""
    facts = _facts(described)
    made = {
        name: _environment().get_template(f"{name}.j2").render(**facts).encode("utf-8")
        for name in ("reproduce.md", "artefact.md")
    }
    known = {launch.name: launch.provenance for launch in described.results.launches}
    made["environment.json"] = json.dumps(known, indent=1, allow_nan=False).encode()
    if described.point is None and described.results.campaign:
        made["campaign.toml"] = campaign_toml(described.results.campaign).encode()
    return made


def _facts(described: Described) -> dict[str, Any]:
    results = described.results
    found = results.provenance
    accounted = [one.get("accounting") or {} for one in accounts.accounted(results)]
    elapsed = [one["elapsed_s"] for one in accounted if one.get("elapsed_s")]
    sizes = sorted({row.world_size for row in results.rows})
    return {
        "name": described.name,
        "is_point": described.point is not None,
        "is_campaign": bool(results.campaign),
        "campaign": shlex.quote(str(results.campaign.get("name") or described.name)),
        "command": command(described),
        "own_tests": own_tests(described),
        "own_commit": own_commit(results),
        "software": {name: str(found.get(name) or DASH) for name in SOFTWARE},
        "image": str(found.get("image_sha256") or "none: the launches ran outside a container"),
        "seed": str(found.get("seed", DASH)),
        "devices": listed(found.get("device_names") or [DASH]),
        "sizes": listed(sizes),
        "nodes": method.nodes(results.rows),
        "launches": len(results.launches),
        "execution": in_words(sum(elapsed)) if elapsed else "",
        "studies": listed(dict.fromkeys(row.study for row in results.rows)),
        "workloads": listed(dict.fromkeys(row.workload for row in results.rows)),
        "days": method.days(results.days) or DASH,
        "expected": [
            [curve.label, p.world_size, number(p.step_s * MILLI), span(p.step_interval, MILLI)]
            for curve in described.series for p in curve.points if p.step_s is not None
        ],
    }  # fmt: skip


SOFTWARE = (
    *("lockstep_version", "git_commit", "project_commit", "project_dirty", "python"),
    *("torch", "cuda", "cudnn", "nccl", "driver", "os", "kernel"),
)


def crate(described: Described, files: Mapping[str, Source], licence: str | None) -> bytes:
    """Return the RO-Crate 1.1 metadata: what the archive is, and every file with its checksum."""
    parts = [_part(name, files[name]) for name in sorted(files)]
    root: dict[str, Any] = {
        "@id": "./", "@type": "Dataset", "name": f"Scaling measurements: {described.name}",
        "description": "How data-parallel PyTorch training scales, as Lockstep measured it.",
        "datePublished": (described.results.days or [LATEST])[-1],
        "hasPart": [{"@id": part["@id"]} for part in parts],
        "mentions": {"@id": "#lockstep"},
    }  # fmt: skip
    if licence:
        root["license"] = licence
    head = {
        "@id": "ro-crate-metadata.json", "@type": "CreativeWork", "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
    }  # fmt: skip
    software = {
        "@id": "#lockstep", "@type": "SoftwareApplication", "name": "Lockstep",
        "version": str(described.results.provenance.get("lockstep_version") or DASH),
    }  # fmt: skip
    graph = [head, root, software, *parts]
    document = {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}
    return json.dumps(document, indent=1, ensure_ascii=True).encode()


def _part(name: str, source: Source) -> dict[str, Any]:
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    return {
        "@id": name, "@type": "File", "contentSize": str(size), "sha256": digest(source),
        "encodingFormat": KINDS.get(Path(name).suffix, "text/plain"),
    }  # fmt: skip


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(  # noqa: S701, since the filter escapes, and HTML is not what is made
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.filters["text"] = escapes.markdown
    return made


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
        known = dict.fromkeys(f"{row.recorded_case}@{row.world_size}" for row in near)
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
    for index, document in enumerate(found):
        place = folder / sources.LAUNCHES / f"{index}"
        place.mkdir(parents=True)
        (place / sources.RESULT).write_text(json.dumps(document, indent=1, allow_nan=False))
