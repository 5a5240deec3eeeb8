"""What a session refuses: options that several ranks cannot take, or that would have no effect.

Each refusal rests on the command line and the installed plugins, which are equal on all ranks.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from lockstep.core.records.record import OWN
from lockstep.core.text.formats import counted

WORKERS = "each rank's workers would join as that rank"
# pytest's or a plugin's option -> why ranks cannot take it, and what to do
OPTIONS = {
    "numprocesses": ("-n", WORKERS, "start more ranks"),
    "tx": ("--tx", WORKERS, "start more ranks"),  # which -n sets, too
    "lf": ("--lf", "each rank keeps its own list of failures", "give --resume"),
    "failedfirst": ("--ff", "each rank keeps its own list of failures", "give --resume"),
    "stepwise": ("--sw", "each rank keeps its own list of failures", "give --resume"),
    "usepdb": ("--pdb", "a rank in a debugger keeps the others waiting", "measure one rank"),
    "trace": ("--trace", "a rank in a debugger keeps the others waiting", "measure one rank"),
}
# Options of pytest-benchmark about rounds, which are ours -> what to give instead
FEWER_OR_MORE = "give --rounds, or --precision 1% for as many as that margin takes"
LONGER = "give --steps-per-round"
WARM = "give --warmup-rounds"
PROFILED = "profile from outside, as with `py-spy record --subprocesses` or `nsys profile`"
IGNORED = {
    "benchmark_min_time": LONGER,
    "benchmark_max_time": FEWER_OR_MORE,
    "benchmark_min_rounds": FEWER_OR_MORE,
    "benchmark_calibration_precision": LONGER,
    "benchmark_warmup": WARM,
    "benchmark_warmup_iterations": WARM,
    "benchmark_timer": "leave it out, for each rank times its rounds by time.perf_counter",
    "benchmark_cprofile": PROFILED,
    "benchmark_cprofile_loops": PROFILED,
    "benchmark_cprofile_top": PROFILED,
    "benchmark_cprofile_dump": PROFILED,
}
IN_A_WORKER = "-n would measure several cases at once, each slowed down by the others; leave it out"


def refuse_options(config: pytest.Config) -> None:
    """Refuse options that several ranks cannot take.

    Raises:
        ValueError: The first such option, why, and what to do.
    """
    for name, why, instead in _given(config):
        raise ValueError(f"{name} is not for several ranks: {why}; {instead}")


def _given(config: pytest.Config) -> Iterator[tuple[str, str, str]]:
    for dest, refusal in OPTIONS.items():
        if config.getoption(dest, None):
            yield refusal


def refuse_ignored(config: pytest.Config) -> None:
    """Refuse options of pytest-benchmark that would change nothing, or end in an error.

    Raises:
        ValueError: The first such option that has another value than its default.
    """
    usual = config._parser.parse_known_args([])  # noqa: SLF001, pytest has no public name
    for dest, instead in IGNORED.items():
        if config.getoption(dest, None) != getattr(usual, dest, None):
            option = f"--{dest.replace('_', '-')}"
            raise ValueError(f"{option} does nothing here, for rounds are fixed; {instead}")
    if config.getoption("benchmark_histogram", None) and find_spec("pygal") is None:
        raise ValueError(
            "--benchmark-histogram draws with pygal, which this Python does not have; "
            "pip install 'pytest-benchmark[histogram]', or leave it out and use lockstep report"
        )


def refuse_selection(
    config: pytest.Config, deselected: Sequence[pytest.Item], labels: Mapping[str, str]
) -> None:
    """Refuse to leave out cases of a campaign's launch, which would then pass for complete.

    Without labels nobody planned the launch, and all may be left out.

    Raises:
        ValueError: A case of the launch's studies is left out.
    """
    studies = set(labels.get("studies", "").split(","))
    left_out = [
        item for item in deselected if studies & {OWN, *(mark.name for mark in item.iter_markers())}
    ]
    if left_out:
        keyword = config.getoption("keyword")
        by = f"-k {keyword!r} leaves" if keyword else "--deselect or a plugin leaves"
        raise ValueError(
            f"{by} out {counted(len(left_out), 'case')} of this campaign's launch, the first is "
            f"{left_out[0].nodeid}; unset it in PYTEST_ADDOPTS, or name the studies you want"
        )
    if "studies" in labels and config.getoption("benchmark_skip", False):
        raise ValueError(
            "--benchmark-skip leaves out every case of this campaign's launch; unset it in "
            "PYTEST_ADDOPTS"
        )


def refuse_tests(
    items: Iterable[pytest.Item], measured: Iterable[pytest.Item], world_size: int
) -> None:
    """Refuse tests whose rounds or results would be of no use.

    Raises:
        ValueError: One times by itself, or two that are measured share a name.
    """
    refuse_own_rounds(items, world_size)
    refuse_one_name(measured)


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
                "itself; ask for `lockstep` and time with lockstep.time(step)"
            )


def refuse_one_name(items: Iterable[pytest.Item]) -> None:
    """Refuse measured tests that share a name, by which a result is known.

    Raises:
        ValueError: The first two of them.
    """
    seen: dict[str, str] = {}
    for item in items:
        other = seen.setdefault(item.name, item.nodeid)
        if other != item.nodeid:
            raise ValueError(
                f"{other} and {item.nodeid} have one name, by which a result is known; give one of "
                "them another"
            )


def _parameters(item: pytest.Item) -> Iterable[str]:
    function: Any = getattr(item, "obj", None)
    return inspect.signature(function).parameters if callable(function) else ()
