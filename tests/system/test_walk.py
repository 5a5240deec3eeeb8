"""README and the tutorial, typed from their first command to the last, in one folder each.

A laptop's commands run here; those of a login node as the testbed's user, who has no torch. A
command is typed shorter where it would take minutes, and what the text leaves to its reader, such
as a model, is given; nothing else lies in the folder but what the commands before have made.
"""

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from cluster import SHARED, as_user, done, give, need_image, site_text, unpack_checkout
from commands import finish
from launched import FEW_PLUGINS
from test_examples import BUILD
from test_slurm_campaign import change

from examples import _BLOCK, _REMARK, ROOT, _joined, files_given

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# Text -> the campaign that it sends.
SENT = {"README.md": "results/first", "docs/tutorial.md": "results/cluster/my-ladder"}
DOCUMENTS = tuple(SENT)
# CI makes these, in minutes, and an environment of its own is entered already.
MADE_BY_CI = ("make ", ". ")
# Commands that judge: what was measured may well miss a target.
JUDGES = ("check", "compare", "predict", "doctor")
ON_LOGIN_NODE = ("init", "doctor", "plan", "submit", "status", "resume")
QUICK = "--size smoke --device cpu --repeats 1 --studies strong"
SHORTER = {
    "--nproc-per-node 8": "--nproc-per-node 2",
    "--tests benchmarks --world-sizes 1,2 --repeats 3": "--tests benchmarks --world-sizes 1,2 "
    "--size smoke --repeats 1",
    "pytest bench/": "pytest bench/ --size=smoke -k strong",
    "lockstep run ladder.toml --dry-run": "lockstep run ladder.toml --device cpu --dry-run",
    "lockstep run --set": "lockstep run --dry-run --set",
    "lockstep diagnose strong": "lockstep diagnose strong --dry-run",
    "lockstep screen": "lockstep screen --repeats 12",
    "smoke --torch-trace": "smoke --studies weak --repeats 1 --torch-trace",
    "--site site.toml --slurm": "--site site.toml",
    "--at 16": "--at 4",
}
# What the draft of a campaign is shrunk to, so that its jobs end within a minute.
CAMPAIGN = {
    "studies": ["strong"], "world_sizes": [1, 2], "repeats": 1, "size": "smoke", "device": "cpu",
    "threads_per_rank": 1,
}  # fmt: skip


def commands(document):
    """Return the commands of a document's blocks, in order."""
    blocks = _BLOCK.findall((ROOT / document).read_text())
    lines = [_REMARK.sub("", line).strip() for block in blocks for line in _joined(block)]
    return [line for line in lines if line and not line.startswith(MADE_BY_CI)]


@pytest.fixture
def desk():
    need_image()
    folder = Path(tempfile.mkdtemp(prefix="walk-", dir=SHARED))
    yield folder
    for sent in SENT.values():
        as_user("lockstep", "cancel", sent, cwd=folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_commands_of_a_text_run_one_after_another(desk, document):
    _give_what_the_reader_has(desk, document)
    for line in commands(document):
        ended = _typed(desk, line)
        allowed = (0, 1) if line.split()[1] in JUDGES else (0,)
        said = f"{line}\n{ended.stdout}{ended.stderr}"
        assert ended.returncode in allowed, said
        assert "Traceback" not in said
        if line.startswith("lockstep init"):
            _fill_in(desk)
        if line.startswith("lockstep submit"):
            _wait(desk, SENT[document])


def _give_what_the_reader_has(desk, document):
    """Give the checkout where the text says so, and the reader's own step and campaign."""
    if document.startswith("docs"):
        unpack_checkout(desk)
    text = (ROOT / document).read_text()
    for own in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        if "def test_" in own:
            (desk / "benchmarks").mkdir()
            head = "" if own.startswith("import") else BUILD
            (desk / "benchmarks" / "test_step.py").write_text(head + own)
    for name, toml in files_given(document):
        (desk / name).write_text(toml)


def _typed(desk, line):
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    if line.startswith("lockstep run ladder.toml") and "--dry-run" not in line:
        change(desk / "ladder.toml", **CAMPAIGN, precision="fp32", global_batch=16)
    if line == "lockstep run":
        line = f"lockstep run {QUICK}"
    give(desk)
    if line.split()[1] in ON_LOGIN_NODE:
        return as_user(*line.split(), cwd=desk)
    folders = (Path(sys.executable).parent, sysconfig.get_path("scripts"), os.environ["PATH"])
    own = {"PATH": os.pathsep.join(map(str, folders)), "PYTEST_ADDOPTS": FEW_PLUGINS}
    return finish(shlex.split(line), cwd=desk, env=os.environ | own, timeout=900)


def _fill_in(desk):
    """Fill in what the drafts leave open, and shrink the campaign."""
    (desk / "site.toml").write_text(site_text())
    change(desk / "campaign.toml", **CAMPAIGN)


def _wait(desk, sent):
    """Wait until the jobs that were sent have ended, as the reader does, who asks less often."""
    done(as_user("lockstep", "status", sent, "--watch", "5", cwd=desk, timeout=300))
