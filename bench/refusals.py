"""What a session of several ranks refuses, because ranks would order, repeat or write apart.

Each refusal rests on the command line and the installed plugins, which are equal on all ranks.
"""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

WORKERS = "each rank's workers would join as that rank"
OTHER_CASES = "ranks would run other cases than each other"
# pytest's or a plugin's option -> why ranks cannot take it, and what to do
OPTIONS = {
    "numprocesses": ("-n", WORKERS, "start more ranks"),
    "tx": ("--tx", WORKERS, "start more ranks"),  # which -n sets, too
    "lf": ("--lf", "each rank keeps its own list of failures", "give --resume"),
    "failedfirst": ("--ff", "each rank keeps its own list of failures", "give --resume"),
    "newfirst": ("--nf", "hosts may see other times of files", "leave it out"),
    "stepwise": ("--sw", "each rank keeps its own list of failures", "give --resume"),
    "usepdb": ("--pdb", "a rank in a debugger keeps the others waiting", "measure one rank"),
    "trace": ("--trace", "a rank in a debugger keeps the others waiting", "measure one rank"),
    "basetemp": ("--basetemp", "ranks would delete each other's files", "leave it out"),
    "random_order_enabled": ("--random-order", OTHER_CASES, "leave it out"),
    "random_order_bucket": ("--random-order-bucket", OTHER_CASES, "leave it out"),
    "random_order_seed": ("--random-order-seed", OTHER_CASES, "leave it out"),
}
IN_A_WORKER = "-n would measure several cases at once, each slowed down by the others; leave it out"
RANDOMLY = ("pytest-randomly", OTHER_CASES, "give -p no:randomly")
# What pytest-random-order puts before the values of its options that nobody gave
NOT_GIVEN = "default:"


class AgreedError(ValueError):
    """What all ranks refuse alike once they have met: each knows that rank 0 says it."""


def refuse_options(config: pytest.Config) -> None:
    """Refuse what several ranks cannot be told.

    Raises:
        ValueError: The first such option, why, and what to do.
    """
    for name, why, instead in _given(config):
        raise ValueError(f"{name} is not for several ranks: {why}; {instead}")


def _given(config: pytest.Config) -> Iterator[tuple[str, str, str]]:
    for dest, refusal in OPTIONS.items():
        value = config.getoption(dest, None)
        if value and not str(value).startswith(NOT_GIVEN):
            yield refusal
    if config.pluginmanager.hasplugin("randomly") and config.getoption("randomly_reorganize", True):
        yield RANDOMLY


def refuse_own_rounds(items: Iterable[pytest.Item], world_size: int) -> None:
    """Refuse cases that time with pytest-benchmark's fixture: each rank would choose its rounds.

    Raises:
        ValueError: The first such case.
    """
    for item in items:
        is_case = item.get_closest_marker("cases") is not None
        if (is_case or world_size > 1) and "benchmark" in _parameters(item):
            raise ValueError(
                f"{item.nodeid} asks for `benchmark`, whose rounds each rank would choose for "
                "itself; ask for `harness` and time with harness.time(step)"
            )


def _parameters(item: pytest.Item) -> Iterable[str]:
    function: Any = getattr(item, "obj", None)
    return inspect.signature(function).parameters if callable(function) else ()
