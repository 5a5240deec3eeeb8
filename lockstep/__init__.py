"""Lockstep: how PyTorch data-parallel training scales, and why it stops.

    lockstep.explain(train_step, model=ddp, batches=loader)   in a training script, on every rank
    lockstep.read("results/first")                            results as a pandas DataFrame

In a test the fixture `lockstep` measures a step: `lockstep.measure(step, samples=32, ddp=ddp)`.
"""

from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.measure.explain import explain as explain
    from lockstep.report.columns import read as read

__all__ = ["__version__", "explain", "read"]


def __getattr__(name: str) -> Any:
    # Only `explain` and `read` load torch or pandas, not each import of the package.
    if name == "__version__":
        try:
            return metadata.version("lockstep-bench")
        except metadata.PackageNotFoundError:  # a bare checkout
            return "unknown"
    if name == "read":
        from lockstep.report.columns import read

        return read
    if name == "explain":
        try:
            from lockstep.measure.explain import explain
        except ModuleNotFoundError as error:
            raise ImportError(
                f"lockstep.explain needs the package {error.name}, which is not installed; run "
                "pip install '/path/to/checkout[bench]'"
            ) from None
        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
