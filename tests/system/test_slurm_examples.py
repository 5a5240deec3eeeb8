"""The examples that need a cluster or a container: one of each command on the testbed, as typed.

Where an example cancels jobs, their partition is down, so that they wait and measure nothing.
"""

import json
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import click
import pytest
from cluster import SHARED, as_user, done, give, need_base, need_testbed, site_text
from launched import until
from measured import write_campaign
from test_examples import ELSEWHERE, EXAMPLES
from test_walk import DOCUMENTS, commands

from lockstep.cli import lockstep

SUITE = {"schema": 1, "name": "campaign", "studies": ["weak"], "size": "smoke", "device": "cpu"}
# The lines that measure in an image are run by `test_slurm_campaign.py`.
# Nor are those that fetch from the internet, which `test_data.py` does from a server of its own;
# those of README and the tutorial are typed by `test_walk.py`.
WALKED = {line for document in DOCUMENTS for line in commands(document)}
LINES = [
    line for line in EXAMPLES
    if line.startswith(ELSEWHERE) and line not in WALKED and not re.search("apptainer|fetch", line)
]  # fmt: skip
JOB = re.compile(r"\b471[12](_3)?\b")  # which examples call a job


def _command(line):
    """Return the words of a command, without what it is given."""
    return re.match(r"(?:srun )?lockstep (?:slurm |image )?[a-z]+|\S+", line)[0]


def _chosen():
    """Return the longest line of each command that is not walked."""
    longest = {_command(line): line for line in sorted(LINES, key=lambda line: len(line.split()))}
    walked = set(map(_command, WALKED))
    return [line for command, line in longest.items() if command not in walked]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("lockstep ")])
def test_the_command_line_takes_every_word_of_an_example(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    for folder in re.findall(r"results/\w+", line):
        Path(folder).mkdir(parents=True, exist_ok=True)
    begun = []
    monkeypatch.setattr(click.Command, "invoke", lambda command, _: begun.append(command.name))
    lockstep.main(shlex.split(line)[1:], standalone_mode=False)
    assert begun[-1] in shlex.split(line)[1:]


@pytest.fixture
def down():
    """While such an example runs no job of its own begins."""
    need_testbed()
    _set_partition("DOWN")
    yield
    subprocess.run(["scancel", "--user=lockstep", "--partition=gpu"], check=True)
    _set_partition("UP")


def _set_partition(state):
    subprocess.run(["scontrol", "update", "PartitionName=gpu", f"State={state}"], check=True)


@pytest.fixture
def folder():
    """A folder of the user's, with the files that the examples name."""
    need_testbed()
    made = Path(tempfile.mkdtemp(prefix="examples-", dir=SHARED))
    (made / "site.toml").write_text(site_text("gpu"))
    # A small one will do: its commands hash all of an image.
    (made / "lockstep.sif").symlink_to(need_base())
    yield made
    shutil.rmtree(made)


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.parametrize("line", _chosen())
def test_an_example_runs_as_it_is_given(folder, request, line):
    if line.startswith("lockstep cancel results"):
        request.getfixturevalue("down")
        write_campaign(folder / "campaign.toml", **SUITE, world_sizes=[1, 8], repeats=4)
        with (folder / "campaign.toml").open("a") as file:
            file.write('[jobs]\nallocation = "job"\n')
        give(folder)
        done(_typed(folder, "lockstep submit campaign.toml --site site.toml"))
    give(folder)
    if JOB.search(line):
        runs = line.startswith(("lockstep slurm top", "lockstep cancel"))
        line = JOB.sub(_a_job(folder, runs=runs), line)
    ended = _typed(folder, line)
    said = ended.stdout + ended.stderr
    # An image may be of another version than what verifies it.
    allowed = (0, 1) if line.startswith("lockstep image verify") else (0,)
    assert ended.returncode in allowed, said
    assert "Traceback" not in said
    assert ended.returncode or "Error: " not in said
    if "--json" in line.split():
        json.loads(ended.stdout)


def _a_job(folder, *, runs):
    """Return the id of a job of the user's that runs for a while, or that has ended."""
    wait = "" if runs else "--wait "
    line = f"sbatch --parsable {wait}--account=project --output=/dev/null --wrap 'sleep 12'"
    job = done(_typed(folder, line if runs else line.replace("sleep 12", "true"))).split()[0]
    if runs:
        asked = f"squeue --noheader --format %T --jobs {job}"
        until(lambda: _typed(folder, asked).stdout.strip() == "RUNNING", "the job", 30, poll_s=0.5)
    return job


def _typed(folder, line):
    return as_user("bash", "-c", line, cwd=folder)
