"""Every example in a `--help` and in the documents runs, on results that the tests measured.

The examples are collected from the texts themselves, so a new one is run without being named here.
Those run that have an option or a word of their command that no longer one has; the command line
takes every word of the others.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest
from commands import finish
from data.profile_samples import profile_sleeps, write_ncu, write_sqlite
from data.training_samples import seeds
from launched import environ
from measured import CAMPAIGNS, SHARED, write_campaign

from examples import DOCUMENTS, ROOT, collected, files_given
from lockstep.cli import lockstep
from lockstep.report.load import recorded

pytestmark = pytest.mark.slow

# A command that several texts give is run once, under the first of them.
EXAMPLES = {line: where for where, line in reversed(collected())}
IMPORTED = {"cited": "table.csv", "published": "table.csv", "guide": "guide", "cyclone": "cyclone"}
MADE = {*IMPORTED, "before", "after", "runs", "tuned", "run"}
# A name of results that an example reads -> the measured campaign that is found under it.
OTHERS = {"a": "fp32", "benchmarks": "fp32", "bf16": "bf16", "fp32": "fp32", "gpu/rungs": "bf16"}
RESULTS = {
    name: OTHERS.get(name, "batch")
    for line in EXAMPLES
    for name in re.findall(r"(?<!--to )results/([\w/-]+)", line)
    if name not in MADE
}
# These write results of their own, so they begin in a folder without any.
WRITERS = ("demo", "run", "diagnose", "import", "plan")
# These tell a result's truth by their exit code: what was measured may well miss a target.
JUDGES = ("check", "compare", "predict", "screen")
# What needs a cluster or a container is run by the tests of the testbed.
ELSEWHERE = (
    *("lockstep init", "lockstep doctor", "lockstep submit", "lockstep status"),
    *("lockstep resume", "lockstep cancel", "lockstep status --collect"),
    *(f"lockstep slurm {name}" for name in ("jobs", "why", "eff", "top", "shell", "nodes")),
    "lockstep compare results/campaign results/spread",
    "lockstep run data fetch",  # needs the internet; tests fetch from a server of their own
    *("lockstep image hash", "lockstep image verify", "lockstep image inspect"),
    *("sbatch", "srun", "apptainer"),
)
# What CI runs, in minutes; the demo with fewer repeats.
IN_CI = ("make demo", "make test", "lockstep run", "lockstep run verify")
# What another example or test does for real, in seconds or minutes.
DONE = (
    "lockstep run train --workload mlp:width=64 --data digits --global-batch 96 --epochs 5",
    "lockstep run train --workload resnet18_cifar:width=8 --data tiny_cifar10 --global-batch 20 "
    "--epochs 1",  # with all its options the one on cifar10
    "lockstep run verify --world-sizes 1,2,4 --json",  # without --json `make demo`
    "lockstep run verify --workload mine:tabular",  # a workload of this file `pytest bench/`
    *("lockstep screen", "lockstep screen --json"),  # the ranks that it chooses are two, too
    "lockstep demo --to results/look",  # test_recorded.py
    "python examples/rungs/train.py",  # test_four_rungs.py
)
# What other tests measure or build is only planned.
PLANNED = re.compile(r"\blockstep (?:run(?! train| verify| data)|diagnose|image build)\b")
# What would take minutes here, or download -> what is typed in its place.
SHORTER = {
    "--data cifar10": "--data synthetic --num-synthetic 128",
    "--data mnist": "--data synthetic --num-synthetic 256",
    "--work work.toml": "--work example --despite",  # its reader's own file, of GPUs
    "--epochs 30": "--epochs 1",
    "--epochs 5": "--epochs 1",
    "lockstep screen": "lockstep screen --repeats 12",
    "cifar --data": "cifar:width=8 --data",
    "--augment --precision bf16": "--augment",  # which some CPUs emulate, in minutes
    "--nproc-per-node 8": "--nproc-per-node 2",
    "--explain": "--explain 2",
    "serve results/campaign --port 8765": "serve results/campaign --print-epilog",
    "--global-batch 512": "--global-batch 64",
    "lockstep export tensorboard": "lockstep run train --workload mlp:width=64 --data digits "
    "--global-batch 64 && lockstep export tensorboard",
    "lockstep export again results/laptop": "lockstep export mlflow results/laptop && "
    "lockstep export again results/laptop",
    "pytest bench/": "pytest bench/ --size=smoke -m weak",
}
TIMEOUT_S = 300
# What the documents leave to their reader.
BUILD = """
import torch
from torch.nn.parallel import DistributedDataParallel


def build(local_batch):
    ddp = DistributedDataParallel(torch.nn.Linear(8, 8))
    batch = torch.randn(local_batch, 8)
    return lambda: ddp(batch).sum().backward(), ddp


"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A user's folder without results."""
    folder = tmp_path_factory.mktemp("texts")
    _write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def desk(tmp_path_factory, measured, texts):
    """A user's folder, with all that the examples name."""
    folder = tmp_path_factory.mktemp("desk")
    for name, campaign in sorted(RESULTS.items()):
        shutil.copytree(measured / campaign, folder / "results" / name)
    _split(measured / "fp32", folder / "results")
    for name, lr in {"runs": 0.1, "tuned": 0.2}.items():
        seeds(folder / "results" / name, lr=lr)
    for world_size in (1, 8):
        there = measured / "fp32" / "launches" / f"w{min(world_size, 2)}-r0" / "result.json"
        shutil.copy(there, folder / f"w{world_size}.json")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    shutil.copytree(texts, folder, dirs_exist_ok=True)
    for name, table in IMPORTED.items():
        assert run(folder, f"lockstep import {table} --to results/{name}").returncode == 0
    return folder


def _split(measured, results):
    """Share the repeats of one campaign out to two, which differ in nothing but chance."""
    for name, repeats in {"before": "01", "after": "2", "../A": "01", "../B": "2"}.items():
        for launch in (measured / "launches").iterdir():
            if launch.name[-1] in repeats:
                shutil.copytree(launch, results / name / "launches" / launch.name)


def _write_texts(folder):
    data = ROOT / "tests" / "data"
    shutil.copy(data / "published_scaling.csv", folder / "table.csv")
    for name, source in {"job_1gpu": "epochs_2644", "job_2gpu": "epochs_2648"}.items():
        shutil.copy(data / f"{source}.csv", folder / f"{name}.csv")
    shutil.copy(data / "lint" / "good.sbatch", folder / "train.sbatch")
    (folder / "jobs").mkdir()
    shutil.copy(data / "lint" / "good.sbatch", folder / "jobs" / "train.sh")
    site = (ROOT / "slurm_templates" / "sites" / "example.toml").read_text()
    site = site.replace("project_ID", "project").replace("/path/to/", "/images/")
    (folder / "site.toml").write_text(site)
    write_campaign(folder / "campaign.toml", **SHARED, name="campaign", **CAMPAIGNS["fp32"])
    profile_sleeps(folder)
    shutil.copy(folder / "lockstep-explain.json", folder / "before.json")
    (folder / "traces").mkdir()
    for rank in (0, 1):
        shutil.copy(folder / "trace.json", folder / "traces" / f"test_strong-w2-r{rank}.json.gz")
    for name in ("one-node", "two-nodes"):
        write_sqlite(folder / f"{name}.sqlite")
    write_ncu(folder / "kernels.csv")
    commands = Path("examples", "commands")
    shutil.copytree(ROOT / commands, folder / commands, dirs_exist_ok=True)
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "test_step.py").write_text(
        BUILD + _block("python", "def test_my_step")
    )
    for document in DOCUMENTS:
        for name, toml in files_given(document):
            (folder / name).write_text(toml)
    (folder / "mine.py").write_text(_block("python", "# mine.py"))
    (folder / "my.targets.toml").write_text(_targets())


def _block(language, beginning):
    """Return the block of the documents that begins so; where two give it, they agree."""
    texts = [(ROOT / name).read_text() for name in DOCUMENTS]
    blocks = re.findall(rf"^```{language}\n(.*?)^```", "\n".join(texts), re.M | re.S)
    (found,) = {block for block in blocks if block.startswith(beginning)}
    return found


def _targets():
    from lockstep.report.check.check_cli import check as gate

    lines = f"{gate.help}\n{gate.epilog}".splitlines()
    return "\n".join(line for line in lines if re.fullmatch(r"\s+\w+ = .+", line))


def _is_of_here(line):
    if line.startswith("lockstep demo") and not recorded.list_shipped():
        return False
    return not line.startswith(ELSEWHERE) and line not in IN_CI and not line.startswith(". ")


def shortened(line):
    line = PLANNED.sub(r"\g<0> --dry-run", line)
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    return line


def _words(line):
    """Return what follows a command, whatever the results are called that it reads or writes."""
    line = re.sub(r" --(?:replace|name \S+|to results/\S+)", "", shortened(line))
    line = re.sub(r"results/([\w/-]+)", lambda found: RESULTS.get(found[1], found[1]), line)
    first, second, *words = line.split()
    return {(first, second, word) for word in (words or [""])}


def _chosen(lines):
    """Return lines that have every word after a command that is not done elsewhere."""
    seen, chosen = set().union(*map(_words, DONE)), set()
    for line in sorted({*lines} - {*DONE}, key=lambda line: (-len(line.split()), line)):
        if not _words(line) <= seen:
            chosen.add(line)
        seen |= _words(line)
    return [line for line in lines if line in chosen]


LINES = [line for line in EXAMPLES if _is_of_here(line)]


@pytest.mark.parametrize("line", _chosen(LINES))
def test_an_example_runs_as_it_is_given(desk, texts, tmp_path, line):
    command = line.split()[1]
    folder = desk
    if command in WRITERS:
        folder = shutil.copytree(texts, tmp_path / "desk")
    ended = run(folder, shortened(line))
    said = ended.stdout + ended.stderr
    assert ended.returncode in ((0, 1) if command in JUDGES else (0,)), said
    assert "Traceback" not in said
    assert "Error: " not in said
    if "--json" in line.split():
        json.loads(ended.stdout)


# What an example makes for another is not there yet.
@pytest.mark.parametrize(
    "line", [line for line in LINES if line.startswith("lockstep ") and "&&" not in shortened(line)]
)
def test_the_command_line_takes_every_word_of_an_example(desk, monkeypatch, line):
    monkeypatch.chdir(desk)
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)
    _, command, *words = shlex.split(line.partition(" > ")[0])
    words = [path for word in words for path in [*map(str, Path().glob(word))] or [word]]
    lockstep.main([command, *words], standalone_mode=False)
    read = " ".join(["", *words]).partition(" --to ")[0].split()
    assert all(Path(word).exists() for word in read if word.startswith("results/"))


def run(folder, line):
    """Run a line as it is typed, in a folder of a user who has Lockstep installed."""
    folders = (Path(sys.executable).parent, sysconfig.get_path("scripts"), os.environ["PATH"])
    path = os.pathsep.join(map(str, folders))
    variables = environ(ROOT) | {"PATH": path}
    return finish(["bash", "-c", line], cwd=folder, env=variables, timeout=TIMEOUT_S)
