"""`--host` without a server: an `ssh` that runs its command in another folder of this machine."""

import click
import pytest

from lockstep.slurm import remote
from lockstep.slurm.remote import Host
from lockstep.slurm.submit.submit_cli import submit

SSH = """#!/bin/sh
echo called >> {folder}/calls
cd {folder}/there && PATH={folder}/there/bin:$PATH && {line}
"""
RUNS = 'for last in "$@"; do :; done; eval "$last"'


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Put an ssh on PATH that runs its last argument, or one line, in `there`; work in `here`."""
    for folder in ("bin", "here", "there/bin"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path / "there"))
    monkeypatch.chdir(tmp_path / "here")
    tool = tmp_path / "there" / "bin" / "lockstep"
    tool.write_text('#!/bin/sh\necho "$@" > arguments\nmkdir -p made && echo 1 > made/result\n')
    tool.chmod(0o755)
    (tmp_path / "there" / ".bash_profile").write_text(f'PATH="{tmp_path}/there/bin:$PATH"\n')

    def make(line=RUNS):
        path = tmp_path / "bin" / "ssh"
        path.write_text(SSH.format(folder=tmp_path, line=line))
        path.chmod(0o755)
        return tmp_path

    return make


def test_files_are_copied_and_results_come_back(ssh):
    folder = ssh()
    for name in ("campaign", "site"):
        path = folder / "here" / "mine" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    words = ["made", "--collect", "mine/campaign.toml", "--site=mine/site.toml"]
    assert remote.run_there(Host("me@login1", "runs"), "status", words) == 0
    there = folder / "there" / "runs"
    assert (there / "arguments").read_text() == (
        "status made --collect campaign.toml --site=site.toml\n"
    )
    assert [(there / f"{name}.toml").read_text() for name in ("campaign", "site")] == [
        "campaign", "site",
    ]  # fmt: skip
    assert (folder / "here" / "made" / "result").read_text() == "1\n"


def test_nothing_runs_there_if_its_files_could_not_be_copied(ssh):
    folder = ssh("exit 2")
    (folder / "here" / "campaign.toml").write_text("")
    with pytest.raises(RuntimeError, match=r"cannot copy campaign\.toml to me@login1:runs"):
        remote.run_there(Host("me@login1", "runs"), "submit", ["campaign.toml"])
    assert (folder / "calls").read_text() == "called\n"


@pytest.mark.parametrize(
    ("code", "text"), [(255, "ssh cannot reach me@login1 without"), (127, "does not find lockstep")]
)
def test_a_host_that_cannot_be_used_is_named(ssh, code, text):
    ssh(f"exit {code}")
    with pytest.raises(RuntimeError, match=text):
        remote.run_there(Host("me@login1", "runs"), "status", ["made"])


@pytest.mark.parametrize("line", ["echo Welcome", "exit 2"])
def test_results_that_do_not_arrive_are_an_error(ssh, line):
    ssh(f'case "$*" in *tar*) {line} ;; esac')
    with pytest.raises(RuntimeError, match="cannot copy made from me@login1"):
        remote.run_there(Host("me@login1", "runs"), "status", ["made", "--collect"])


@pytest.mark.parametrize(
    ("line", "is_there"), [("mkdir made; echo 1 > made/result", True), ("", False)]
)
def test_results_come_back_although_the_command_failed(ssh, line, is_there):
    folder = ssh()
    (folder / "there" / "bin" / "lockstep").write_text(f"#!/bin/sh\n{line}\nexit 1\n")
    assert remote.run_there(Host("me@login1", "runs"), "status", ["made", "--collect"]) == 1
    assert (folder / "here" / "made" / "result").exists() == is_there


def test_a_dry_run_prints_what_ssh_would_run_and_calls_nothing(ssh, capsys):
    folder = ssh()
    (folder / "here" / "campaign.toml").write_text("")
    with pytest.raises(click.exceptions.Exit) as ended:
        submit.make_context("submit", ["campaign.toml", "--host", "me@login1", "--dry-run"])
    copied, submitted = capsys.readouterr().out.splitlines()
    assert (ended.value.exit_code, "tar -xf -" in copied) == (0, True)
    assert "lockstep submit campaign.toml" in submitted
    assert not (folder / "calls").exists()
