"""Collected tests as cases: which are measured, under which name, with which parameters."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep import content, workloads
from lockstep.core.record import OWN
from lockstep.launch import FIXTURE


def case_of(item: pytest.Item) -> str:
    """Return a case's name, the same from whichever folder the suite is started.

    pytest names an item from its root folder, and where the suite is installed as a package that
    is a folder above both the suite and the current one.
    """
    if not item.path.is_relative_to(content.ROOT):
        return item.nodeid
    return f"{item.path.relative_to(content.ROOT).as_posix()}::{item.nodeid.partition('::')[2]}"


def is_measured(item: pytest.Item) -> bool:
    """Return whether a collected test measures: it asks for `lockstep`, or is of a size's study."""
    fixtures = getattr(item, "fixturenames", ())
    return FIXTURE in fixtures or has_size(item)


def has_size(item: pytest.Item) -> bool:
    """Return whether a size gives the case its parameters."""
    return item.get_closest_marker("cases") is not None


def study_of(item: pytest.Item) -> str:
    """Return a measured case's study; `OWN` for a user's test, which says how it scales."""
    marker = item.get_closest_marker("cases")
    return str(marker.args[0]) if marker else OWN


def params_of(item: pytest.Item) -> dict[str, Any]:
    """Return a case's parameters as JSON knows them, name -> value; a class by its name."""
    params: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    for name, value in params.items():
        is_number = isinstance(value, float) and math.isfinite(value)
        if not (value is None or is_number or isinstance(value, (bool, int, str))):
            params[name] = str(getattr(value, "__name__", value))
    return params


def source_sha256(item: pytest.Item) -> str | None:
    """Return the digest of what a case measures; None where the suite alone defines that."""
    from lockstep.workloads import source

    own = None if _is_of_suite(item.path.resolve()) else item.path
    if spec := _workload_of(item):
        return source.sha256(workloads.make(spec), own)
    return source.of_file(own) if own else None


def _workload_of(item: pytest.Item) -> str | None:
    return params_of(item).get("workload") if has_size(item) else None


def own_file(items: Sequence[pytest.Item]) -> Path | None:
    """Return the file of the first own test or workload; None where all is the suite's."""
    from lockstep.workloads import source

    for item in items:
        spec = _workload_of(item)
        builder = source.file_of(workloads.builder_of(spec)) if spec else None
        for path in (item.path.resolve(), (builder or item.path).resolve()):
            if not _is_of_suite(path):
                return path
    return None


def _is_of_suite(path: Path) -> bool:
    """Tell whether a file is the suite's; a repository inside its checkout is not."""
    return path.is_relative_to(content.ROOT / "bench") or path.is_relative_to(content.PACKAGE)


def of_part(items: list[pytest.Item], part: tuple[int, int] | None) -> list[pytest.Item]:
    """Return the K-th of N parts of the items, every N-th from the K-th on; refuse an empty one."""
    if part is None:
        return items
    number, num_parts = part
    if number > len(items):
        raise ValueError(
            f"--part {number}/{num_parts} holds no case, for {len(items)} are selected; "
            f"choose a part from 1 to {len(items)}"
        )
    return items[number - 1 :: num_parts]
