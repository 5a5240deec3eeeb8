"""The pytest plugin that an installation brings: the fixture `lockstep`, and no option or marker.

pytest loads it in every session, so it imports pytest alone until a test asks for the fixture.
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
    """Return the object that measures the step of a test.

    `lockstep.measure(step, samples=...)` times a step on every rank, keeps the result, and returns
    the seconds per round of this rank, shape (num_rounds,).
    """
    from lockstep.launch import hooks

    return request.config.stash[hooks.SESSION].harness(request.node, benchmark)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    # This runs before plugins open their files: few plugins can be removed later.
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    launcher = os.environ.get("LOCKSTEP_LAUNCHER", "torchrun" if by_torchrun else "")
    if launcher:
        from lockstep.ranks.placement import VARIABLES

        rank, *_ = VARIABLES.get(launcher, [""])
        if os.environ.get(rank, "0") != "0":  # a rank above 0 has rank 0's options
            leave_files(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    uses_fixture = any(FIXTURE in getattr(item, "fixturenames", ()) for item in items)
    if config.pluginmanager.hasplugin(HOOKS) or not uses_fixture:
        return
    config.pluginmanager.import_plugin(HOOKS)
    from lockstep.launch import hooks

    config.stash[hooks.CAME_LATE] = True
    hooks.pytest_collection_modifyitems(config, items)  # pytest has listed these hooks already


@pytest.hookimpl(trylast=True)  # after pytest-benchmark's table
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a card for each of the user's own tests, and the command that makes their page."""
    hooks = config.pluginmanager.get_plugin(HOOKS)
    folder = hooks.results_of_session(config) if hooks else None
    if folder:
        for line in _cards(folder):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"lockstep: to see the page, run lockstep report {folder}")


def _cards(folder: Path) -> list[str]:
    try:
        from lockstep.core.metrics import GOOD_EFFICIENCY
        from lockstep.report.compute.evaluation import evaluate_folder
        from lockstep.report.words.verdict_card import printed
    except ImportError:  # an image may lack what a report needs
        return []
    try:
        own = [curve for curve in evaluate_folder(folder).series if curve.row.is_own_test]
    except ValueError:  # every case has failed
        return []
    return [*printed(own, GOOD_EFFICIENCY), ""] if own else []
