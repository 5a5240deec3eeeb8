"""Lockstep: how PyTorch data-parallel training scales, and why it stops."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.own_loop.explanation import explain as explain


def __getattr__(name: str) -> Any:
    # torch is loaded by those who explain a step, not by every import of the package.
    if name == "explain":
        from lockstep.own_loop.explanation import explain

        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
