"""One launch: the agreement of its ranks, and the end of each case."""

from typing import Any

FIXTURE = "lockstep"
HOOKS = "lockstep.launch.hooks"
# Options of pytest and its plugins that name an output file, which only rank 0 may write.
FILES = ("xmlpath", "report_log", "log_file", "htmlpath", "json_report", "json_report_file")


def leave_files(config: Any) -> None:
    """Unset the options for output files on a rank above 0; `config` is pytest's."""
    for name in FILES:
        if hasattr(config.option, name):
            setattr(config.option, name, None)
