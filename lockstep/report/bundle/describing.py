"""The texts of a bundle, and one point cut out of a campaign, as a bug report needs it."""

import json
import shlex
from collections.abc import Mapping, Sequence
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


SOFTWARE = (
    *("lockstep_version", "git_commit", "project_commit", "project_dirty", "python"),
    *("torch", "cuda", "cudnn", "nccl", "driver", "os", "kernel"),
)
LARGEST_BYTES = 1_000_000
MAX_LISTED = 8
# Of one case nobody looks for drift in these, and they are most of a file.
LONG = ("telemetry", "rank_variant_s", "rank_phase_s", "rank_alone_s", "bucket_lead_s")


def describe(
    name: str,
    results: Results,
    series: Sequence[Series],
    point: Sequence[Row] | None,
    files: Mapping[str, Source],
    licence: str | None,
) -> dict[str, bytes]:
    """Return the texts of a bundle by their names: how to reproduce it, and what it holds.

    Args:
        name: The bundle's.
        results: What it holds.
        series: Of these, whose values a reproduction should find.
        point: The rows of the one point that it is of; None of a whole campaign.
        files: All other files, by their paths in it.
        licence: Of the data.
    """
    provenance, campaign = results.provenance, results.campaign
    accounted = [row.get("accounting") or {} for row in accounts.accounted(results)]
    elapsed = [account["elapsed_s"] for account in accounted if account.get("elapsed_s")]
    own_tests = listed(campaign.get("tests") or [])
    if point is not None:
        own_tests = point[0].workload if point[0].is_own_test else ""
    commit = provenance.get("project_commit")
    changes = ", with changes" if provenance.get("project_dirty") else ""
    facts = {
        "name": name,
        "is_point": point is not None,
        "is_campaign": bool(campaign),
        "campaign": shlex.quote(str(campaign.get("name") or name)),
        "command": _command(results, point[0]) if point else "",
        "own_tests": own_tests,
        "own_commit": f"at commit {commit}{changes}" if commit
        else "whose commit was not recorded",
        "software": {each: str(provenance.get(each) or DASH) for each in SOFTWARE},
        "image": str(
            provenance.get("image_sha256") or "none; the launches ran outside a container"
        ),
        "seed": str(provenance.get("seed", DASH)),
        "devices": listed(provenance.get("device_names") or [DASH]),
        "sizes": listed(sorted({row.world_size for row in results.rows})),
        "nodes": method.nodes(results.rows),
        "launches": len(results.launches),
        "execution": in_words(sum(elapsed)) if elapsed else "",
        "studies": listed(dict.fromkeys(row.study for row in results.rows)),
        "workloads": listed(dict.fromkeys(row.workload for row in results.rows)),
        "days": method.days(results.days) or DASH,
        "expected": [
            [curve.label, p.world_size, number(p.step_s * MILLI), span(p.step_interval, MILLI)]
            for curve in series for p in curve.points if p.step_s is not None
        ],
    }  # fmt: skip
    environment = Environment(  # noqa: S701, since the filter escapes, and HTML is not what is made
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["text"] = escapes.markdown
    made = {
        text: environment.get_template(f"{text}.j2").render(**facts).encode("utf-8")
        for text in ("reproduce.md", "artefact.md")
    }
    known = {launch.name: launch.provenance for launch in results.launches}
    made["environment.json"] = json.dumps(known, indent=1, allow_nan=False).encode()
    if point is None and campaign:
        made["campaign.toml"] = _campaign_toml(campaign).encode()
    crate = _crate(name, results, {**files, **made}, licence)
    return {**made, "ro-crate-metadata.json": crate}


def _campaign_toml(campaign: Mapping[str, Any]) -> str:
    """Return the campaign file that measures the same again."""

    def lines(table: Mapping[str, Any]) -> list[str]:
        # Numbers, texts, truths and lists of them are alike in JSON and TOML.
        return [
            f"{name} = {json.dumps(value, ensure_ascii=True)}" for name, value in table.items()
            if value is not None and value != [] and not isinstance(value, dict)
        ]  # fmt: skip

    keys = {name: value for name, value in campaign.items() if name not in NOT_KEYS}
    text = lines(keys)
    for name, value in keys.items():
        text += ["", f"[{name}]", *lines(value)] if value and isinstance(value, dict) else []
    return "\n".join(text) + "\n"


def _command(results: Results, row: Row) -> str:
    """Return the command that measures a point again."""
    launch = next(launch for launch in results.launches if launch.name == row.launch)
    options = [
        word for word in map(str, launch.provenance.get("command") or [])
        if word.startswith("--") and "=" in word and not word.startswith(OWN_OPTIONS)
    ]  # fmt: skip
    expected = map(str, launch.facts.get("expected") or [])
    case = next((each for each in expected if each.endswith(row.recorded_case)), row.recorded_case)
    start = ["torchrun", f"--nproc-per-node={row.world_size}", "-m", "pytest"]
    # Tests of one's own have no conftest.py that brings the options.
    plugin = ["-p", "lockstep.launch.hooks"] if row.is_own_test else []
    return shlex.join([*start, case, *plugin, *options, "--benchmark-json=again.json"])


def _crate(name: str, results: Results, files: Mapping[str, Source], licence: str | None) -> bytes:
    """Return the RO-Crate 1.1 metadata: what the archive is, and every file with its checksum."""
    parts = [
        {
            "@id": file, "@type": "File", "sha256": digest(source),
            "contentSize": str(
                len(source) if isinstance(source, bytes) else source.stat().st_size
            ),
            "encodingFormat": KINDS.get(Path(file).suffix, "text/plain"),
        }
        for file, source in sorted(files.items())
    ]  # fmt: skip
    root: dict[str, Any] = {
        "@id": "./", "@type": "Dataset", "name": f"Scaling measurements: {name}",
        "description": "How data-parallel PyTorch training scales, as Lockstep measured it.",
        "datePublished": (results.days or ["1970-01-01"])[-1],
        "hasPart": [{"@id": part["@id"]} for part in parts],
        "mentions": {"@id": "#lockstep"},
    } | ({"license": licence} if licence else {})  # fmt: skip
    head = {
        "@id": "ro-crate-metadata.json", "@type": "CreativeWork", "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
    }  # fmt: skip
    software = {
        "@id": "#lockstep", "@type": "SoftwareApplication", "name": "Lockstep",
        "version": str(results.provenance.get("lockstep_version") or DASH),
    }  # fmt: skip
    graph = [head, root, software, *parts]
    document = {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}
    return json.dumps(document, indent=1, ensure_ascii=True).encode()


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
            f"--point {wanted}: these results hold no measured launch, so no point can be "
            "selected; leave out --point to bundle all"
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
            f"--point {wanted} matches {len(cases) or 'no'} cases; give part of a case's name, @ "
            f"and a world size, such as: {shown}"
        )
    return rows


def cut_out(results: Results, rows: list[Row], folder: Path, *, is_whole: bool) -> None:
    """Write each launch's result with that case alone, as a campaign's folder has them.

    Args:
        results: What holds the rows.
        rows: Those of one case, one a launch.
        folder: To write.
        is_whole: Whether its long details are kept.
    """
    cases = {row.launch: row.recorded_case for row in rows}
    launches = [launch for launch in results.launches if launch.name in cases]
    for index, launch in enumerate(launches):
        document, case = sources.read_document(launch.path), cases[launch.name]
        entries = [entry for entry in document["benchmarks"] if record.case_name(entry) == case]
        for entry in entries if not is_whole else ():
            block = entry["extra_info"][record.KEY]
            block["details"] = {
                name: value for name, value in block["details"].items() if name not in LONG
            }
        block = dict(document.get(record.KEY) or {})
        own = [each for each in block.get("expected") or [] if str(each).endswith(case)]
        # What ended, failed or was skipped stays true of the launch; what is left of it is a cut.
        cut = {"benchmarks": entries, record.KEY: block | {"expected": own, "cut": True}}
        place = folder / sources.LAUNCHES / f"{index}"
        place.mkdir(parents=True)
        text = json.dumps({**document, **cut}, indent=1, allow_nan=False)
        (place / sources.RESULT).write_text(text)
