"""A budget in hours: how much of a campaign fits into it, and what is left out for it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lockstep.campaign.campaign import Campaign

Unit = Literal["node-hours", "GPU-hours"]
UNITS: dict[str, Unit] = {"nh": "node-hours", "gh": "GPU-hours"}


@dataclass(frozen=True)
class Budget:
    """Hours to stay within.

    Attributes:
        unit: Of what; None for GPU-hours where the site has GPUs, else node-hours.
    """

    hours: float
    unit: Unit | None = None

    def __str__(self) -> str:
        """Return it as the option takes it."""
        suffix = next((name for name, unit in UNITS.items() if unit == self.unit), "")
        return f"{self.hours:g}{suffix}"


def rounded_up(amount: float) -> str:
    """Return hours or a cost with two decimals that it does not exceed."""
    return f"{math.ceil(round(amount * 100, 6)) / 100:,.2f}"


# Fewer launches give no interval worth reading, so points go before these repeats do.
MIN_REPEATS = 3
ORDER = f"repeats down to {MIN_REPEATS}, then the largest world sizes, then repeats down to 1"


@dataclass(frozen=True)
class Fitted:
    """A campaign within a budget.

    Attributes:
        dropped: What was left out, in words, in the order in which it was.
    """

    campaign: "Campaign"
    dropped: tuple[str, ...] = ()


def fit(
    campaign: "Campaign", budget: float, cost: Callable[["Campaign"], float], unit: str
) -> Fitted:
    """Return as much of a campaign as a budget holds.

    What is dropped, in this order: repeats from the last down to 3, world sizes from the largest,
    repeats down to 1. A kind of drop that saves nothing is not made. Budget and cost are in the
    same unit, and a campaign with less in it never costs more.

    Raises:
        ValueError: Even the smallest point costs more.
    """
    fitted = Fitted(campaign)
    for drop in (_repeats_to(MIN_REPEATS), _world_sizes, _repeats_to(1)):
        if cost(fitted.campaign) <= budget:
            return fitted
        fitted = drop(fitted, cost, budget)
    needed = cost(fitted.campaign)
    if needed <= budget:
        return fitted
    raise ValueError(
        f"a budget of {budget:g} {unit} holds nothing of this campaign: one repeat of world size "
        f"{fitted.campaign.world_sizes[0]} takes {rounded_up(needed)}; "
        "raise --budget, or lower time"
    )


Cost = Callable[["Campaign"], float]
Drop = Callable[[Fitted, Cost, float], Fitted]


def _repeats_to(least: int) -> Drop:
    def drop(fitted: Fitted, cost: Cost, budget: float) -> Fitted:
        most = fitted.campaign.repeats
        if most <= least or cost(_with_repeats(fitted.campaign, least)) >= cost(fitted.campaign):
            return fitted
        low, high = least, most - 1  # as many as fit, or the least
        while low < high:
            middle = (low + high + 1) // 2
            if cost(_with_repeats(fitted.campaign, middle)) <= budget:
                low = middle
            else:
                high = middle - 1
        change = f"repeats {most} -> {low}"
        return Fitted(_with_repeats(fitted.campaign, low), (*fitted.dropped, change))

    return drop


def _with_repeats(campaign: "Campaign", repeats: int) -> "Campaign":
    return campaign.model_copy(update={"repeats": repeats})


def _world_sizes(fitted: Fitted, cost: Cost, budget: float) -> Fitted:
    campaign, dropped = fitted.campaign, []
    while len(campaign.world_sizes) > 1 and cost(campaign) > budget:
        *kept, largest = sorted(campaign.world_sizes)
        dropped.append(str(largest))
        campaign = campaign.model_copy(update={"world_sizes": tuple(kept)})
    if not dropped:
        return fitted
    change = f"world size{'s' if len(dropped) > 1 else ''} {', '.join(dropped)}"
    return Fitted(campaign, (*fitted.dropped, change))
