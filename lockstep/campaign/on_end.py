"""The user's own command at the end of a campaign: a mail, a message, whatever they want.

It runs once for each end: where the campaign then goes on and ends again, it runs again.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lockstep.campaign import floor
from lockstep.campaign.folder import Folder
from lockstep.vocabulary.system import commands, files

# Nobody waits longer for a mail to be sent.
TIMEOUT_S = 300.0
NOTE = "on-end.json"


def run(folder: Folder, say: Callable[[str], None]) -> None:
    """Run the campaign's `on_end`, unless it was run for this end; its failure is only said.

    Its environment has LOCKSTEP_CAMPAIGN, the folder of the results, and LOCKSTEP_STATE, which is
    `complete` or `incomplete`.

    Args:
        folder: The campaign's folder, in which nothing is under way.
        say: Told how the command ended.

    Raises:
        ValueError: A journal is corrupt.
    """
    claimed = folder.claimed() or {}
    command = claimed.get("on_end")
    if not isinstance(command, str) or not command:
        return
    end = _end(folder, claimed)
    path = folder.path / NOTE
    with suppress(ValueError):
        if files.parse(files.content(path)) == end:
            return
    files.write_atomically(path, json.dumps(end))  # first: rather no mail than two
    environ = os.environ | {"LOCKSTEP_CAMPAIGN": str(folder.path), "LOCKSTEP_STATE": end["state"]}
    try:
        ended = commands.run(
            ["/bin/bash", "-c", command], TIMEOUT_S, environ=environ, folder=folder.path
        )
    except commands.CommandError as error:
        say(f"on_end: {error}")
        return
    say(f"on_end: it ended with {ended.code}" if ended.code else "on_end: done")


def _end(folder: Folder, claimed: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an end, and what tells it from another: when a launch last wrote."""
    planned = {launch["name"] for launch in claimed.get("launches", ())}
    names = planned - floor.left_out(folder.path / "launches", claimed)
    studies = claimed.get("studies", ())
    is_complete = all(folder.outcome(name, studies).complete for name in names)
    written = (folder.journal(name).stat().st_mtime_ns for name in folder.names())
    return {
        "state": "complete" if is_complete else "incomplete",
        "written": max(written, default=0),
    }
