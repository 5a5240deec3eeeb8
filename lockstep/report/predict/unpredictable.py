"""Why a size is not predicted: a record of the reason, and its sentence."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from lockstep.core.formats import counted, listed
from lockstep.report.check.wording import joined

if TYPE_CHECKING:
    from lockstep.report.check.checker import Finding
    from lockstep.report.compute.scaling import Series

Kind = Literal["few-sizes", "below", "beyond", "break", "check"]
# The fewest sizes that a prediction rests on: two to draw from, and one to try the rules on.
LEAST_SIZES = 3
FARTHEST = 2
# Warnings of the check that forbid a curve; its errors all do.
NO_CURVE = ("outlier", "launches-apart")


@dataclass(frozen=True)
class Refusal:
    """Why a size is not predicted.

    Attributes:
        world_sizes: The sizes that forbid it.
        measure: The sizes to measure, never the one asked for; empty where no size would help.
        rule: The rule of `lockstep check` that forbids it; empty for the other kinds.
        fact: What that rule found, or how the curve breaks, in words.
        action: What to do about that, in words; empty where measuring `measure` is all.
    """

    kind: Kind
    at: int
    world_sizes: tuple[int, ...]
    measure: tuple[int, ...] = ()
    rule: str = ""
    fact: str = ""
    action: str = ""

    @property
    def text(self) -> str:
        """The reason and what to do, in one sentence."""
        sizes = listed(self.world_sizes)
        do = f"measure {joined(self.measure)}" if self.measure else self.action
        if self.kind == "few-sizes":
            distinct = counted(len(self.world_sizes), "distinct size")
            fact = f"{distinct} ({sizes}) are fewer than the {LEAST_SIZES} needed"
            return f"{fact}; {do} as well" if do else fact
        if self.kind == "below":
            fact = f"{self.at} is below the smallest size measured, {sizes}"
        elif self.kind == "beyond":
            fact = (
                f"{self.at} is more than {FARTHEST} times the largest size measured, {sizes}, "
                "where no rule can be trusted"
            )
        elif self.kind == "break":
            fact = f"the curve breaks at {sizes} ({self.fact}), so no curve leads to {self.at}"
        else:
            fact = f"check finds {self.rule} at {sizes}: {self.fact}"
        return f"{fact}; {do}, or use --force" if do else f"{fact}; use --force to see a value"


def forbidding(findings: "Iterable[Finding]", series: "Series") -> "tuple[Finding, ...]":
    """Return what `lockstep check` finds that forbids a curve through a series.

    That its numbers are targets does not: what follows from them says so, see `known.Ladder`.
    """
    rows = [row for point in series.points for row in point.rows]
    return tuple(
        one
        for one in findings
        if ((one.level == "error" and one.rule != "not-measured") or one.rule in NO_CURVE)
        and any(map(one.touches, rows))
    )


def doublings_between(small: int, large: int) -> list[int]:
    """Return the doublings of a size that lie below another one."""
    found = []
    while (small := 2 * small) < large:
        found.append(small)
    return found


def worth_measuring(sizes: Sequence[int], at: int) -> list[int]:
    """Return the doublings between the sizes, and from them to `at`, that a prediction lacks."""
    ends = [*sizes, *([at] if at > sizes[-1] else [])]
    gaps = [size for p, q in pairwise(ends) for size in doublings_between(p, q)]
    return [size for size in gaps if size != at][: LEAST_SIZES - len(sizes)]
