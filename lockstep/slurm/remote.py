"""Commands that run on a cluster's login node, over the user's own ssh: `--host LOGIN[:FOLDER]`."""

import io
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import click

# Folder of campaigns below the home folder of the login node, unless --host names one.
DEFAULT_FOLDER = "lockstep"
# ssh asks for no password: it fails if neither a key nor an agent lets it in.
SSH = ("ssh", "-o", "BatchMode=yes")
EXIT_OF_SSH = 255
EXIT_NOT_FOUND = 127


@dataclass(frozen=True)
class Host:
    """A login node and the folder there in which commands run."""

    login: str
    folder: str

    @classmethod
    def parse(cls, text: str) -> "Host":
        """Read LOGIN[:FOLDER]; refuse a login that looks like an option of ssh."""
        login, _, folder = text.partition(":")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", login):
            raise click.BadParameter(f"{text!r} is not LOGIN[:FOLDER], such as me@login1:runs")
        return cls(login, folder or DEFAULT_FOLDER)

    def command(self, line: str, *, has_terminal: bool = False) -> list[str]:
        """Return the ssh command that runs a shell line in a login shell of the host."""
        inside = f"mkdir -p {shlex.quote(self.folder)} && cd {shlex.quote(self.folder)} && {line}"
        terminal = ["-t"] if has_terminal else []
        return [*SSH, *terminal, self.login, f"bash -lc {shlex.quote(inside)}"]


class OverSsh(click.Command):
    """A command with `--host`: it copies its files to the host and runs there."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        host_option = click.Option(
            ["--host"],
            metavar="LOGIN[:FOLDER]",
            expose_value=False,
            help="Run this command by ssh on the login node LOGIN, in its FOLDER [default: "
            f"{DEFAULT_FOLDER}]. With --dry-run, only print the ssh commands.",
        )
        self.params.append(host_option)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Run the command on its `--host`; without that option, parse the arguments as usual."""
        host, words = split_host(args)
        if host is not None and not ctx.resilient_parsing:  # a shell that completes words parses so
            ctx.exit(run_there(Host.parse(host), str(ctx.info_name), words))
        return super().parse_args(ctx, args)


def split_host(args: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of the last `--host` and the arguments without it."""
    host, words, left = None, [], iter(args)
    for word in left:
        if word == "--host":
            host = next(left, "")
        elif word.startswith("--host="):
            host = word.removeprefix("--host=")
        else:
            words.append(word)
    return host, words


def run_there(host: Host, name: str, words: Sequence[str]) -> int:
    """Copy the .toml files among `words` to the host, run the command, and fetch the results.

    Returns the command's exit code there; raises RuntimeError if ssh or `lockstep` does not start.
    """
    files, there = list[Path](), list[str]()
    for word in words:
        option, path = re.fullmatch("(--[a-z-]+=)?(.*)", word, re.DOTALL).groups("")  # type: ignore[union-attr]
        is_file = path.endswith(".toml") and Path(path).is_file()
        files += [Path(path)] if is_file else []
        there.append(option + Path(path).name if is_file else word)
    is_dry = bool({"-n", "--dry-run"} & set(words))
    there = [word for word in there if word not in ("-n", "--dry-run")]
    line = shlex.join(["lockstep", name, *there])
    steps = [host.command(line, has_terminal=sys.stdout.isatty() and not is_dry)]
    if files:
        steps.insert(0, host.command("tar -xf -"))
    folders = [word for word in words if not word.startswith("-")]
    if "--collect" in words and folders:
        steps.append(host.command(shlex.join(["tar", "-cf", "-", folders[0]])))
    if is_dry:
        for step in steps:
            click.echo(shlex.join(step))
        return 0
    if files:
        _send(host, files, steps.pop(0))
    code = _check(host, subprocess.run(steps[0], check=False).returncode)
    if len(steps) > 1:
        # A command that failed has printed why; its results may be there all the same.
        with suppress(RuntimeError) if code else nullcontext():
            _fetch(host, folders[0], steps[1])
            click.echo(f"Copied {folders[0]} from {host.login}.")
    return code


def _send(host: Host, files: Sequence[Path], command: Sequence[str]) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        for file in files:
            packed.add(file, arcname=file.name)
    ended = subprocess.run(command, input=archive.getvalue(), check=False)
    if _check(host, ended.returncode):
        names = ", ".join(file.name for file in files)
        raise RuntimeError(
            f"cannot copy {names} to {host.login}:{host.folder}; see the message above, and check "
            "that you may write to this folder"
        )


def _fetch(host: Host, folder: str, command: Sequence[str]) -> None:
    problem = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                archive.extractall(Path(), filter="data")
        except tarfile.TarError as error:
            problem = f": {error}"
    if _check(host, process.returncode) or problem:
        raise RuntimeError(
            f"cannot copy {folder} from {host.login}{problem}; make sure that the login shell "
            f"of {host.login} prints nothing when it starts"
        )


def _check(host: Host, code: int) -> int:
    """Return a command's exit code; raise RuntimeError if ssh or `lockstep` did not start."""
    if code == EXIT_OF_SSH:
        command = shlex.join([*SSH, host.login, "true"])
        raise RuntimeError(
            f"ssh cannot reach {host.login} without a password; set up a key or an agent, and try: "
            f"{command}"
        )
    if code == EXIT_NOT_FOUND:
        raise RuntimeError(
            f"the login shell of {host.login} does not find lockstep on its PATH; install "
            "lockstep there with pip"
        )
    return code
