"""A campaign about factors: the values that a user gives take the place of a study's own."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.campaign.campaign import Campaign, load
from lockstep.core import factors as known
from lockstep.core.sizes import Value

MAX_NAME = 64  # what a campaign's name may have


def load_with(source: str, factors: Mapping[str, Sequence[Value]], **changes: Any) -> Campaign:
    """Read a campaign and set factors over it.

    Without studies in the changes, the one that varies the least else is asked: of the campaign's
    where they have the factors. Without a name, the factors become part of it, since their results
    do not mix with the campaign's own. A program has its study.

    Raises:
        ValueError: As `load`; or no study has the factors.
    """
    if not factors:
        return load(source, **changes)
    if changes.get("tests"):
        raise ValueError("--set is about studies; parametrize tests of your own by pytest")
    plain = load(source, **changes)
    if plain.command is None:
        known.check(factors)
        if changes.get("studies") is None:
            asked = known.study_of(list(factors), plain.studies, plain.measured_size())
            changes["studies"] = (asked,)
    changes["name"] = changes.get("name") or "-".join([plain.name, *factors])[:MAX_NAME]
    return load(source, **changes, factors=dict(factors))
