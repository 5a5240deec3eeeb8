"""The examples that the project gives: every command in a `--help` and in a code block of ours."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from lockstep.cli import lockstep

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md"),
    *sorted(str(one.relative_to(ROOT)) for one in (ROOT / "docs").rglob("*.md")),
)
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# An example's remark begins after a # or after two spaces.
_REMARK = re.compile(r"\s+#\s.*|\s{2,}\S.*")
# What needs more to run is only named.
_NAMED = (
    "slurm [a-z]+|run train|run data|export again|check --targets|status --collect|submit --by-hand"
)
_SPAN = re.compile(rf"`(lockstep (?!(?:{_NAMED})`)[a-z]+\s[^`\u2026]+)`")
_TYPED = re.compile(r"(?:lockstep|sbatch|srun)\s")


def collected() -> list[tuple[str, str]]:
    """Return (where it is given, the command as a user types it) of each example."""
    return [*_of_help(), *_of_documents()]


def files_given(document: str) -> list[tuple[str, str]]:
    """Return (name, text) of each TOML file that a document gives whole and by name."""
    text = (ROOT / document).read_text()
    return re.findall(r"^```toml\n# (\S+\.toml)\n(.*?)^```", text, re.M | re.S)


def _of_help() -> Iterator[tuple[str, str]]:
    for name, command in _commands("lockstep", lockstep):
        for line in _joined(f"{command.help or ''}\n{command.epilog or ''}"):
            if _TYPED.match(line):
                yield f"{name} --help", _REMARK.sub("", line)


def _of_documents() -> Iterator[tuple[str, str]]:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        for block in _BLOCK.findall(text):
            for line in _joined(block):
                yield name, _REMARK.sub("", line)
        for span in _SPAN.findall(_BLOCK.sub("", text)):
            yield name, " ".join(span.split())


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from _commands(f"{name} {word}", below)


def _joined(text: str) -> list[str]:
    """Return the lines of a text, one that goes on deeper than an example joined to it."""
    lines: list[str] = []
    for line in text.splitlines():
        goes_on = bool(lines) and _TYPED.match(lines[-1]) and re.match(r"\s{6,}--", line)
        if goes_on:
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            lines.append(line.strip())
    return lines
