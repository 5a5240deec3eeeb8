"""The commands as tests call them: within this process, or assembled and in one of their own."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

ROOT = Path(__file__).parents[1]
# For a process that a test waits for: one that hangs, or asks, fails its test and holds no other.
BOUNDED: dict[str, Any] = {"stdin": subprocess.DEVNULL, "timeout": 300}


def run(command: click.Command, *arguments: object) -> Result:
    """Run a command in this process; what it raises is raised, its code is `return_value`."""
    return CliRunner().invoke(
        command, [str(a) for a in arguments], catch_exceptions=False, standalone_mode=False
    )


def finish(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    bounded = {"timeout": BOUNDED["timeout"]} if "input" in options else BOUNDED
    options = bounded | {"capture_output": True, "text": True, "check": False} | options
    return subprocess.run(list(map(str, command)), **options)


def lockstep(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the assembled command in its own process, as users do; by default in the checkout."""
    return finish([sys.executable, "-m", "lockstep", *arguments], **{"cwd": ROOT} | options)
