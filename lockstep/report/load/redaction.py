"""What a report leaves out with `--redact`: hosts, users, paths and the environment.

Hosts become host1, host2 and so on in their natural order, so a reader can still compare nodes;
paths and users become a word. Names of campaigns, launches, cases and devices stay.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.report.load.results import Results

PATH, USER = "<path>", "<user>"
# Facts of provenance that are dropped, and those of a rank.
DROPPED = ("environment", "dropped_environment", "slurm")
OF_RANK = ("gpu_uuid", "pid")
HOMES = re.compile(r"/(?:home|users|Users)/([\w.-]+)")
ABSOLUTE = re.compile(r"(?<![\w/.<>])~?/[\w.+@%,:=~-]+(?:/[\w.+@%,:=~-]*)*")
NAMES_OF_USERS = ("USER", "LOGNAME", "SLURM_JOB_USER")
# A user of two letters would take words out of every sentence.
LEAST = 3
NAME, NUMBER = "(?<![\\w-])(?:{})(?![\\w-])", re.compile(r"(\d+)")


class Redactor:
    """Takes what names people and machines out of plain data."""

    def __init__(self, results: Results) -> None:
        """Learn the names in results, and drop from them what is not shown at all."""
        hosts = {host for host in _hosts(results) if host}
        users = {user for user in _users(results) if len(user) >= LEAST}
        short: dict[str, list[str]] = {}
        for host in hosts:
            short.setdefault(host.partition(".")[0], []).append(host)
        self._names = dict.fromkeys(users, USER)
        for number, name in enumerate(sorted(short, key=_natural), start=1):
            self._names |= dict.fromkeys([name, *short[name]], f"host{number}")
        longest = sorted(map(re.escape, self._names), key=len, reverse=True)
        self._known = re.compile(NAME.format("|".join(longest))) if longest else None
        for launch in results.launches:
            _drop(launch.facts)

    def __call__(self, value: Any, with_keys: bool = False) -> Any:
        """Return plain data, as JSON holds it, without names in texts, or in keys of `details`."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {
                self._text(key) if with_keys and isinstance(key, str) else key: self(
                    one, with_keys or key == "details"
                )
                for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self(one, with_keys) for one in value]
        return value

    def _text(self, text: str) -> str:
        text = ABSOLUTE.sub(PATH, text)
        return self._known.sub(lambda match: self._names[match[0]], text) if self._known else text


def _hosts(results: Results) -> Iterator[str]:
    for launch in results.launches:
        yield str(launch.provenance.get("hostname") or "")
        yield from launch.hosts
    for row in results.rows:
        yield from row.rank_hosts


def _users(results: Results) -> Iterator[str]:
    for launch in results.launches:
        variables = launch.provenance.get("environment") or {}
        yield from (str(variables.get(name, "")) for name in NAMES_OF_USERS)
        yield from HOMES.findall(f"{launch.path} {launch.facts}")


def _drop(facts: dict[str, Any]) -> None:
    """Take the environment, Slurm's variables and devices' serial numbers out of a launch."""
    provenance = facts.get("provenance")
    if isinstance(provenance, dict):
        ranks = [
            {name: value for name, value in rank.items() if name not in OF_RANK}
            for rank in provenance.get("ranks") or []
        ]
        kept = {name: value for name, value in provenance.items() if name not in DROPPED}
        facts["provenance"] = kept | ({"ranks": ranks} if ranks else {})


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return what sorts node10 behind node9."""
    parts = NUMBER.split(name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
