"""What a run of a program has to say: its metrics, and that it is sane."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.campaign.program.failed_runs import Lack, RunError
from lockstep.campaign.program.programs import Run, end_of
from lockstep.campaign.program.table import Command, Metric, fill

# File systems keep times in steps.
CLOCK_S = 2.0


def values(command: Command, run: Run, given: Mapping[str, Any]) -> dict[str, float]:
    """Return metric -> value of a run.

    Raises:
        RunError: It is not sane, or lacks a metric.
    """
    try:
        if command.sanity is not None and not re.search(command.sanity, run.output, re.MULTILINE):
            raise RunError("sanity", pattern=command.sanity)
        return {metric.name: _value(metric, run, command, given) for metric in command.metrics}
    except RunError as error:
        error.said = run.output
        raise


def _value(metric: Metric, run: Run, command: Command, given: Mapping[str, Any]) -> float:
    text = run.output
    if metric.file is not None:
        name = fill(metric.file, given, quoted=False)
        text = _content(Path(command.workdir or "", name), metric, run)
    found = _by_regex(metric, text) if metric.regex else _by_json(metric, text)
    try:
        value = float(found)
    except (OverflowError, TypeError, ValueError):
        value = math.nan
    if found is None or isinstance(found, bool) or not math.isfinite(value):
        raise _missing(metric, "no-number")
    if metric.primary and value <= 0:
        raise _missing(metric, "not-positive")
    return value


def _content(path: Path, metric: Metric, run: Run) -> str:
    try:
        if path.stat().st_mtime < run.began - CLOCK_S:
            raise _missing(metric, "old-file")
        return end_of(path)
    except OSError:
        raise _missing(metric, "no-file") from None


def _by_regex(metric: Metric, text: str) -> Any:
    assert metric.regex is not None
    found = None
    for found in re.finditer(metric.regex, text, re.MULTILINE):  # noqa: B007, the last counts
        pass
    if found is None:
        raise _missing(metric, "no-match")
    return found[1]


def _by_json(metric: Metric, text: str) -> Any:
    assert metric.json_path is not None
    found = _document(text)
    if found is None:
        raise _missing(metric, "no-json")
    for key in metric.json_path.split("."):
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise _missing(metric, "no-key")
    return found


def _document(text: str) -> Any:
    """Return what the whole text, or its last line that can be read so, holds as JSON."""
    for part in (text, *reversed(text.splitlines())):
        if part.lstrip()[:1] in ("{", "["):
            try:
                return json.loads(part)
            except (ValueError, RecursionError):
                continue
    return None


def _missing(metric: Metric, lack: Lack) -> RunError:
    return RunError("missing-metric", metric=metric.name, lack=lack)
