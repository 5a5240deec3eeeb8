"""The testbed as tests use it: a real Slurm, its ordinary user, and the image built on it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTBED = ROOT / "tests" / "testbed"
USER = "lockstep"
USUAL_STATE = "/var/tmp/lockstep-testbed"  # noqa: S108, the testbed's own
STATE = Path(os.environ.get("LOCKSTEP_TESTBED", USUAL_STATE))
SHARED = STATE / "shared"
IMAGE = STATE / "image" / "cpu.sif"


def missing(reason):
    """A testbed that is not there is nobody's fault on a laptop, and a fault in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def need(command):
    if shutil.which(command) is None:
        missing(f"no {command} is installed; tests/testbed/install does it")


def need_testbed():
    """Go on only where the testbed is up, and this is root, who alone may act as its user."""
    need("sinfo")
    asked = subprocess.run(["scontrol", "show", "config"], capture_output=True, check=False)
    if b"= testbed" not in asked.stdout:
        missing("no testbed is up; tests/testbed/up brings it up")
    if os.geteuid() != 0:
        missing("only root may act as the testbed's user")


def need_login():
    need_testbed()
    if not (STATE / "login").exists():
        missing("its user has no Lockstep; tests/testbed/login installs this checkout")


def need_image():
    need_login()
    if not IMAGE.exists():
        missing(f"no image {IMAGE}; tests/testbed/image builds it")


def need_base():
    """Return the image that `IMAGE` is built on: a small one, with Python and without torch."""
    need_testbed()
    found = sorted((STATE / "base").glob("*.sif"))
    if not found:
        missing(f"there is no base in {STATE / 'base'}; tests/testbed/image makes one")
    return found[-1]


def as_user(*command, cwd="/", **options):
    """Run a command as the ordinary user types it."""
    entered = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", cwd, *command]
    return subprocess.run(
        [TESTBED / "as-user", *entered], capture_output=True, text=True, check=False, **options
    )


def give(*paths):
    subprocess.run(["chown", "--recursive", "--no-dereference", USER, *paths], check=True)


def site_text(partition="debug"):
    """Return the testbed's own site file, for where its state really lies."""
    text = (ROOT / "slurm_templates" / "sites" / "testbed.toml").read_text()
    return text.replace(USUAL_STATE, str(STATE)).replace('"debug"', f'"{partition}"')


def unpack_checkout(folder):
    made = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=made.stdout, check=True)


def done(ended):
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return ended.stdout
