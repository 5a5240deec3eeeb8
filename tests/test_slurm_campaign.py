"""A campaign on the testbed: real Slurm, a real image, an ordinary user."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
AS_USER = Path(__file__).parent / "testbed" / "as-user"
USUAL_STATE = "/var/tmp/lockstep-testbed"  # noqa: S108, the testbed's own
STATE = Path(os.environ.get("LOCKSTEP_TESTBED", USUAL_STATE))
IMAGE = STATE / "image" / "cpu.sif"
PATIENCE_S = 420
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
CAMPAIGN = """schema = 1
name = "testbed"
studies = ["weak"]
world_sizes = [1, 4]
repeats = 1
size = "smoke"
device = "cpu"
threads_per_rank = 1
"""
GPUS = 'gpus_per_node = 2\ngpu_type = "fake"\n'


def missing(reason):
    """A testbed that is not there is nobody's fault on a laptop, and a fault in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def testbed():
    if shutil.which("sinfo") is None:
        missing("no Slurm is installed; tests/testbed/install does it")
    if os.geteuid() != 0:
        pytest.skip("these tests write beside the ordinary user's files, which only root may")
    asked = subprocess.run(["scontrol", "show", "config"], capture_output=True, check=False)
    if b"= testbed" not in asked.stdout:
        missing("no testbed is up; tests/testbed/up brings it up")


@pytest.fixture
def folder(tmp_path_factory):
    """A folder that all nodes see, whose results the ordinary user may write."""
    made = STATE / "shared" / f"campaign of {os.getpid()}-{time.time_ns()}"
    for path in (made, *(made / "results" / "testbed" / name for name in ("jobs", "launches"))):
        path.mkdir(parents=True)
    for path in made.rglob(""):
        path.chmod(0o777)
    (made / "campaign.toml").write_text(CAMPAIGN)
    site = (ROOT / "slurm_templates" / "sites" / "testbed.toml").read_text()
    (made / "site.toml").write_text(site.replace(USUAL_STATE, str(STATE)))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def login(tmp_path_factory):
    """Slurm's commands as the ordinary user gives them, found first on PATH."""
    made = tmp_path_factory.mktemp("login")
    for name in ("sbatch", "squeue", "sacct"):
        command = f'exec "{AS_USER}" env SLURM_TIME_FORMAT=%s {name} "$@"'
        (made / name).write_text(f"#!/bin/sh\n{command}\n")
        (made / name).chmod(0o755)
    return os.environ | {"PATH": f"{made}:{os.environ['PATH']}"}


def lockstep(login, folder, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "lockstep.py", *arguments],
        cwd=folder,
        env=login,
        capture_output=True,
        text=True,
        check=False,
    )


def status(login, folder):
    return json.loads(lockstep(login, folder, "status", "results/testbed", "--json").stdout)


def wait(login, folder):
    """Wait until the campaign's job has ended, and return how it stands."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        found = status(login, folder)
        if found["jobs"][-1]["state"] in ENDED:
            return found
        time.sleep(2)
    pytest.fail(f"the job has not ended after {PATIENCE_S} s: {found}")


def submit(login, folder):
    return lockstep(login, folder, "submit", "campaign.toml", "--site", "site.toml")


def sent(folder):
    """Return the launches of each job that was sent."""
    path = folder / "results" / "testbed" / "jobs" / "submitted.jsonl"
    entries = map(json.loads, path.read_text().splitlines())
    return [entry["launches"] for entry in entries if "launches" in entry]


def begin(login, folder):
    """Send the campaign, and return once its first launch is complete."""
    if not IMAGE.exists():
        pytest.skip(f"no image {IMAGE}; tests/testbed/image builds it")
    submitted = submit(login, folder)
    assert submitted.returncode == 0, submitted.stderr
    first = sent(folder)[0][0]
    give_up = time.monotonic() + PATIENCE_S
    while not status(login, folder)["launches"].get(first, {}).get("complete"):
        assert time.monotonic() < give_up, texts(folder)
        time.sleep(0.5)
    return first


def texts(folder):
    """Return all that the jobs and launches said."""
    found = [path for path in folder.rglob("*") if path.suffix in (".out", ".txt")]
    return "\n".join(path.read_text() for path in found)


def check_measured(login, folder):
    """Check that the last job and every launch are complete."""
    found = wait(login, folder)
    assert found["jobs"][-1]["state"] == "COMPLETED", texts(folder)
    complete = {name: one["complete"] for name, one in found["launches"].items()}
    assert complete == {"w1-r0": True, "w4-r0": True}


def test_a_campaign_is_submitted_measured_and_collected(login, folder):
    begin(login, folder)
    again = submit(login, folder)
    assert again.returncode == 2
    assert "may still write into" in again.stderr
    check_measured(login, folder)
    results = folder / "results" / "testbed"
    assert lockstep(login, folder, "collect", "results/testbed").returncode == 0
    result = json.loads((results / "launches" / "w4-r0" / "result.json").read_text())
    assert (result["lockstep"]["world_size"], result["lockstep"]["num_nodes"]) == (4, 2)
    (job,) = json.loads((results / "accounting.json").read_text())["jobs"]
    assert job["accounting"]["state"] == "COMPLETED"
    assert job["accounting"]["alloc_tres"]["node"] == "2"
    assert job["accounting"]["queue_wait_s"] >= 0
    done = submit(login, folder)
    assert (done.returncode, done.stdout) == (0, "Nothing is missing.\n")


def test_a_cancelled_campaign_measures_only_what_is_missing(login, folder):
    first = begin(login, folder)
    (job,) = status(login, folder)["jobs"]
    subprocess.run([AS_USER, "scancel", job["id"]], check=True)
    assert wait(login, folder)["jobs"][0]["state"] == "CANCELLED"
    resumed = submit(login, folder)
    assert resumed.returncode == 0, resumed.stderr
    assert sent(folder)[1] == sent(folder)[0][1:]
    assert first not in sent(folder)[1]
    check_measured(login, folder)


@pytest.mark.parametrize("mode", ["ladder", "job"])
def test_slurm_would_take_every_script(login, folder, mode):
    campaign = CAMPAIGN.replace('device = "cpu"\n', "")
    (folder / "campaign.toml").write_text(campaign)
    site = (folder / "site.toml").read_text().replace("gpus_per_node = 0\n", GPUS)
    (folder / "site.toml").write_text(site)
    options = ("--site", "site.toml", "--mode", mode)
    made = lockstep(login, folder, "render", "campaign.toml", *options)
    scripts = made.stdout.splitlines()
    assert len(scripts) == {"ladder": 1, "job": 2}[mode], made.stderr
    for script in scripts:
        asked = [AS_USER, "sbatch", "--test-only", script]
        tested = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert tested.returncode == 0, tested.stderr


def test_every_rank_sees_all_gpus_of_its_node(login, folder):
    (folder / "campaign.toml").write_text(CAMPAIGN.replace('device = "cpu"\n', ""))
    tools = folder / "tools"
    tools.mkdir()
    # In place of the image: what a rank would see there, told to its launch's log.
    told = 'echo "$SLURM_PROCID of $SLURM_NTASKS sees $CUDA_VISIBLE_DEVICES"'
    (tools / "apptainer").write_text(f"#!/bin/bash\n{told}\n")
    (tools / "apptainer").chmod(0o755)
    site = (folder / "site.toml").read_text().replace("gpus_per_node = 0\n", GPUS)
    before = f"shell_before = 'PATH=\"{tools}:$PATH\"'\n"
    image = site.replace(str(IMAGE), str(folder / "site.toml"))
    (folder / "site.toml").write_text(before + image)
    assert submit(login, folder).returncode == 0
    wait(login, folder)
    launches = folder / "results" / "testbed" / "launches"
    said = {path.parent.name: set(lines(path)) for path in launches.glob("*/log.txt")}
    assert {f"{rank} of 4 sees 0,1" for rank in range(4)} <= said["w4-r0"]
    assert "0 of 1 sees 0" in said["w1-r0"]


def lines(path):
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    ("key", "value"),
    [("partition", "nowhere"), ("account", "nobody"), ("qos", "gold"), ("time", "2-00:00:00")],
)
def test_what_slurm_refuses_names_the_site_s_key(login, folder, key, value):
    lines = (folder / "site.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{key} =")]
    (folder / "site.toml").write_text("\n".join([f'{key} = "{value}"', *kept]))
    ended = lockstep(login, folder, "submit", "campaign.toml", "--site", "site.toml")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert f"; change {key} in the site file" in ended.stderr
    assert status(login, folder)["jobs"] == []
