"""`--host`: from another folder, over a real sshd, to the testbed's Slurm as its ordinary user."""

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import commands
import pytest
from cluster import STATE, done, give, need, need_image, site_text
from launched import free_port, until
from measured import write_campaign

pytestmark = [pytest.mark.chaos, pytest.mark.slurm, pytest.mark.slow]

SSHD = "/usr/sbin/sshd"
CAMPAIGN = {
    "schema": 1, "name": "remote", "studies": ["weak"], "world_sizes": [1], "repeats": 1,
    "size": "smoke", "device": "cpu", "threads_per_rank": 1,
}  # fmt: skip
PATIENCE_S = 300


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """Serve ssh to the testbed's user, who has Lockstep on the PATH of a login shell."""
    need_image()
    need(SSHD)
    folder = tmp_path_factory.mktemp("ssh")
    home = Path(pwd.getpwnam("lockstep").pw_dir)
    for name in ("host", "user"):
        keygen = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
        subprocess.run(keygen, check=True)
    keys = home / ".ssh" / "authorized_keys"
    keys.parent.mkdir(exist_ok=True)
    keys.write_text((folder / "user.pub").read_text())
    profile = home / ".bash_profile"
    profile.write_text(f'export PATH="{STATE}/login/bin:$PATH"\n')
    give(keys.parent, profile)
    keys.parent.chmod(0o700)
    # Neither a password nor a locked account, which sshd lets nobody into.
    subprocess.run(["usermod", "--password", "*", "lockstep"], check=True)
    port = free_port()
    options = ("Port", port), ("ListenAddress", "127.0.0.1"), ("HostKey", folder / "host")
    settings = [*options, ("UsePAM", "no"), ("PidFile", "none"), ("StrictModes", "no")]
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings))
    Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"]) as server:
        config = f"""Host login1
            HostName 127.0.0.1
            Port {port}
            User lockstep
            IdentityFile {folder}/user
            StrictHostKeyChecking no
            UserKnownHostsFile {folder}/known
            LogLevel ERROR
        """
        (folder / "config").write_text(config)
        tool = folder / "bin" / "ssh"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
        tool.chmod(0o755)
        yield tool.parent
        server.terminate()
    shutil.rmtree(keys.parent)
    shutil.rmtree(home / "lockstep", ignore_errors=True)
    profile.unlink()


@pytest.fixture
def here(ssh, tmp_path, monkeypatch):
    """The user's own machine: a folder with a campaign and a site file, and ssh to the cluster."""
    monkeypatch.setenv("PATH", f"{ssh}:{os.environ['PATH']}")
    (tmp_path / "site.toml").write_text(site_text())
    write_campaign(tmp_path / "campaign.toml", **CAMPAIGN)
    return tmp_path


def lockstep(folder, line):
    return commands.lockstep(*line.split(), cwd=folder)


def test_a_campaign_is_submitted_followed_and_collected_from_another_machine(here):
    dry = lockstep(here, "submit campaign.toml --site site.toml --host login1 --dry-run")
    assert (dry.returncode, len(dry.stdout.splitlines())) == (0, 2)
    assert "lockstep submit campaign.toml --site site.toml" in dry.stdout

    done(lockstep(here, "submit campaign.toml --site site.toml --host login1"))

    def has_ended():
        asked = lockstep(here, "status results/remote --json --host login1")
        assert asked.returncode in (0, 1), asked.stderr
        status = json.loads(asked.stdout)
        return (status["num_complete"], status["jobs"][0]["state"]) == (1, "COMPLETED")

    until(has_ended, "the job's end", PATIENCE_S, poll_s=3)
    done(lockstep(here, "status results/remote --collect --host login1"))
    reported = done(lockstep(here, "report results/remote --json"))
    assert [point["world_size"] for point in json.loads(reported)["points"]] == [1]


def test_a_host_that_lets_nobody_in_is_named(here):
    ended = lockstep(here, "status results/remote --host nobody@login1")
    assert ended.returncode == 3
    said = " ".join(ended.stderr.split())
    assert "ssh cannot reach nobody@login1 without a password" in said
