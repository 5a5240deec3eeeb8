"""How the fields of a file are described: what each means, and which values it may have.

A description is a dataclass whose annotations hold an `About`. Those who write a file need no more
than the dataclass. Those who read it hand the dataclass to pydantic, which asks each `About` for
its limits and its text: the reader's checks and the published JSON Schema follow from them.
"""

from typing import Annotated, Any

# No count, rate or ratio of any machine is larger.
LARGEST_NUMBER = 1e30


class About:
    """What a field means, and the limits of its values.

    Args:
        text: One sentence for the published schema.
        limits: Limits as pydantic names them: ge, gt, le, lt, min_length, strict.
    """

    def __init__(self, text: str = "", **limits: Any) -> None:
        self.text = text
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's schema of the annotated type, with the limits."""
        return {**handler(source), **self.limits}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        """Return the JSON Schema of the annotated type, with the text."""
        return handler(schema) | ({"description": self.text} if self.text else {})


# JSON's true is no number, and a text of digits is none either: therefore `strict`.
Count = Annotated[int, About(strict=True, ge=1)]
Whole = Annotated[int, About(strict=True, ge=0)]
Amount = Annotated[float, About(strict=True, ge=0, le=LARGEST_NUMBER)]
Positive = Annotated[float, About(strict=True, ge=1 / LARGEST_NUMBER, le=LARGEST_NUMBER)]
