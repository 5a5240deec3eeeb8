"""Training curves as TensorBoard's event files."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from lockstep.tracker.runs.tracked import Run, metric_name


def write(runs: Iterable[Run], folder: Path) -> Iterator[Path]:
    """Write the curves of training runs, a folder for each run.

    Args:
        runs: Those of kind `training` are written.
        folder: What TensorBoard's --logdir is to name; what it holds of a run is replaced.

    Raises:
        RuntimeError: torch or tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RuntimeError(f"{error}; pip install tensorboard beside torch") from None
    for run in runs:
        if run.kind != "training":
            continue
        own = folder / metric_name(run.name, "")[:-1]
        for old in own.glob("events.out.tfevents.*"):
            old.unlink()
        with SummaryWriter(str(own)) as writer:
            for one in run.metrics:
                writer.add_scalar(one.name, one.value, one.step, walltime=one.time_ms / 1000)
        yield own
