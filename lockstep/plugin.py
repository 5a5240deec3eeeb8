"""The pytest plugin that an installation brings: the fixture `lockstep`, and nothing before it.

pytest loads this file in every session of the environment, so it imports only pytest, adds no
option and no marker. What measures is loaded once a collected test asks for the fixture; a session
known to measure, by a checkout's conftest.py or by `lockstep run`, loads it at its start.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.launch import FIXTURE, HOOKS, leave_files

if TYPE_CHECKING:
    from lockstep.measure.harness import Harness


@pytest.fixture
def lockstep(request: pytest.FixtureRequest, benchmark: Any) -> "Harness":
    """Return what a test measures with.

    `lockstep.measure(step, samples=...)` times a step on every rank, keeps the result, and returns
    the seconds per round of this rank, shape (num_rounds,).
    """
    from lockstep.launch import hooks

    return request.config.stash[hooks.SESSION].harness(request.node, benchmark)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    # Before a plugin opens its file: few plugins can be taken out later.
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    launcher = os.environ.get("LOCKSTEP_LAUNCHER", "torchrun" if by_torchrun else "")
    if launcher:
        from lockstep.ranks.placement import VARIABLES

        rank, *_ = VARIABLES.get(launcher, [""])
        if os.environ.get(rank, "0") != "0":  # a rank above 0 has rank 0's options
            leave_files(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = any(FIXTURE in getattr(item, "fixturenames", ()) for item in items)
    if config.pluginmanager.hasplugin(HOOKS) or not asked:
        return
    config.pluginmanager.import_plugin(HOOKS)
    from lockstep.launch import hooks

    config.stash[hooks.CAME_LATE] = True
    hooks.pytest_collection_modifyitems(config, items)  # pytest has listed these hooks already


@pytest.hookimpl(trylast=True)  # after pytest-benchmark's table
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what bounds each test of one's own, and what makes a page of them."""
    hooks = config.pluginmanager.get_plugin(HOOKS)
    folder = hooks.results_of_session(config) if hooks else None
    if folder:
        for line in _cards(folder):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"lockstep: for a page: lockstep report {folder}")


def _cards(folder: Path) -> list[str]:
    try:
        from lockstep.core.metrics import GOOD_EFFICIENCY
        from lockstep.report.compute.evaluation import evaluate_folder
        from lockstep.report.words.verdict_card import printed
    except ImportError:  # an image needs less to measure than a report needs
        return []
    try:
        own = [curve for curve in evaluate_folder(folder).series if curve.row.is_own_test]
    except ValueError:  # every case has failed
        return []
    return [*printed(own, GOOD_EFFICIENCY), ""] if own else []
