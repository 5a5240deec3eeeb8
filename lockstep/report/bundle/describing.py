"""The texts of a bundle."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lockstep import content
from lockstep.core.formats import DASH, in_words, listed, number, span
from lockstep.report.bundle.opening import digest
from lockstep.report.compute.scaling import Series
from lockstep.report.load.contents import ADDED_KEYS
from lockstep.report.load.results import Results
from lockstep.report.page import accounts
from lockstep.report.words import lines, method

FOLDER = content.ROOT / "reports" / "bundle"
CRATE = "ro-crate-metadata.json"
MILLI = 1e3
KINDS = {
    ".json": "application/json", ".jsonl": "application/jsonl", ".html": "text/html",
    ".md": "text/markdown", ".toml": "application/toml",
}  # fmt: skip
SOFTWARE = (
    *("lockstep_version", "git_commit", "project_commit", "project_dirty", "python"),
    *("torch", "cuda", "cudnn", "nccl", "driver", "os", "kernel"),
)


def describe(
    name: str, results: Results, series: Sequence[Series], licence: str | None
) -> dict[str, bytes]:
    """Return the texts of a bundle by name."""
    provenance, campaign = results.provenance, results.campaign
    accounted = [row.get("accounting") or {} for row in accounts.read_accounts(results)]
    elapsed = [account["elapsed_s"] for account in accounted if account.get("elapsed_s")]
    commit = provenance.get("project_commit")
    changes = ", with changes" if provenance.get("project_dirty") else ""
    facts = {
        "name": name,
        "doi": results.doi,
        "licence": licence,
        "is_campaign": bool(campaign),
        "campaign": shlex.quote(str(campaign.get("name") or name)),
        "own_tests": listed(campaign.get("tests") or []),
        "own_commit": f"at commit {commit}{changes}" if commit
        else "at an unknown commit",
        "software": {each: str(provenance.get(each) or DASH) for each in SOFTWARE},
        "image": str(
            provenance.get("image_sha256")
            or "no image, because the launches ran outside a container"
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
    environment = Environment(  # noqa: S701, since the filter escapes Markdown
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["text"] = lines.markdown
    made = {
        text: environment.get_template(f"{text}.j2").render(**facts).encode("utf-8")
        for text in ("README.md", "reproduce.md", "artefact.md")
    }
    known = {launch.name: launch.provenance for launch in results.launches}
    made["environment.json"] = json.dumps(known, indent=1, allow_nan=False).encode()
    if campaign:
        keys = {key: value for key, value in campaign.items() if key not in ADDED_KEYS}
        text = _toml_lines(keys)
        for key, value in keys.items():
            is_table = value and isinstance(value, dict)
            text += ["", f"[{key}]", *_toml_lines(value)] if is_table else []
        made["campaign.toml"] = ("\n".join(text) + "\n").encode()
    return made


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    # Numbers, texts, booleans and lists of them are the same in JSON and TOML.
    return [
        f"{name} = {json.dumps(value, ensure_ascii=True)}" for name, value in table.items()
        if value is not None and value != [] and not isinstance(value, dict)
    ]  # fmt: skip


def crate(name: str, results: Results, files: Mapping[str, Path], licence: str | None) -> bytes:
    """Return the RO-Crate 1.1 metadata: the archive, and every file with its checksum."""
    parts = [
        {
            "@id": file, "@type": "File", "sha256": digest(path),
            "contentSize": str(path.stat().st_size),
            "encodingFormat": KINDS.get(path.suffix, "text/plain"),
        }
        for file, path in sorted(files.items())
    ]  # fmt: skip
    root: dict[str, Any] = {
        "@id": "./", "@type": "Dataset", "name": f"Scaling measurements: {name}",
        "description": "Measurements by Lockstep of how data-parallel PyTorch training scales.",
        "datePublished": (results.days or ["1970-01-01"])[-1],
        "hasPart": [{"@id": part["@id"]} for part in parts],
        "mentions": {"@id": "#lockstep"},
    } | ({"license": licence} if licence else {})  # fmt: skip
    if results.doi:
        root["identifier"] = f"https://doi.org/{results.doi}"
    head = {
        "@id": CRATE, "@type": "CreativeWork", "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
    }  # fmt: skip
    software = {
        "@id": "#lockstep", "@type": "SoftwareApplication", "name": "Lockstep",
        "version": str(results.provenance.get("lockstep_version") or DASH),
    }  # fmt: skip
    document = {
        "@context": "https://w3id.org/ro/crate/1.1/context",
        "@graph": [head, root, software, *parts],
    }
    return json.dumps(document, indent=1, ensure_ascii=True).encode()
