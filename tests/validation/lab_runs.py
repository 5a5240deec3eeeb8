"""Runs of the laboratory as a user has them: `explain` in a script, the fixture in a test.

A run is a step by the name of its kind and its numbers, as JSON can hold it; a module of this
folder makes the step. What was measured is kept, so that a driver that is started again goes on.
"""

import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT)]

LOCAL_BATCH, WIDTH = 32, 128
Run = dict[str, Any]
# What is told of a run: what bounds its step, as `lockstep.measure.causes.bound.Bound` has it.
Told = dict[str, Any]
# The fixture's test, which pytest collects in a folder of its own.
TEST = """
import json
import os
from pathlib import Path

import lab_runs
import pytest

RUNS = json.loads(Path("plan.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", list(RUNS))
def test_step(lockstep, run):
    lab_runs.measure(lockstep, os.environ["LAB_MODULE"], RUNS[run])
"""


@dataclass(frozen=True)
class Made:
    """A training step to be looked at.

    Attributes:
        ddp: Its model in DDP; None where it has none.
        batches: What it draws batches of; None where it takes no argument.
    """

    step: Callable[..., Any]
    ddp: Any
    batches: Any
    samples: int


def net() -> Any:
    """Return the small net of the steps, (B, WIDTH) to (B, 1)."""
    from torch import nn

    return nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))


def kept(name: str) -> Path:
    """Make the folder in which runs are kept: another one once the product or a step changes."""
    digest = hashlib.sha256()
    steps = [HERE / f"{name}.py" for name in ("lab_runs", "figures_kinds", "figures_steps")]
    for path in sorted([*(ROOT / "lockstep").rglob("*.py"), *steps]):
        digest.update(path.read_bytes())
    folder = ROOT / "results" / name / digest.hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def name_of(run: Run) -> str:
    return f"{run['kind']} {run['seed']}"


def explain(module: str, runs: Sequence[Run], out: Path, ranks: int) -> None:
    """Have those runs explained that a file does not have yet, and add a line of each to it."""
    done = {name_of(each["run"]) for each in explained(out)}
    left = [run for run in runs if name_of(run) not in done]
    if not left:
        return
    plan = out.with_suffix(".plan")
    plan.write_text(json.dumps(left), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = [f"--nproc-per-node={ranks}", str(HERE / "lab_runs.py"), module, str(plan), str(out)]
    _call([*torchrun, *script], module, out.with_suffix(".log"))


def explained(out: Path) -> list[dict[str, Any]]:
    """Return what a file keeps: of each run its record beside it, or why it is refused."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return [json.loads(line) for line in lines]


def fixture(module: str, runs: Sequence[Run], folder: Path, ranks: str, repeats: int) -> None:
    """Measure runs by the fixture, in one file of tests; launches that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_step.py").write_text(TEST, encoding="utf-8")
    plan = json.dumps({name_of(run): run for run in runs})
    (folder / "plan.json").write_text(plan, encoding="utf-8")
    line = f"-m lockstep run --tests test_step.py --device cpu --world-sizes {ranks}"
    line += f" --repeats {repeats} --name measured --to ."
    _call([sys.executable, *line.split()], module, folder / "run.log", folder)


def _call(command: Sequence[str], module: str, log: Path, cwd: Path | None = None) -> None:
    more = {"PYTHONPATH": f"{ROOT}:{HERE}", "OMP_NUM_THREADS": "1", "LAB_MODULE": module}
    with log.open("a", encoding="utf-8") as said:
        ended = subprocess.run(
            command, cwd=cwd, env=os.environ | more, stdout=said, stderr=said, check=False
        )
    if ended.returncode:
        sys.stderr.write(f"{' '.join(command)} ended with {ended.returncode}; see {log}\n")


def judged(folder: Path, launches: Sequence[str] = ()) -> Iterator[tuple[str, int, Told | None]]:
    """Yield what `lockstep report` tells of each run in a campaign's folder.

    With `launches`, of these alone. Gives a run's name, the number of its ranks and what is told;
    None where no causes are.
    """
    from lockstep.report.check import checker
    from lockstep.report.compute import evaluation, quantities
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.load.reading import gather

    results = gather([folder])
    rows, _ = results.split()
    some = [row for row in rows if not launches or row.launch in launches]
    series = series_of(some)
    findings = checker.check(results, None if launches else series)
    for one in evaluation.finish(series, findings):
        for point in one.points:
            told = quantities.find_bottleneck(one, point)
            yield one.row.factors["run"], point.world_size, told and asdict(told)


def shares(told: Told) -> Mapping[str, float]:
    """Return the share of the step that each cause takes, and its computing."""
    found = {share["cause"]: share["seconds"] / told["step_s"] for share in told["shares"]}
    return found | {"compute": told["compute_s"] / told["step_s"]}


def measure(harness: Any, module: str, run: Run) -> None:
    """Measure a run by the fixture `lockstep`, on each rank."""
    made = importlib.import_module(module).make(run, harness.world.rank)
    harness.measure(made.step, samples=made.samples, ddp=made.ddp, batches=made.batches)


def main() -> None:
    """Be a rank that has the runs of a plan explained: `lab_runs.py MODULE PLAN.json OUT.jsonl`."""
    import torch.distributed as dist

    import lockstep

    module, plan, out = importlib.import_module(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    latest = out.with_suffix(".latest")
    dist.init_process_group("gloo")
    for run in json.loads(plan.read_text(encoding="utf-8")):
        made = module.make(run, dist.get_rank())
        options = {name: run[name] for name in ("seconds",) if name in run}
        try:
            lockstep.explain(made.step, made.ddp, batches=made.batches, out=latest, **options)
        except ValueError as error:
            found = {"refused": str(error)}
        else:
            found = json.loads(latest.read_text(encoding="utf-8"))
        if dist.get_rank() == 0:
            with out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"run": run} | found) + "\n")
        dist.barrier()  # or a rank that is ahead would read the next record
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
