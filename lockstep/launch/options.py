"""The options that a launch adds to pytest: checked, and equal on all ranks."""

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
from lockstep.core.files import default_folder
from lockstep.core.formats import counted, listed
from lockstep.core.record import OWN
from lockstep.core.studies import STEPS
from lockstep.machine import provenance
from lockstep.measure.harness import Goal

MAX_SEED = 2**32
MAX_LIMIT_S = 1e6  # longer than any job
# Folder of sessions without --journal and --benchmark-json.
UNNAMED = default_folder("results") / "pytest"


@dataclass(frozen=True)
class Settings:
    """The settings of a launch from the command line, equal on all ranks; see `OPTIONS`."""

    size_name: str
    size: sizes.Size  # with the options' changes
    device: str | None
    timeout_s: float  # limit of a collective, and of ranks that wait for each other
    budget_s: float  # limit of a case with its set-up and teardown
    threads_per_rank: int | None  # None for a share of the cores
    seed: int
    order_seed: int | None  # None for a random seed that rank 0 draws
    result_path: Path | None
    journal_path: Path | None  # None if no results are kept
    resume: bool
    skip_failed: bool
    after: str
    goal: Goal | None  # None for the fixed number of rounds
    part: tuple[int, int] | None  # (K, N) for the K-th of N parts of the cases, K from 1
    stop_file: Path | None
    causes: bool
    data_root: Path
    labels: dict[str, str]  # facts from the launcher: campaign, launch, repeat
    telemetry: bool = True
    on_oom: str | None = None


class PrecisionAction(argparse.Action):
    """Parse --precision: a floating-point precision, or N% for that of the measurement."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        per_cent = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]+)?)%", values)
        if values in sizes.PRECISIONS:
            namespace.precision = values
        elif per_cent and float(per_cent[1]):
            namespace.benchmark_precision = float(per_cent[1]) / 100
        else:
            known = ", ".join(sizes.PRECISIONS)
            parser.error(
                f"argument {option_string}: {values!r} is not allowed; give one of {known}, or a "
                "per cent value such as 1%"
            )


# option -> arguments of addoption
OPTIONS: dict[str, dict[str, Any]] = {
    "--size": {"choices": list(sizes.SIZES),
        "help": "how much to measure (default: node on GPUs, else laptop)"},
    "--device": {"choices": ["cpu", "cuda"],
        "help": "device of the ranks (default: cuda if there is a GPU)"},
    "--workload": {"help": "model to train in all studies, such as resnet50 or mlp:width=512"},
    "--precision": {"action": PrecisionAction, "metavar": "{" + ",".join(sizes.PRECISIONS) + "}",
        "help": "precision of all studies except the study `precision`. A per cent value such as "
                "1%% has another meaning: rounds are repeated until the margin of error of the "
                "mean is at most 1%% (like --benchmark-precision)"},
    "--global-batch": {"type": int, "help": "global batch of the study strong: samples per "
                                            "optimizer update over all ranks"},
    "--local-batch": {"type": int,
        "help": "local batch of all studies except strong: samples per optimizer update on each "
                "rank"},
    "--set": {"action": "append", "default": [], "metavar": "FACTOR=VALUE,VALUE",
        "help": (
            "values of a factor that replace the values in the study, such as bucket_cap_mb=1,5,10"
        )},
    "--rounds": {"type": int, "help": "number of timed rounds of each case"},
    "--warmup-rounds": {"type": int, "help": "number of untimed rounds before the timed rounds"},
    "--steps-per-round": {"type": int, "help": "number of steps in a round"},
    "--seed": {"type": int, "default": 0, "help": "random seed of parameters and data (default: "
                                                  "0)"},
    "--order-seed": {"type": int,
        "help": "random seed of the order of cases (default: drawn at random and recorded)"},
    "--comm-timeout": {"type": float, "metavar": "SECONDS",
        "help": "seconds that a collective waits for a missing rank (default: 300, or a third of "
                "--case-budget if that is less)"},
    "--case-budget": {"type": float, "metavar": "SECONDS",
        "help": "time limit of a case in seconds, including set-up and teardown (default: 3 x "
                "--comm-timeout)"},
    "--threads-per-rank": {"type": int,
        "help": "number of threads of each rank (default: OMP_NUM_THREADS, or an equal share of "
                "the cores)"},
    "--journal": {"type": Path,
        "help": (
            "file to which each finished case is written (default: in the folder of "
            "--benchmark-json)"
        )},
    "--resume": {"action": "store_true", "help": "leave out cases whose results the journal "
                                                 "already holds"},
    "--skip-failed": {"action": "store_true",
        "help": "with --resume, also leave out cases that failed in the previous session"},
    "--after": {"default": "", "metavar": "TEXT",
        "help": (
            "with --skip-failed: text that says why the previous session ended. The results show "
            "this text as the reason why the final case of that session failed"
        )},
    "--no-causes": {"action": "store_true",
        "help": "do not measure how a step's time divides into compute, communication and waits"},
    "--on-oom": {"choices": ["halve"],
        "help": "if a rank runs out of memory, measure the step with half the batch, and flag the "
                f"result; only the studies {listed(STEPS)} support this"},
    "--part": {"metavar": "K/N", "help": "divide the selected cases into N parts, and measure only "
                                         "the K-th part"},
    "--stop-file": {"type": Path, "metavar": "PATH",
        "help": (
            "path to check before each case: if this file exists, the session ends with exit code "
            "75"
        )},
    "--data-root": {"type": Path, "default": default_folder("data"),
        "help": "folder of the data sets"},
    "--no-telemetry": {"action": "store_true",
        "help": "do not sample utilisation, clocks, power and memory while rounds are timed"},
    "--torch-trace": {"type": Path, "metavar": "FOLDER",
        "help": (
            "folder into which torch.profiler traces three steps of each case. The shares of "
            "forward, backward, communication and data are printed, and written as JSON. The times "
            "are not kept as results"
        )},
    "--label": {"action": "append", "default": [], "metavar": "NAME=VALUE",
        "help": "fact to store in the results; give the option once for each fact"},
}  # fmt: skip


def defaults() -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    for name, arguments in OPTIONS.items():
        parser.add_argument(name, **arguments)
    return vars(parser.parse_args([]))


def read(option: Any) -> Settings:
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
        **{name: getattr(option, name) for name in same}, size_name=size_name,
        size=sizes.adapt(sizes.find(size_name), **_changes(option)), timeout_s=timeout_s,
        budget_s=budget_s,
        result_path=Path(option.benchmark_json) if option.benchmark_json else None,
        journal_path=journal_path,
        goal=None if margin is None else Goal(margin, option.benchmark_confidence),
        part=part(option), causes=not (option.no_causes or option.torch_trace),
        labels=_labels(option), telemetry=not (option.no_telemetry or option.torch_trace),
    )  # fmt: skip


def check(option: Any) -> None:
    """Refuse option values that no session allows."""
    # Counts have the same limits in every size.
    sizes.adapt(sizes.find("smoke"), **_changes(option))
    _labels(option)
    part(option)
    _limits(option)
    for option_name, seed in (("--seed", option.seed), ("--order-seed", option.order_seed)):
        if seed is not None and not 0 <= seed < MAX_SEED:
            raise ValueError(f"{option_name} is {seed}, but must be from 0 to {MAX_SEED - 1}")
    # A session that measures nothing may lack pytest-benchmark.
    path, result = option.journal, getattr(option, "benchmark_json", None)
    if option.torch_trace and (path or result):
        raise ValueError(
            "--torch-trace slows the steps, so their times are not kept; leave out --journal and "
            "--benchmark-json"
        )
    for option_name, file in (("--journal", path), ("--benchmark-json", result)):
        if file and not file.name:
            raise ValueError(f"{option_name} is {file}, but must be the path of a file")
    if path and result and os.path.realpath(path) == os.path.realpath(result):
        raise ValueError(
            f"--journal and --benchmark-json are both {path}; give each option its own file"
        )


def _changes(option: Any) -> dict[str, Any]:
    changes = {name: getattr(option, name) for name in sizes.CHANGES}
    return changes | {"factors": factors.check(factors.parse(option.set))}


def _limits(option: Any) -> tuple[float, float]:
    """Return the limits in seconds of a collective and of a case; the first is shorter."""
    timeout_s, budget_s = option.comm_timeout, option.case_budget
    for option_name, limit in (("--comm-timeout", timeout_s), ("--case-budget", budget_s)):
        if limit is not None and not 0 < limit <= MAX_LIMIT_S:
            raise ValueError(
                f"{option_name} is {limit:g} s, but must be above 0 and at most {MAX_LIMIT_S:.0f} s"
            )
    if timeout_s is None:
        timeout_s = 300.0 if budget_s is None else min(300.0, budget_s / 3)
    if budget_s is None:
        budget_s = 3 * timeout_s
    if timeout_s >= budget_s:
        raise ValueError(f"--case-budget {budget_s:g} must be above --comm-timeout {timeout_s:g}")
    return float(timeout_s), float(budget_s)


def _labels(option: Any) -> dict[str, str]:
    for label in option.label:
        if "=" not in label:
            raise ValueError(f"--label {label!r} is not NAME=VALUE")
        name = label.partition("=")[0]
        if provenance.names_a_secret(name):
            raise ValueError(
                f"--label {name}=... looks like a secret, but labels are stored in the results; "
                "remove this label"
            )
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


WORKERS = (
    "the pytest-xdist workers of a rank would all join the launch as the same rank; start more "
    "ranks instead of workers"
)
OWN_LIST = (
    "each rank keeps its own list of failed tests, and the lists may differ; pass --resume instead"
)
DEBUGGER = "a rank in a debugger keeps the other ranks waiting; start one rank only"
# Option of pytest or a plugin -> its name, and why several ranks cannot use it
REFUSED_OPTIONS = {
    "numprocesses": ("-n", WORKERS), "tx": ("--tx", WORKERS),  # -n sets --tx, too
    "lf": ("--lf", OWN_LIST), "failedfirst": ("--ff", OWN_LIST), "stepwise": ("--sw", OWN_LIST),
    "usepdb": ("--pdb", DEBUGGER), "trace": ("--trace", DEBUGGER),
}  # fmt: skip
# Options of pytest-benchmark that have no effect here, or end in an error.
IGNORED = (
    "min_time", "max_time", "min_rounds", "calibration_precision", "warmup", "warmup_iterations",
    "timer", "cprofile", "cprofile_loops", "cprofile_top", "cprofile_dump",
)  # fmt: skip
IN_A_WORKER = "-n would run several cases at once, and these would slow each other down; remove -n"


def refuse_options(config: pytest.Config) -> None:
    for dest, (option, reason) in REFUSED_OPTIONS.items():
        if config.getoption(dest, None):
            raise ValueError(f"{option} does not work with several ranks: {reason}")


def refuse_ignored(config: pytest.Config) -> None:
    """Refuse options of pytest-benchmark about rounds, which Lockstep sets itself."""
    usual = config._parser.parse_known_args([])  # noqa: SLF001, pytest has no public name
    for name in (f"benchmark_{name}" for name in IGNORED):
        if config.getoption(name, None) != getattr(usual, name, None):
            option = name.replace("_", "-")
            raise ValueError(
                f"--{option} has no effect, because Lockstep sets the number of "
                "rounds; use --rounds, --warmup-rounds, --steps-per-round or --precision 1%"
            )


def refuse_selection(
    config: pytest.Config, deselected: Sequence[pytest.Item], labels: Mapping[str, str]
) -> None:
    """Refuse to leave out cases of a campaign's launch, which would then look complete."""
    studies = set(labels.get("studies", "").split(","))
    left_out = [
        item for item in deselected if studies & {OWN, *(mark.name for mark in item.iter_markers())}
    ]
    if left_out:
        keyword = config.getoption("keyword")
        option = f"-k {keyword!r}" if keyword else "--deselect or a plugin"
        cases = counted(len(left_out), "case")
        raise ValueError(
            f"{option} leaves out {cases} of this campaign's launch, for example "
            f"{left_out[0].nodeid}; remove the option from PYTEST_ADDOPTS, or name fewer studies "
            "in the campaign file"
        )
    if "studies" in labels and config.getoption("benchmark_skip", False):
        raise ValueError(
            "--benchmark-skip leaves out all cases of this launch of a campaign; remove the option "
            "from PYTEST_ADDOPTS"
        )


def refuse_tests(
    items: Iterable[pytest.Item], measured: Iterable[pytest.Item], world_size: int
) -> None:
    """Refuse tests that choose their own rounds, or whose results would have the same name."""
    for item in items:
        is_case = item.get_closest_marker("cases") is not None
        function: Any = getattr(item, "obj", None)
        parameters = inspect.signature(function).parameters if callable(function) else ()
        if (is_case or world_size > 1) and "benchmark" in parameters:
            raise ValueError(
                f"{item.nodeid} uses the fixture `benchmark`, which would let each rank choose "
                "its own number of rounds; use the fixture `lockstep` and lockstep.time(step)"
            )
    seen: dict[str, str] = {}
    for item in measured:
        other = seen.setdefault(item.name, item.nodeid)
        if other != item.nodeid:
            raise ValueError(
                f"the tests {other} and {item.nodeid} have the same name, so their results would "
                "mix; rename one of them"
            )
