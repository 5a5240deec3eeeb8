"""Lockstep: how PyTorch data-parallel training scales, and why it stops."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.measure.explain.explanation import explain as explain
    from lockstep.report.frames import read as read


def __getattr__(name: str) -> Any:
    # torch and pandas are loaded by those who explain or read, not by every import of the package.
    if name == "read":
        from lockstep.report.frames import read

        return read
    if name == "explain":
        try:
            from lockstep.measure.explain.explanation import explain
        except ModuleNotFoundError as error:
            lacks = f"lockstep.explain needs {error.name}, which this Python lacks"
            raise ImportError(f"{lacks}; pip install '/path/to/checkout[bench]'") from None
        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
