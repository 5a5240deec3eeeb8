"""What git says of a checkout."""

import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.core.system import commands

TIMEOUT_S = 20


def git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints in a folder; None where git is absent or refuses."""
    # A job often runs as another user than the checkout's owner, or in a user namespace, which git
    # calls dubious: reading is harmless, so every folder counts as safe.
    options = ["--no-optional-locks", "-c", "safe.directory=*", "-C", str(folder)]
    # A git hook exports GIT_DIR, which would point every answer at the hook's repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return commands.answer(["git", *options, *arguments], TIMEOUT_S, environ)


def state(folder: Path, paths: Sequence[Path] = ()) -> tuple[str | None, bool | None]:
    """Return a checkout's commit, and whether files differ from it.

    Args:
        folder: A folder of the checkout.
        paths: The files that count, those unknown to git included; all tracked files by default.

    Returns:
        Commit and dirtiness; None for what git does not say.
    """
    commit = git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None, None
    files = ["--", *map(str, paths)] if paths else ["--untracked-files=no"]
    changes = git(folder, "status", "--porcelain", *files)
    return commit, None if changes is None else bool(changes)
