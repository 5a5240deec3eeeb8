"""Find the result files behind a path, and read them.

A campaign's folder leaves `launches/*/result.json`, or the journal where that holds more; other
folders hold pytest-benchmark files, or tables brought in by `lockstep import`.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from lockstep.core import files, journal, record
from lockstep.core.formats import listed, one_line
from lockstep.report.load import training_runs
from lockstep.report.load.contents import CampaignFile, checked

IMPORTED = "imported.json"
CAMPAIGN = "campaign.json"
JOBS = "jobs"
RESULT = "result.json"
JOURNAL = "journal.jsonl"
LAUNCHES = "launches"
SUMMARY = "summary.json"
EPOCHS = "epochs.csv"
# Case -> a fact of it in a result and in the journal beside it, which differ.
Contradictions = dict[str, tuple[str, str]]
# Folder of trackers' confirmations, which are not results.
TRACKER = "tracker"


def read_campaign(folder: Path) -> dict[str, Any]:
    """Return the campaign file of a folder; empty if there is none.

    Raises:
        ValueError: The file is broken or of another schema.
    """
    path = folder / CAMPAIGN
    if not path.exists():
        return {}
    own = read_json(path)
    if not isinstance(own, dict):
        raise ValueError(f"{path}: not a campaign: it must be one JSON object")
    record.check_schema(own, str(path))
    checked(CampaignFile, own, str(path))
    return own


def trainings_below(folder: Path) -> list[Path]:
    """Return the folders of `lockstep run train` in a folder that holds nothing else, or none."""
    below = _results_below(folder) if folder.is_dir() else []
    if below and all(read_campaign(path).get("studies") == ["train"] for path in below):
        return below
    return []


def find_files(path: Path) -> Iterator[Path]:
    """Yield the files behind one argument, in a fixed order.

    Raises:
        ValueError: There is no such path, or nothing in it.
    """
    if not path.is_dir():
        if not path.exists():
            raise ValueError(f"{path}: no such file or folder")
        yield path
        return
    if below := _results_below(path):
        raise ValueError(f"{path}: holds several folders of results; give one: {listed(below)}")
    inside = _inside(path)
    if not inside and (path / JOBS).is_dir():
        raise ValueError(f"{path}: its jobs have no results yet; see lockstep status {path}")
    if not inside:
        raise ValueError(f"{path}: holds no launch, no pytest-benchmark file and no {IMPORTED}")
    yield from inside


def _results_below(folder: Path) -> list[Path]:
    """Return the results right below a folder, unless it is a campaign, a launch or several."""
    own = (CAMPAIGN, LAUNCHES, IMPORTED, RESULT, JOURNAL)
    if folder.name == LAUNCHES or any((folder / name).exists() for name in own):
        return []
    marks = (CAMPAIGN, LAUNCHES, IMPORTED, JOURNAL)
    return [
        path for path in sorted(folder.iterdir()) if any((path / name).exists() for name in marks)
    ]


def _inside(folder: Path) -> list[Path]:
    """Return a launch's result, or its journal where that is all there is, tables and runs."""
    launches = (d for d in sorted(folder.glob(f"{LAUNCHES}/*")) if d.is_dir())
    paths = []
    for each in (folder, *launches):
        paths += [each / name for name in (RESULT, JOURNAL) if (each / name).exists()][:1]
    imported = [folder / IMPORTED] if (folder / IMPORTED).exists() else []
    below = (each for each in sorted(folder.iterdir()) if each.is_dir())
    runs = [path for each in (folder, *below) if (path := _run_in(each))]
    # A folder with jobs/ holds records of jobs, and no file of pytest-benchmark's.
    if not paths and not imported and not (folder / JOBS).is_dir():
        paths = [
            path
            for path in sorted(folder.rglob("*.json"))
            if path.name not in (CAMPAIGN, IMPORTED)
            and TRACKER not in path.relative_to(folder).parts[:-1]
        ]
    return list(dict.fromkeys(paths + imported + runs))


def _run_in(folder: Path) -> Path | None:
    """Return the summary of a folder's training run, or its epochs where it left no summary."""
    summary, epochs = folder / SUMMARY, folder / EPOCHS
    if epochs.is_file() and training_runs.world_size(epochs) is not None:
        return summary if summary.exists() else epochs
    with suppress(ValueError):
        if training_runs.is_summary(read_json(summary)):
            return summary
    return None


def read(source: Path) -> tuple[Path, Any, Contradictions]:
    """Return the file that was read (source or substitute), its content, and contradictions.

    If the journal contradicts the result, the journal is read.

    Raises:
        ValueError: None of them can be read.
    """
    if source.name == EPOCHS:
        raise ValueError(
            f"{source.parent}: this training run has no {SUMMARY}, so it is unfinished; finish it "
            "with --resume"
        )
    other = source.with_name(JOURNAL if source.name == RESULT else RESULT)
    problems = []
    for path in [source, other] if in_campaign(source) and other.exists() else [source]:
        try:
            return _newest(path, read_document(path))
        except ValueError as error:
            problems.append(error)
    raise problems[0]


def _newest(path: Path, result: Any) -> tuple[Path, Any, Contradictions]:
    """Return a file and its content, or the journal if that is ahead or contradicts it.

    A session stopped by hand writes its result; one that resumes it and is killed does not, and
    then only the journal holds the cases measured since.
    """
    own = path.with_name(JOURNAL)
    if path.name != RESULT or not own.exists():
        return path, result, {}
    try:
        kept = read_document(own)
        found = journal.contradictions(result, kept)
        is_read = bool(found) or journal.is_ahead(own, result)
    except ValueError:  # of a corrupt journal, the result is what can be read
        return path, result, {}
    return (own, kept, found) if is_read else (path, result, {})


def in_campaign(source: Path) -> bool:
    """Tell whether a file is that of one of a campaign's launches."""
    return source.parent.parent.name == LAUNCHES


def in_training(source: Path) -> bool:
    """Tell whether a file is that of a training run whose epochs are known."""
    return source.name in (SUMMARY, EPOCHS) and source.with_name(EPOCHS).exists()


def campaign_folder(source: Path) -> Path:
    """Return the folder whose plan a launch's file would be in."""
    return (source.parents[2] if in_campaign(source) else source.parent).resolve()


def read_document(path: Path) -> Any:
    """Return what a result, a table or a journal holds, as pytest-benchmark writes it.

    Raises:
        ValueError: The file cannot be read.
    """
    if path.name != JOURNAL:
        return read_json(path)
    return printable(journal.rebuild(path))


def read_json(path: Path) -> Any:
    """Return a file's JSON value, its text made printable.

    Raises:
        ValueError: The file is missing, empty, too large, cut short or not JSON.
    """
    content = files.content(path)
    if not content.strip():
        raise ValueError(f"{path}: the file is empty; delete it or measure again")

    def plain(content: bytes) -> Any:  # in a third of the time of the standard library
        return from_json(content, allow_inf_nan=False)

    try:
        # A NaN or an infinity counts as not known, so that the check can name its place.
        document = files.parse(content, lambda _: None, plain)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON, perhaps truncated: {error}") from error
    # Without an escape in its text, ASCII holds no more than line ends.
    return document if content.isascii() and b"\\" not in content else printable(document)


def printable(value: Any) -> Any:
    """Return a JSON value whose texts are one line each and safe to print."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): printable(item) for name, item in value.items()}
    return value
