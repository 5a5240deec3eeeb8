"""One launch: what its ranks agree on, and what becomes of each case."""

from typing import Any

FIXTURE = "lockstep"
HOOKS = "lockstep.launch.hooks"
# Options of pytest and its plugins that name a file, of which there is one for all ranks.
FILES = ("xmlpath", "report_log", "log_file", "htmlpath", "json_report", "json_report_file")


def leave_files(config: Any) -> None:
    """Leave the files that a session writes to rank 0; `config` is pytest's."""
    for name in FILES:
        if hasattr(config.option, name):
            setattr(config.option, name, None)
