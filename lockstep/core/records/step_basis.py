"""What a measured step reads and ends with: what tells of which step a result is a bound."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Data = Literal["synthetic", "real"]
# Under this name a case has it in its details.
BASIS = "basis"


@dataclass(frozen=True)
class Basis:
    """What a step is made of.

    Attributes:
        data: What its batches hold; None where nobody says.
        times_input: Whether the timed region reads them; None of a step of the user's own.
        optimizer: Name of the optimizer's class; None of a step of the user's own.
    """

    data: Data | None = None
    times_input: bool | None = None
    optimizer: str | None = None

    @property
    def is_bound(self) -> bool | None:
        """Whether it leaves out what production has, so that rates are an upper bound."""
        if self.times_input is None:
            return None
        return not self.times_input or self.data != "real"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)


def of(details: Mapping[str, Any]) -> Basis | None:
    """Return the basis that a case's details hold; None where an older release wrote none.

    Results made before there was this record have `input` in words, and never timed it.
    """
    given = details.get(BASIS)
    if not isinstance(given, dict):
        return None
    data, timed, optimizer = (given.get(name) for name in ("data", "times_input", "optimizer"))
    return Basis(
        data=data if data in get_args(Data) else None,
        times_input=False if "input" in given else timed if isinstance(timed, bool) else None,
        optimizer=optimizer if isinstance(optimizer, str) else None,
    )
