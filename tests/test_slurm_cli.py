"""The commands from a campaign to jobs, as far as they need no Slurm."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.journal import Journal
from bench.record import SCHEMA_VERSION

ROOT = Path(__file__).parents[1]
CAMPAIGN = """schema = 1
name = "ladder"
studies = ["weak"]
world_sizes = [1, 8]
repeats = 2
size = "smoke"
"""
SITE = """schema = 1
name = "here"
gpus_per_node = 4
cpus_per_node = 64
time = "01:30:00"
[container]
image = "/images/lockstep.sif"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    (tmp_path / "site.toml").write_text(SITE)
    return tmp_path


def lockstep(arguments, cwd):
    """Run the command as it is typed, where no Slurm is installed."""
    return subprocess.run(
        [sys.executable, ROOT / "lockstep.py", *shlex.split(arguments)],
        cwd=cwd,
        env=os.environ | {"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )


def keep(path, *cases, expected=("a", "b"), studies="weak"):
    """Write the journal of a launch."""
    kept = Journal(path)
    head = {"kind": "launch", "schema": SCHEMA_VERSION, "resumed": False}
    facts = {"document": {"version": "5"}, "launch": {"world_size": 1, "studies": studies}}
    kept.append(head | facts | {"expected": list(expected)})
    for case in cases:
        entry = {"kind": "case", "case": case, "benchmark": {"name": case, "stats": {"min": 1.0}}}
        kept.append(entry)
    kept.close()


def test_a_plan_says_what_it_may_cost(folder):
    ended = lockstep("plan campaign.toml --site site.toml --json", folder)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["jobs"] == [
        {
            "job": "ladder",
            "num_nodes": 2,
            "num_ranks": 8,
            "num_launches": 4,
            "time_s": 5400,
            "node_hours": 3.0,
            "gpu_hours": 12.0,
        }
    ]
    assert not (folder / "results").exists()


def test_a_plan_by_size_sums_its_jobs(folder):
    ended = lockstep("plan campaign.toml --site site.toml --mode job", folder)
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("ladder-w1: 1 node(s), up to 1 ranks, 2 launches; at most 1.50 node")
    assert lines[-1] == "2 job(s), at most 13.50 GPU-hours in all"


def test_what_is_measured_is_planned_no_more(folder):
    keep(folder / "results/ladder/launches/w1-r0/journal.jsonl", "a", "b")
    keep(folder / "results/ladder/launches/w1-r1/journal.jsonl", "a")
    keep(folder / "results/ladder/launches/w8-r0/journal.jsonl", "a", "b", studies="strong")
    ended = lockstep("render campaign.toml --site site.toml", folder)
    script = Path(ended.stdout.strip()).read_text()
    started = [line.split()[1] for line in script.splitlines() if line.startswith("launch w")]
    assert sorted(started) == ["w1-r1", "w8-r0", "w8-r1"]


def test_a_script_that_reads_otherwise_is_not_overwritten(folder):
    command = "render campaign.toml --site site.toml"
    script = Path(lockstep(command, folder).stdout.strip())
    assert script == folder / "results" / "ladder" / "jobs" / "ladder.sh"
    assert lockstep(command, folder).returncode == 0
    script.write_text("mine")
    refused = lockstep(command, folder)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"Error: {script} is there and reads otherwise; give --force to replace it\n"
    )
    assert script.read_text() == "mine"
    assert lockstep(f"{command} --force", folder).returncode == 0
    assert script.read_text().startswith("#!/bin/bash\n#SBATCH ")


def test_a_dry_run_prints_the_script_and_writes_nothing(folder):
    ended = lockstep("submit campaign.toml --site site.toml --dry-run", folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("# sbatch --parsable ")
    assert "#SBATCH --nodes=2\n" in ended.stdout
    assert not (folder / "results").exists()


def test_without_slurm_a_submission_fails_and_says_so(folder):
    ended = lockstep("submit campaign.toml --site site.toml", folder)
    assert (ended.returncode, ended.stderr) == (
        3,
        "Error: squeue is not installed here; use a login node of the cluster\n",
    )
    assert not (folder / "results/ladder/jobs/submitted.jsonl").exists()


def test_other_results_are_not_mixed_in(folder):
    assert lockstep("render campaign.toml --site site.toml", folder).returncode == 0
    (folder / "campaign.toml").write_text(CAMPAIGN.replace("smoke", "node"))
    ended = lockstep("render campaign.toml --site site.toml --force", folder)
    assert ended.returncode == 2
    assert "holds results measured with size smoke, now it is node" in ended.stderr


@pytest.mark.parametrize("command", ["plan", "render", "submit"])
def test_each_command_s_help_has_an_example(command, tmp_path):
    ended = lockstep(f"{command} --help", tmp_path)
    assert ended.returncode == 0
    assert f"  lockstep {command} " in ended.stdout
