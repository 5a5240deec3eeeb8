"""The options of a launch: what a campaign tells pytest, or the driver of a program."""

import json
from collections.abc import Iterator
from typing import Any

from lockstep.campaign.campaign import IDENTITY, Campaign, Launch
from lockstep.campaign.program.table import Command
from lockstep.core import factors
from lockstep.core.records.record import OWN


def common_options(campaign: Campaign) -> Iterator[str]:
    """Yield the options in every launch of a campaign: of pytest, or of a program's driver."""
    if campaign.command:
        yield f"--table={json.dumps(_table(campaign, campaign.command))}"
    elif campaign.studies:
        yield from ("-m", " or ".join(campaign.studies))
    for name in IDENTITY:
        value = getattr(campaign, name)
        if value is not None:
            yield f"--{name.replace('_', '-')}={value}"
    if not campaign.command:
        yield from (f"--set={text}" for text in factors.written(campaign.factors))
    if campaign.order_seed is not None:
        yield f"--order-seed={campaign.order_seed}"
    if campaign.case_budget is not None:
        yield f"--case-budget={campaign.case_budget:g}"
    if campaign.on_oom is not None:
        yield f"--on-oom={campaign.on_oom}"
    yield f"--label=campaign={campaign.name}"
    yield f"--label=studies={','.join(campaign.studies or [OWN])}"


def _table(campaign: Campaign, command: Command) -> dict[str, Any]:
    """Return the options of a program's driver, as JSON holds them."""
    size = campaign.measured_size()
    return {
        "command": command.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "factors": campaign.factors,
        "rounds": size.rounds,
        "warmup_rounds": size.warmup_rounds,
        "most_ranks": max(campaign.world_sizes),
    }


def own_options(launch: Launch) -> Iterator[str]:
    """Yield the options of pytest in one launch alone."""
    yield f"--label=launch={launch.name}"
    yield f"--label=repeat={launch.repeat}"
    if launch.part is not None:
        yield f"--part={launch.part}/{launch.num_parts}"
