"""The pytest plugin that an installation brings: the fixture `lockstep`, and nothing before it.

pytest loads this file in every session of the environment, so it imports only pytest, adds no
option and no marker. What measures is loaded once a collected test asks for the fixture; a session
known to measure, by a checkout's conftest.py or by `lockstep run`, loads it at its start.
"""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lockstep.measure.harness import Harness

FIXTURE = "lockstep"
HOOKS = "lockstep.launch.hooks"


@pytest.fixture
def lockstep(request: pytest.FixtureRequest, benchmark: Any) -> "Harness":
    """Return what a test measures with: `lockstep.measure(step, samples=...)`."""
    from lockstep.launch import hooks

    return hooks.harness_of(request.node, benchmark)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin(HOOKS) or not any(map(_asks_for_it, items)):
        return
    config.pluginmanager.import_plugin(HOOKS)
    from lockstep.launch import hooks

    config.stash[hooks.CAME_LATE] = True
    hooks.pytest_collection_modifyitems(config, items)  # pytest has listed these hooks already


def _asks_for_it(item: pytest.Item) -> bool:
    return FIXTURE in getattr(item, "fixturenames", ())
