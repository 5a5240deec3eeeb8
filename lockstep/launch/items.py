"""Collected tests as cases: which tests are measured, their names and their parameters."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep import content, workloads
from lockstep.core.record import OWN
from lockstep.launch import FIXTURE


def case_of(item: pytest.Item) -> str:
    """Return a case's name, which does not depend on the folder that pytest starts in."""
    if not item.path.is_relative_to(content.ROOT):
        return item.nodeid
    return f"{item.path.relative_to(content.ROOT).as_posix()}::{item.nodeid.partition('::')[2]}"


def is_measured(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return FIXTURE in fixtures or has_size(item)


def has_size(item: pytest.Item) -> bool:
    return item.get_closest_marker("cases") is not None


def study_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker("cases")
    return str(marker.args[0]) if marker else OWN


def params_of(item: pytest.Item) -> dict[str, Any]:
    """Return a case's parameters for JSON, name -> value; a class becomes its name."""
    params: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    for name, value in params.items():
        is_number = isinstance(value, float) and math.isfinite(value)
        if not (value is None or is_number or isinstance(value, (bool, int, str))):
            params[name] = str(getattr(value, "__name__", value))
    return params


def source_sha256(item: pytest.Item) -> str | None:
    """Return the digest of the user's own workload or test; None for built-in cases."""
    from lockstep.workloads import source

    own = None if _is_of_suite(item.path.resolve()) else item.path
    if spec := _workload_of(item):
        return source.sha256(workloads.make(spec), own)
    return source.of_file(own) if own else None


def _workload_of(item: pytest.Item) -> str | None:
    return params_of(item).get("workload") if has_size(item) else None


def own_file(items: Sequence[pytest.Item]) -> Path | None:
    """Return the file of the first test or workload of the user; None if all are built in."""
    from lockstep.workloads import source

    for item in items:
        spec = _workload_of(item)
        builder = source.file_of(workloads.builder_of(spec)) if spec else None
        for path in (item.path.resolve(), (builder or item.path).resolve()):
            if not _is_of_suite(path):
                return path
    return None


def _is_of_suite(path: Path) -> bool:
    return path.is_relative_to(content.ROOT / "bench") or path.is_relative_to(content.PACKAGE)


def select_part(items: list[pytest.Item], part: tuple[int, int] | None) -> list[pytest.Item]:
    """Return part (K, N) of the items: every N-th item from the K-th on; None for all items."""
    if part is None:
        return items
    number, num_parts = part
    if number > len(items):
        raise ValueError(
            f"--part {number}/{num_parts} has no case, because only {len(items)} cases are "
            f"selected; choose K from 1 to {len(items)} in --part K/N"
        )
    return items[number - 1 :: num_parts]
