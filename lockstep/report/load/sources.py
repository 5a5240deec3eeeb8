"""Find the result files behind a path, and read them."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from lockstep.core import files, journal, record
from lockstep.core.formats import listed, one_line
from lockstep.core.studies import TRAININGS
from lockstep.report.load.contents import CampaignFile, check_value

IMPORTED = "imported.json"
CAMPAIGN = "campaign.json"
JOBS = "jobs"
RESULT = "result.json"
JOURNAL = "journal.jsonl"
LAUNCHES = "launches"
# Case -> a fact that differs between a result and its journal.
Contradictions = dict[str, tuple[str, str]]
# Folder of trackers' confirmations.
TRACKER = "tracker"


def read_campaign(folder: Path) -> dict[str, Any]:
    """Return the campaign file of a folder, empty if there is none; ValueError if it is broken."""
    path = folder / CAMPAIGN
    if not path.exists():
        return {}
    own = read_json(path)
    if not isinstance(own, dict):
        raise ValueError(f"{path}: a campaign file must hold one JSON object; restore this file")
    record.check_schema(own, str(path))
    check_value(CampaignFile, own, str(path))
    return own


def folders(path: Path) -> list[Path]:
    """Return the folders of trainings in a path, if it holds only these; else the path."""
    below = _results_below(path) if path.is_dir() else []
    studies = [read_campaign(folder).get("studies") for folder in below]
    are_trainings = all(own and {*own} <= {*TRAININGS} for own in studies)
    return below if below and are_trainings else [path]


def find_files(path: Path) -> list[Path]:
    """Return the result files behind one path, in a fixed order.

    A launch gives its result, or its journal if it has no result.

    Raises:
        ValueError: The path does not exist or holds no result.
    """
    if not path.is_dir():
        if not path.exists():
            raise ValueError(f"{path}: no such file or folder")
        return [path]
    if below := _results_below(path):
        raise ValueError(
            f"{path}: the folder itself holds no result; give a folder of results below it: "
            f"{listed(below)}"
        )
    launches = (folder for folder in sorted(path.glob(f"{LAUNCHES}/*")) if folder.is_dir())
    files = []
    for folder in (path, *launches):
        files += [folder / name for name in (RESULT, JOURNAL) if (folder / name).exists()][:1]
    files += [path / IMPORTED] if (path / IMPORTED).exists() else []
    has_jobs = (path / JOBS).is_dir()
    if not files and not has_jobs:  # in jobs/ JSON files are records of jobs
        files = [
            file
            for file in sorted(path.rglob("*.json"))
            if file.name not in (CAMPAIGN, IMPORTED)
            and TRACKER not in file.relative_to(path).parts[:-1]
        ]
    if not files and has_jobs:
        raise ValueError(
            f"{path}: the campaign's jobs have no results yet; run lockstep status {path}"
        )
    if not files:
        raise ValueError(
            f"{path}: the folder holds no launch, no pytest-benchmark file and no {IMPORTED}"
        )
    return files


def _results_below(folder: Path) -> list[Path]:
    """Return the folders of results right below a folder; none if it holds results itself."""
    marks = (CAMPAIGN, LAUNCHES, IMPORTED, JOURNAL)
    if folder.name == LAUNCHES or any((folder / name).exists() for name in (*marks, RESULT)):
        return []
    return [
        path for path in sorted(folder.iterdir()) if any((path / name).exists() for name in marks)
    ]


def read(source: Path) -> tuple[Path, Any, Contradictions]:
    """Return the file that was read, its content, and contradictions to the journal.

    The journal replaces a result that it contradicts, or that is older: a session stopped by hand
    writes its result, but a session that resumes it and is killed writes only the journal.

    Raises:
        ValueError: Neither the result nor the journal can be read.
    """
    other = source.with_name(JOURNAL if source.name == RESULT else RESULT)
    problems = []
    for path in [source, other] if in_campaign(source) and other.exists() else [source]:
        try:
            document = read_document(path)
            break
        except ValueError as error:
            problems.append(error)
    else:
        raise problems[0]
    own = path.with_name(JOURNAL)
    if path.name == RESULT and own.exists():
        with suppress(ValueError):  # a corrupt journal
            recorded = read_document(own)
            contradictions = journal.contradictions(document, recorded)
            if contradictions or journal.is_ahead(own, document):
                return own, recorded, contradictions
    return path, document, {}


def in_campaign(source: Path) -> bool:
    """Tell whether a file belongs to a launch of a campaign."""
    return source.parent.parent.name == LAUNCHES


def campaign_folder(source: Path) -> Path:
    """Return the folder of the campaign that a launch's file may belong to."""
    return (source.parents[2] if in_campaign(source) else source.parent).resolve()


def read_document(path: Path) -> Any:
    """Return a file's content, a journal as a pytest-benchmark result; ValueError if broken."""
    return printable(journal.rebuild(path)) if path.name == JOURNAL else read_json(path)


def read_json(path: Path) -> Any:
    """Return a file's JSON value, its text made printable.

    Raises:
        ValueError: The file is missing, empty, too large, cut short or not JSON.
    """
    content = files.content(path)
    if not content.strip():
        raise ValueError(f"{path}: the file is empty; delete it or measure again")
    try:
        # NaN and infinity become None, so that `check_value` can name their place. pydantic's
        # parser takes a third of the time of the standard library's.
        document = files.parse(content, lambda _: None, partial(from_json, allow_inf_nan=False))
    except ValueError as error:
        raise ValueError(
            f"{path}: the file is not valid JSON, and may be truncated: {error}"
        ) from error
    # ASCII text without escapes is printable.
    return document if content.isascii() and b"\\" not in content else printable(document)


def case_name(case: object) -> str:
    """Return the name that results give to a collected test, `file.py::name`."""
    return str(case).partition(".py::")[2] or str(case)


def printable(value: Any) -> Any:
    """Return a JSON value whose texts are one line each and safe to print."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): printable(item) for name, item in value.items()}
    return value
