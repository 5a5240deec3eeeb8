"""Limits of a QOS and an account, set with a real sacctmgr: what Lockstep says, and Slurm does."""

import json
import shutil
import subprocess

import pytest
from cluster import SHARED, as_user, give, need_testbed, site_text
from measured import write_campaign

pytestmark = pytest.mark.slurm

FOLDER = SHARED / "limits"
QOS = "maxwall=5 maxtres=node=1 maxjobsperuser=2 maxsubmitjobsperuser=3"
# Of one that both limit the QOS counts, though it allows more.
ASSOCIATION = "maxwall=1 maxtres=node=1,cpu=6 qos=normal,tiny defaultqos=tiny"
OF_USER = "name=lockstep account=project partition=gpu"
CAMPAIGN = {"schema": 1, "name": "limits", "studies": ["weak"], "size": "smoke", "device": "cpu"}


@pytest.fixture
def tiny():
    """In partition gpu the user's jobs have the QOS tiny, unless they name another."""
    need_testbed()
    sacctmgr(f"add qos tiny {QOS}")
    sacctmgr(f"add user {OF_USER} {ASSOCIATION}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    text = f'extra_directives = ["--exclusive"]\n{site_text("gpu")}'
    (FOLDER / "site.toml").write_text(text)
    yield
    subprocess.run(["scancel", "--user=lockstep", "--partition=gpu"], check=True)
    sacctmgr(f"delete user where {OF_USER}")
    sacctmgr("delete qos tiny")
    shutil.rmtree(FOLDER)


def sacctmgr(line):
    said = subprocess.run(["sacctmgr", "--immediate", *line.split()], capture_output=True)
    assert said.returncode == 0, said


def lockstep(line):
    return as_user("lockstep", *line.split(), cwd=FOLDER)


def over_limits(deny=False, **changes):
    """Return what plan says of a campaign: (kind, limit) -> (jobs, needs, value, whose limit)."""
    sacctmgr(f"modify qos tiny set flags={'DenyOnLimit' if deny else -1}")
    write_campaign(FOLDER / "campaign.toml", **CAMPAIGN, **changes)
    give(FOLDER)
    ended = lockstep("plan campaign.toml --site site.toml --json")
    assert ended.returncode == 0, ended.stderr
    return {
        (one["kind"], one["limit"]["name"], one["limit"]["tres"]): (
            len(one["jobs"]), one["needs"], one["limit"]["value"], one["limit"]["of"]
        )
        for one in json.loads(ended.stdout)["over_limits"]
    }  # fmt: skip


@pytest.mark.usefixtures("tiny")
def test_what_plan_says_of_a_limit_is_what_slurm_does():
    over = {
        ("held", "MaxWall", ""): (2, 600, 300, "QOS tiny"),
        ("held", "MaxTRES", "node"): (2, 2, 1, "QOS tiny"),
        ("held", "MaxTRES", "cpu"): (2, 8, 6, "account project"),
    }
    assert over_limits(world_sizes=[1, 4], repeats=2) == over
    assert lockstep("submit campaign.toml --site site.toml").returncode == 0
    held = lockstep("status results/limits --json")
    (reason, _) = (job["reason"] for job in json.loads(held.stdout)["jobs"])
    assert reason.startswith("QOSMax")
    assert lockstep("cancel results/limits").returncode == 0

    denied = over_limits(deny=True, world_sizes=[1, 4], repeats=2)
    assert denied == {("refused", *limit): facts for (_, *limit), facts in over.items()}
    ended = lockstep("submit campaign.toml --site site.toml")
    assert (ended.returncode, "QOSMax" in ended.stderr) == (2, True)
