"""The commands from a campaign to jobs, as far as they need no Slurm."""

import json
import re
from pathlib import Path

import pytest
import stand_ins
from data.job_samples import CAMPAIGN_FILE, write_journal
from data.job_samples import SITE_FILE as SITE

from lockstep.campaign.campaign import load
from lockstep.campaign.folder import Folder
from lockstep.slurm import site as sites
from lockstep.slurm.submit.job import settle

CAMPAIGN = CAMPAIGN_FILE + "[jobs]\nshare_job = true\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    (tmp_path / "site.toml").write_text(SITE)
    return tmp_path


def lockstep(arguments, cwd):
    return stand_ins.lockstep(arguments, cwd, "/nowhere")


SUBMIT = "submit campaign.toml --site site.toml"


def keep(path, *cases, studies="weak"):
    write_journal(path, *cases, expected=["a", "b"], studies=studies)


def add(folder, name, text):
    with (folder / name).open("a") as file:
        file.write(text)


def planned(folder, options=""):
    ended = lockstep(f"plan campaign.toml --site site.toml --json {options}", folder)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_plan_says_what_it_may_cost(folder):
    path, price = folder / "site.toml", 'cost_per_gpu_hour = 2.5\ncurrency = "EUR"'
    path.write_text(path.read_text().replace("[container]", f"{price}\n[container]"))
    found = planned(folder)
    assert found["jobs"] == [
        {
            "job": "ladder",
            "kind": "ladder",
            "num_elements": 1,
            "num_nodes": 2,
            "num_ranks": 8,
            "num_launches": 4,
            "time_s": 5400,
            "node_hours": 3.0,
            "gpu_hours": 12.0,
            "after": [],
        }
    ]
    assert found["points"][1] == {
        "world_size": 8,
        "num_nodes": 2,
        "ranks_per_node": 4,
        "num_launches": 2,
        "strong_local_batch": None,
    }
    assert (found["node_hours"], found["cost"], found["currency"]) == (3.0, 30.0, "EUR")
    assert not (folder / "results").exists()


def test_a_plan_asks_for_its_overhead(folder):
    # 3 nodes x 0.75 h x 10 runs x 3 repeats = 67.5 node-hours; with 30 % more, 87.75.
    text = CAMPAIGN.replace("[1, 8]", "[12]").replace("repeats = 2", "repeats = 30")
    (folder / "campaign.toml").write_text(text + 'launch_time = "00:45:00"\n')
    found = planned(folder, "--overhead 0.3")
    assert found["node_hours"] == 67.5
    assert found["node_hours_with_overhead"] == pytest.approx(87.75)


def test_placeholders_of_a_site_file_are_named_and_not_submitted(folder):
    path = folder / "site.toml"
    text = re.sub('image = ".*"', 'image = "/path/to/a.sif"', path.read_text())
    path.write_text(f'account = "project_ID"\n{text}')
    keys = "account and container.image in site.toml"
    assert f"fill in {keys}" in lockstep(SUBMIT + " --dry-run", folder).stderr
    said = lockstep("plan campaign.toml --site site.toml", folder).stdout
    assert "fill in account, container.image in site.toml" in said
    for option in ("", " --by-hand"):
        ended = lockstep(SUBMIT + option, folder)
        assert ended.returncode == 2
        assert "keys are not filled in yet: account, container.image" in ended.stderr


def test_what_is_planned_within_a_budget_is_what_is_rendered(folder):
    add(folder, "campaign.toml", 'launch_time = "01:00:00"\n')
    found = planned(folder, "--budget 7")
    assert found["dropped"] == ["world size 8"]
    assert found["gpu_hours"] == 2.0
    ended = lockstep("submit --by-hand campaign.toml --site site.toml --budget 7", folder)
    assert ended.stderr.startswith(
        "Left out to stay within 7 GPU-hours: world size 8. A budget first leaves out "
    )
    assert started(Path(ended.stdout.strip())) == ["w1-r0", "w1-r1"]


def test_a_budget_is_in_the_unit_that_a_centre_grants(folder):
    add(folder, "campaign.toml", 'launch_time = "01:00:00"\n')
    assert planned(folder, "--budget 8gh")["dropped"] == ["world size 8"]
    assert planned(folder, "--budget 8nh")["dropped"] == []


def started(script):
    lines = script.read_text().splitlines()
    return sorted(line.split()[1] for line in lines if line.startswith("lockstep_launch w"))


def test_what_is_measured_is_planned_no_more(folder):
    keep(folder / "results/ladder/launches/w1-r0/journal.jsonl", "a", "b")
    keep(folder / "results/ladder/launches/w1-r1/journal.jsonl", "a")
    keep(folder / "results/ladder/launches/w8-r0/journal.jsonl", "a", "b", studies="strong")
    ended = lockstep("submit --by-hand campaign.toml --site site.toml", folder)
    assert started(Path(ended.stdout.strip())) == ["w1-r1", "w8-r0", "w8-r1"]
    assert ended.stderr == f"Next: sbatch {ended.stdout}"


def test_a_script_that_reads_otherwise_is_not_overwritten(folder):
    command = "submit --by-hand campaign.toml --site site.toml"
    script = Path(lockstep(command, folder).stdout.strip())
    assert script == folder / "results" / "ladder" / "jobs" / "ladder.sh"
    assert lockstep(command, folder).returncode == 0
    script.write_text("mine")
    refused = lockstep(command, folder)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"Error: {script} exists with other contents; give --force to replace it\n"
    )
    assert script.read_text() == "mine"
    assert lockstep(f"{command} --force", folder).returncode == 0
    assert script.read_text().startswith("#!/bin/bash\n#SBATCH ")


def test_a_dry_run_prints_the_script_and_writes_nothing(folder):
    ended = lockstep("submit campaign.toml --site site.toml --dry-run", folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"# sbatch {folder}/results/ladder/jobs/ladder.sh\n#!/bin/bash")
    assert "#SBATCH --nodes=2\n" in ended.stdout
    assert not (folder / "results").exists()


def test_what_ran_here_is_run_again_although_a_submission_failed(folder):
    results = folder / "results/ladder"
    results.mkdir(parents=True)
    site = sites.load(folder / "site.toml")
    Folder(results).claim(settle(load(folder / "campaign.toml"), site), [])
    for _ in range(2):
        ended = lockstep("resume results/ladder", folder)
        fact = f"Error: no jobs were submitted from the folder {results}"
        said = f"{fact}; continue with lockstep run\n"
        assert (ended.returncode, ended.stderr) == (2, said)
        ended = lockstep("submit campaign.toml --site site.toml", folder)
        assert (ended.returncode, (results / "jobs").exists()) == (3, True)
