"""The options of a launch: what a user may ask of pytest, checked, and equal on all ranks.

Options that several ranks cannot take, or that would have no effect, are refused. Each refusal
rests on the command line and the installed plugins, which are equal on all ranks. Functions raise
ValueError for the first thing that they refuse: the fact, why, and what to do.
"""

import argparse
import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockstep.core import factors, sizes
from lockstep.core.formats import counted
from lockstep.core.record import OWN
from lockstep.machine import provenance
from lockstep.measure.batches import Goal

MAX_SEED = 2**32
MAX_LIMIT_S = 1e6  # more than any job has
UNNAMED = Path("results") / "pytest"  # of sessions that name neither a journal nor a JSON


@dataclass(frozen=True)
class Settings:
    """What the command line asks of a launch; equal on all ranks. See `OPTIONS`.

    Attributes:
        size: The named size with the options' changes.
        timeout_s: Time-out of a collective and of the control plane.
        budget_s: Within this a case ends, its set-up and teardown included.
        threads_per_rank: None for its share of the cores.
        order_seed: None for one that rank 0 draws.
        journal_path: None keeps no finished cases.
        goal: When a case has enough rounds; None for the fixed number.
        part: (K, N) for the K-th of N parts of the selected cases, K from 1; None for all.
        labels: What the launcher calls this launch (campaign, launch, repeat).
    """

    size_name: str
    size: sizes.Size
    device: str | None
    timeout_s: float
    budget_s: float
    threads_per_rank: int | None
    seed: int
    order_seed: int | None
    result_path: Path | None
    journal_path: Path | None
    resume: bool
    skip_failed: bool
    after: str
    goal: Goal | None
    part: tuple[int, int] | None
    stop_file: Path | None
    causes: bool
    data_root: Path
    labels: dict[str, str]
    telemetry: bool = True
    on_oom: str | None = None


class PrecisionAction(argparse.Action):
    """Take a precision of numbers, or in per cent that of the measurement."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the option, or pytest-benchmark's."""
        if values in sizes.PRECISIONS:
            namespace.precision = values
        elif (per_cent := re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]+)?)%", values)) and float(
            per_cent[1]
        ):
            namespace.benchmark_precision = float(per_cent[1]) / 100
        else:
            known = ", ".join(sizes.PRECISIONS)
            parser.error(f"argument {option_string}: {values!r} is not one of {known}, nor N%")


# option -> arguments of addoption
OPTIONS: dict[str, dict[str, Any]] = {
    "--size": {
        "choices": list(sizes.SIZES),
        "help": "how much to measure (node on GPUs, else laptop)",
    },
    "--device": {"choices": ["cpu", "cuda"], "help": "device (cuda where there is one)"},
    "--workload": {"help": "model of every training study, e.g. resnet50 or mlp:width=512"},
    "--precision": {
        "action": PrecisionAction,
        "metavar": "{" + ",".join(sizes.PRECISIONS) + "}",
        "help": "precision where it is not the question; N%% instead, such as 1%%, asks for rounds "
        "until the mean's margin of error is that small (--benchmark-precision)",
    },
    "--global-batch": {"type": int, "help": "batch of all ranks in the strong study"},
    "--local-batch": {"type": int, "help": "batch per rank in the other studies"},
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "FACTOR=VALUE,VALUE",
        "help": "values in the place of a study's own, such as bucket_cap_mb=1,5,10",
    },
    "--rounds": {"type": int, "help": "timed rounds of each case"},
    "--warmup-rounds": {"type": int, "help": "untimed rounds before them"},
    "--steps-per-round": {"type": int, "help": "steps in a round"},
    "--seed": {"type": int, "default": 0, "help": "seed of parameters and data (default: 0)"},
    "--order-seed": {"type": int, "help": "seed of the order of cases (drawn, and recorded)"},
    "--comm-timeout": {
        "type": float,
        "metavar": "SECONDS",
        "help": "time a collective waits for a missing rank (300, or a third of --case-budget)",
    },
    "--case-budget": {
        "type": float,
        "metavar": "SECONDS",
        "help": "time a case may take, set-up and teardown included (900, or 3 x --comm-timeout)",
    },
    "--threads-per-rank": {
        "type": int,
        "help": "threads of a rank (OMP_NUM_THREADS, or its share of the cores)",
    },
    "--journal": {"type": Path, "help": "keep finished cases here (beside --benchmark-json)"},
    "--resume": {"action": "store_true", "help": "leave out the cases the journal already holds"},
    "--skip-failed": {"action": "store_true", "help": "with --resume: those that just failed, too"},
    "--after": {
        "default": "",
        "metavar": "TEXT",
        "help": "with --skip-failed: how the session before ended; the case it was in failed so",
    },
    "--no-causes": {
        "action": "store_true",
        "help": "do not time the variants of a step that say where its time goes",
    },
    "--on-oom": {
        "choices": ["halve"],
        "help": "measure a step that a rank has no memory for with half the batch, and flag it: of "
        "strong, weak, precision, bucket, sensitivity and accumulation",
    },
    "--part": {"metavar": "K/N", "help": "only the K-th of N parts of the selected cases"},
    "--stop-file": {
        "type": Path,
        "metavar": "PATH",
        "help": "end in order, with exit code 75, before the next case once this file exists",
    },
    "--data-root": {"type": Path, "default": Path("data"), "help": "folder for data files"},
    "--no-telemetry": {
        "action": "store_true",
        "help": "do not sample utilisation, clocks, power and memory while rounds are timed",
    },
    "--torch-trace": {
        "type": Path,
        "metavar": "FOLDER",
        "help": "trace three steps of each case by torch.profiler into this folder, and say what "
        "of them forward, backward, communication and data take, also as JSON; keeps no result",
    },
    "--label": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "a fact of the launcher's to keep with the results",
    },
}


def defaults() -> dict[str, Any]:
    """Return the options of an empty command line, name -> value."""
    return {
        name.removeprefix("--").replace("-", "_"): arguments.get(
            "default", False if arguments.get("action") == "store_true" else None
        )
        for name, arguments in OPTIONS.items()
    }


def read(option: Any) -> Settings:
    """Return what a command line asks for."""
    size_name = option.size
    if size_name is None:
        import torch

        has_gpu = option.device == "cuda" or (option.device is None and torch.cuda.is_available())
        size_name = "node" if has_gpu else "laptop"
    timeout_s, budget_s = _limits(option)
    margin = option.benchmark_precision
    journal_path = None
    if not (option.benchmark_disable or option.torch_trace):
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        journal_path = UNNAMED / stamp / "journal.jsonl"
        if option.journal:
            journal_path = Path(option.journal)
        elif option.benchmark_json:
            journal_path = Path(option.benchmark_json).with_suffix(".journal.jsonl")
    same = (
        *("device", "threads_per_rank", "seed", "order_seed", "resume", "skip_failed", "after"),
        *("stop_file", "data_root", "on_oom"),
    )
    return Settings(
        **{name: getattr(option, name) for name in same},
        size_name=size_name,
        size=sizes.adapt(sizes.find(size_name), **_changes(option)),
        timeout_s=timeout_s,
        budget_s=budget_s,
        result_path=Path(option.benchmark_json) if option.benchmark_json else None,
        journal_path=journal_path,
        goal=None if margin is None else Goal(margin, option.benchmark_confidence),
        part=part(option),
        causes=not (option.no_causes or option.torch_trace),
        labels=_labels(option),
        telemetry=not (option.no_telemetry or option.torch_trace),
    )


def check(option: Any) -> None:
    """Refuse a value that is not allowed, whatever is measured."""
    # What a count may be is the same in every size.
    sizes.adapt(sizes.find("smoke"), **_changes(option))
    _labels(option)
    part(option)
    _limits(option)
    for name, seed in (("--seed", option.seed), ("--order-seed", option.order_seed)):
        if seed is not None and not 0 <= seed < MAX_SEED:
            raise ValueError(f"{name} {seed} is not from 0 to {MAX_SEED - 1}")
    # Sessions that measure nothing may leave pytest-benchmark out.
    path, result = option.journal, getattr(option, "benchmark_json", None)
    if option.torch_trace and (path or result):
        raise ValueError(
            "--torch-trace slows the steps that it sees, so nothing is kept of them; leave out "
            "--journal and --benchmark-json"
        )
    for name, given in (("--journal", path), ("--benchmark-json", result)):
        if given and not given.name:
            raise ValueError(f"{name} {given} names no file; give the path of one")
    if path and result and os.path.realpath(path) == os.path.realpath(result):
        raise ValueError(f"--journal and --benchmark-json are both {path}; give each its own file")


def _changes(option: Any) -> dict[str, Any]:
    """Return what the options change in the size."""
    changes = {name: getattr(option, name) for name in sizes.CHANGES}
    return changes | {"factors": tuple(factors.read(option.set).items())}


def _limits(option: Any) -> tuple[float, float]:
    """Return the seconds of a collective and of a case; the first must be able to fail before."""
    timeout_s, budget_s = option.comm_timeout, option.case_budget
    for name, given in (("--comm-timeout", timeout_s), ("--case-budget", budget_s)):
        if given is not None and not 0 < given <= MAX_LIMIT_S:
            raise ValueError(f"{name} {given:g} must be above 0 and at most {MAX_LIMIT_S:.0f} s")
    if timeout_s is None:
        timeout_s = 300.0 if budget_s is None else min(300.0, budget_s / 3)
    if budget_s is None:
        budget_s = 3 * timeout_s
    if timeout_s >= budget_s:
        raise ValueError(
            f"--case-budget {budget_s:g} is not above the {timeout_s:g} s of --comm-timeout"
        )
    return float(timeout_s), float(budget_s)


def _labels(option: Any) -> dict[str, str]:
    for label in option.label:
        if "=" not in label:
            raise ValueError(f"--label {label!r} is not NAME=VALUE")
        name = label.partition("=")[0]
        if provenance.names_a_secret(name):
            raise ValueError(f"--label {name}=... names a secret, and labels stay in the results")
    return dict(label.split("=", 1) for label in option.label)


def part(option: Any) -> tuple[int, int] | None:
    """Return (K, N) for the K-th of N parts, K from 1; None for all cases."""
    if option.part is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", option.part)
    number, num_parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= num_parts:
        raise ValueError(f"--part {option.part!r} is not K/N with K from 1 to N, such as 3/27")
    return number, num_parts


WORKERS = "each rank's workers would join as that rank"
OWN_LIST = "each rank keeps its own list of failures"
DEBUGGER = "a rank in a debugger keeps the others waiting"
# pytest's or a plugin's option -> why ranks cannot take it, and what to do
REFUSED_OPTIONS = {
    "numprocesses": ("-n", WORKERS, "start more ranks"),
    "tx": ("--tx", WORKERS, "start more ranks"),  # which -n sets, too
    "lf": ("--lf", OWN_LIST, "give --resume"),
    "failedfirst": ("--ff", OWN_LIST, "give --resume"),
    "stepwise": ("--sw", OWN_LIST, "give --resume"),
    "usepdb": ("--pdb", DEBUGGER, "measure one rank"),
    "trace": ("--trace", DEBUGGER, "measure one rank"),
}
# Options of pytest-benchmark about rounds, which are ours -> what to give instead
FEWER_OR_MORE = "give --rounds, or --precision 1% for as many as that margin takes"
LONGER = "give --steps-per-round"
PROFILED = "profile from outside, as with `py-spy record --subprocesses` or `nsys profile`"
IGNORED = {
    "benchmark_min_time": LONGER,
    "benchmark_max_time": FEWER_OR_MORE,
    "benchmark_min_rounds": FEWER_OR_MORE,
    "benchmark_calibration_precision": LONGER,
    **dict.fromkeys(("benchmark_warmup", "benchmark_warmup_iterations"), "give --warmup-rounds"),
    "benchmark_timer": "leave it out, for each rank times its rounds by time.perf_counter",
    **dict.fromkeys(
        (f"benchmark_cprofile{part}" for part in ("", "_loops", "_top", "_dump")), PROFILED
    ),
}
IN_A_WORKER = "-n would measure several cases at once, each slowed down by the others; leave it out"


def refuse_options(config: pytest.Config) -> None:
    """Refuse options that several ranks cannot take."""
    for dest, (name, why, instead) in REFUSED_OPTIONS.items():
        if config.getoption(dest, None):
            raise ValueError(f"{name} is not for several ranks: {why}; {instead}")


def refuse_ignored(config: pytest.Config) -> None:
    """Refuse options of pytest-benchmark that would change nothing, or end in an error."""
    usual = config._parser.parse_known_args([])  # noqa: SLF001, pytest has no public name
    for dest, instead in IGNORED.items():
        if config.getoption(dest, None) != getattr(usual, dest, None):
            option = f"--{dest.replace('_', '-')}"
            raise ValueError(f"{option} does nothing here, for rounds are fixed; {instead}")


def refuse_selection(
    config: pytest.Config, deselected: Sequence[pytest.Item], labels: Mapping[str, str]
) -> None:
    """Refuse to leave out cases of a campaign's launch, which would then pass for complete.

    Without labels nobody planned the launch, and all may be left out.
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
    """Refuse tests whose rounds or results would be of no use."""
    for item in items:
        is_case = item.get_closest_marker("cases") is not None
        function: Any = getattr(item, "obj", None)
        parameters = inspect.signature(function).parameters if callable(function) else ()
        if (is_case or world_size > 1) and "benchmark" in parameters:
            raise ValueError(
                f"{item.nodeid} asks for `benchmark`, whose rounds each rank would choose for "
                "itself; ask for `lockstep` and time with lockstep.time(step)"
            )
    seen: dict[str, str] = {}
    for item in measured:
        other = seen.setdefault(item.name, item.nodeid)
        if other != item.nodeid:
            raise ValueError(
                f"{other} and {item.nodeid} have one name, by which a result is known; give one of "
                "them another"
            )
