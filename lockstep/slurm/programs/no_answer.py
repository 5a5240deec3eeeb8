"""Why a command of Slurm gave no answer: what it printed as a kind, and that in our words."""

import os
from typing import Literal

from lockstep.core.formats import one_line

Kind = Literal["no_config", "no_controller", "late", "no_database", "not_trusted", "other"]
# Set by `lockstep --verbose`: Slurm's own words follow ours.
VERBOSE = "LOCKSTEP_VERBOSE"
# What sacct says where slurm.conf has no AccountingStorageType.
NO_ACCOUNTING = "accounting storage is disabled"
# Part of what is printed, in lower case -> kind; the first that fits counts. As slurm_errno.c and
# fetch_config.c of Slurm 22.05 to 24.05 say it.
SAID: dict[str, Kind] = {
    "establish a configuration source": "no_config",
    "resolve_ctls": "no_config",
    "fetch_config": "no_config",
    "unable to process configuration file": "no_config",
    "slurmdbd": "no_database",
    "persistent connection": "no_database",
    "problem talking to the database": "no_database",
    "munge": "not_trusted",
    "protocol authentication error": "not_trusted",
    "socket timed out": "late",
    "unable to contact slurm controller": "no_controller",
    "zero bytes were transmitted": "no_controller",
}
# kind -> what it means of a command, and what to do
WORDS: dict[Kind, tuple[str, str]] = {
    "no_config": (
        "{} finds no Slurm here, neither a good slurm.conf nor a controller in DNS",
        "use a login node of the cluster, or name its file in SLURM_CONF",
    ),
    "no_controller": (
        "{} does not reach Slurm's controller, which is down or out of reach",
        "ask again later, or see scontrol ping",
    ),
    "late": ("Slurm's controller was too busy to answer {} in time", "ask again later"),
    "no_database": (
        "{} does not reach Slurm's accounting (slurmdbd), which is down or out of reach",
        "ask again later",
    ),
    "not_trusted": (
        "Slurm does not let {} speak to it, for munge does not run here or has another key",
        "use a login node, or ask the cluster's support",
    ),
}


class FailedError(RuntimeError):
    """A command of Slurm that ended with an error."""

    def __init__(self, command: str, stderr: str, code: int) -> None:
        low = stderr.lower()
        self.kind: Kind = next((kind for said, kind in SAID.items() if said in low), "other")
        self.stderr = stderr
        said = f"{command} said: {one_line(stderr) or f'nothing, and exit code {code}'}"
        says, self.to_do = WORDS.get(self.kind, (said, ""))
        self.says = says.format(command) if self.to_do else said
        ours = "; ".join(filter(None, [self.says, self.to_do]))
        super().__init__(f"{ours}; {said}" if self.to_do and os.environ.get(VERBOSE) else ours)


class NoAccountingError(FailedError):
    """This cluster keeps no accounts: asking again is of no use."""


class NotInstalledError(RuntimeError):
    """A command of Slurm that is not on this machine: asking again is of no use."""

    def __init__(self, command: str) -> None:
        super().__init__(f"{command} is not installed here; use a login node of the cluster")


def failed(command: str, stderr: str, code: int) -> FailedError:
    """Return the error of a command of Slurm that ended with one."""
    kind = NoAccountingError if NO_ACCOUNTING in stderr else FailedError
    return kind(command, stderr, code)
