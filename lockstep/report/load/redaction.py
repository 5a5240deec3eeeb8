"""`lockstep report --redact`: hosts become host1, host2, ...; users and paths become a fixed word.

The environment is left out. Names of campaigns, launches, cases and devices stay.
"""

import re
from collections.abc import Mapping
from typing import Any

from lockstep.report.load.results import Results

PATH, USER = "<path>", "<user>"
# Facts of provenance and of a rank that are dropped; nvidia-smi nvlink names each GPU's UUID.
DROPPED = ("environment", "dropped_environment", "slurm", "nvlink")
OF_RANK = ("gpu_uuid", "pid")
HOMES = re.compile(r"/(?:home|users|Users)/([\w.-]+)")
ABSOLUTE = re.compile(r"(?<![\w/.<>])~?/[\w.+@%,:=~-]+(?:/[\w.+@%,:=~-]*)*")
NAMES_OF_USERS = ("USER", "LOGNAME", "SLURM_JOB_USER")
# Shortest name of a user that is replaced; shorter ones are parts of other words.
LEAST = 3


class Redactor:
    """Replaces names of people and machines in plain data."""

    def __init__(self, results: Results) -> None:
        """Collect the names in results, and drop facts that are never shown."""
        hosts = {host for row in results.rows for host in row.rank_hosts}
        users = set()
        for launch in results.launches:
            variables = launch.provenance.get("environment") or {}
            users |= {str(variables.get(name, "")) for name in NAMES_OF_USERS}
            users |= {*HOMES.findall(f"{launch.path} {launch.facts}")}
            hosts |= {str(launch.provenance.get("hostname") or ""), *launch.hosts}
        short: dict[str, list[str]] = {}
        for host in hosts - {""}:
            short.setdefault(host.partition(".")[0], []).append(host)
        self._names = {user: USER for user in users if len(user) >= LEAST}
        for number, name in enumerate(sorted(short, key=_natural), start=1):
            self._names |= dict.fromkeys([name, *short[name]], f"host{number}")
        longest = "|".join(sorted(map(re.escape, self._names), key=len, reverse=True))
        self._known = re.compile(rf"(?<![\w-])(?:{longest})(?![\w-])") if longest else None
        for launch in results.launches:
            provenance = launch.facts.get("provenance")
            if isinstance(provenance, dict):
                kept = {name: value for name, value in provenance.items() if name not in DROPPED}
                if ranks := provenance.get("ranks"):
                    kept["ranks"] = [
                        {name: value for name, value in rank.items() if name not in OF_RANK}
                        for rank in ranks
                    ]
                launch.facts["provenance"] = kept

    def __call__(self, value: Any, with_keys: bool = False) -> Any:
        """Return plain data with names replaced in texts, and in keys within `details`."""
        if isinstance(value, str):
            text = ABSOLUTE.sub(PATH, value)
            return self._known.sub(lambda m: self._names[m[0]], text) if self._known else text
        if isinstance(value, Mapping):
            return {
                self(key) if with_keys else key: self(each, with_keys or key == "details")
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self(each, with_keys) for each in value]
        return value


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts node10 after node9."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
