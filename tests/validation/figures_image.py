"""What the container costs: the time of a step inside an image over the same step outside.

Two processes run this file with the same checkout, one of them inside the image. They take turns
of one round each, and whoever waits does nothing, so that what disturbs the machine strikes both
alike. A repeat is a pair of processes of its own.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import IO, Any

import figures_runner
from figures_runner import Plan

ROOT = Path(__file__).resolve().parents[2]
STATE = Path(os.environ.get("LOCKSTEP_TESTBED", "/var/tmp/lockstep-testbed"))  # noqa: S108, its own
IMAGE = STATE / "image" / "cpu.sif"
GOAL = 1.02
MIN_REPEATS = 5
PLANS = {
    "resnet18": Plan("resnet18", local_batch=8, steps=1, rounds=1, turns=12, goal=GOAL),
    "0.3 ms step": Plan(
        "mlp:width=16,depth=2", local_batch=32, steps=200, rounds=1, turns=24, goal=GOAL
    ),
}


def missing() -> str | None:
    """Return what this comparison lacks here, or None."""
    if shutil.which("apptainer") is None:
        return "apptainer is not installed; tests/testbed/install does it"
    return None if IMAGE.exists() else f"there is no {IMAGE}; tests/testbed/image builds it"


def compare() -> dict[str, Any]:
    """Return, of one pair of processes, ratio and outside step time per plan, and their facts.

    Raises:
        RuntimeError: One of the two ended.
    """
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1"}
    given = [f"--env={name}={value}" for name, value in variables.items()]
    # In a user namespace, as an ordinary user has it, root needs no capability it may lack.
    namespace = ["--userns"] if os.geteuid() == 0 else []
    bind = f"--bind={ROOT}"
    image = ["apptainer", "exec", "--cleanenv", *namespace, *given, bind, str(IMAGE), "python3"]
    # The image's build of Python where the machine has it too; builds differ by several per cent.
    python = _twin([*image, "--version"])
    packages = sysconfig.get_path("purelib")
    native = os.environ | variables | {"PYTHONPATH": f"{ROOT}:{packages}"}
    with (
        _process([python], native) as outside,
        _process(image, dict(os.environ)) as inside,
    ):
        pair = (outside, inside)
        facts = dict(zip(("outside", "inside"), (_answer(one) for one in pair), strict=True))
        plans = {name: _ratio(pair, name, plan) for name, plan in PLANS.items()}
    return {"facts": facts, "plans": plans}


def _twin(asks_version: list[str]) -> str:
    """Return the system's Python if it is of the image's version, else this one.

    It is to import what is installed for this one, which only the same minor version can.
    """
    system = "/usr/bin/python3"
    versions = [
        subprocess.run(command, capture_output=True, text=True, check=False).stdout
        for command in (asks_version, [system, "--version"])
        if Path(command[0]).exists() or shutil.which(command[0])
    ]
    own = f"Python {sys.version_info[0]}.{sys.version_info[1]}."
    is_twin = len(versions) == 2 and versions[0] == versions[1] and versions[0].startswith(own)
    return system if is_twin else sys.executable


Process = tuple[subprocess.Popen[str], IO[str]]


@contextmanager
def _process(python: list[str], environ: dict[str, str]) -> Iterator[Process]:
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*python, str(Path(__file__).resolve())],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        try:
            yield process, said
        finally:
            process.communicate()  # no more turns: it ends


def _ratio(pair: tuple[Process, Process], name: str, plan: Plan) -> tuple[float, float]:
    """Return the ratio inside / outside of the medians over rounds, and outside's step time."""
    times: tuple[list[float], list[float]] = ([], [])
    for one in pair:
        _turn(one, name)
    for index in range(plan.turns):
        for which in (0, 1) if index % 2 == 0 else (1, 0):
            times[which].append(_turn(pair[which], name))
    outside_s, inside_s = (median(own) for own in times)
    return inside_s / outside_s, outside_s / plan.steps


def _turn(one: Process, name: str) -> float:
    print(name, file=one[0].stdin, flush=True)
    return float(_answer(one))


def _answer(one: Process) -> Any:
    process, said = one
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        said.seek(0)
        raise RuntimeError(f"{process.args} ended with {process.returncode}:\n{said.read()}")
    return json.loads(line)


def main() -> None:
    """Answer with what this process is, then with the seconds of a round of each plan asked for."""
    import torch

    from lockstep import workloads
    from lockstep.ranks import process_group as world

    joined = world.join(device="cpu", threads_per_rank=1)
    turns = {}
    for name, plan in PLANS.items():
        workload = workloads.make(plan.workload)
        batch = workload.make_batch(plan.local_batch, joined.device, torch.Generator())
        turns[name] = figures_runner.runner_turn(joined, workload.build(), plan, *batch)
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }
    print(json.dumps(facts), flush=True)  # to the process that compares
    for line in sys.stdin:
        (duration_s,) = turns[line.strip()]()
        print(json.dumps(duration_s), flush=True)
    world.leave()


def differences(facts: dict[str, dict[str, str]]) -> str:
    """Return what software is the same on both sides, and what is not."""
    outside, inside = facts["outside"], facts["inside"]
    return ", ".join(
        f"{name} {value}" if value == inside[name] else f"{name} {value} outside, {inside[name]} in"
        for name, value in outside.items()
    )


if __name__ == "__main__":
    main()
