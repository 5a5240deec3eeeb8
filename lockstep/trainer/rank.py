"""One rank of a training run of its own, as `lockstep train` starts it.

`python -m lockstep.trainer.rank CONFIG.json`, started by torchrun, srun, or alone. Beside what the
trainer writes, rank 0 leaves `final.csv` (one row for the run) and `summary.json` (all of it).
"""

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lockstep.core import locks
from lockstep.core.formats import counted, listed
from lockstep.ranks import process_group as world
from lockstep.ranks.control import Control
from lockstep.ranks.placement import placement
from lockstep.trainer import failures
from lockstep.trainer.failures import DivergedError, Failure
from lockstep.trainer.plan import EpochRow, TrainConfig
from lockstep.trainer.trainer import Trainer, check_equal_parameters

MEGA, MOST_SIZES = 1e6, 12


def run(config: TrainConfig, error_file: Path | None = None) -> dict[str, Any]:
    """Train as one rank of the launch this process belongs to; return the summary.

    Args:
        config: What to train.
        error_file: Where the first rank to fail says why, for the process that started the ranks.

    Raises:
        ValueError: The configuration cannot be trained at this world size.
        DivergedError: The loss of a step is not finite.
        RuntimeError: A device, the data, the storage or the other ranks failed.
    """
    place = placement()
    try:
        with _system_errors():
            joined = world.join(
                config.timeout_s, device=config.device, threads_per_rank=config.threads_per_rank
            )
            if place.rank == 0 and joined.device.type == "cpu" and config.device is None:
                _say(world.NO_GPU)
            with _only_run(config.folder, joined.control):
                trainer = Trainer(config, joined, _report if place.rank == 0 else _nothing)
                summary = trainer.train()
                if place.rank == 0:
                    trainer.files.write_summary(summary)
                    _report_buckets(summary)
                return summary
    except Exception as error:
        # Before this rank leaves, which the others will then report as an error of their own.
        if error_file is not None:
            failures.report(error_file, Failure.of(place.rank, error))
        raise
    finally:
        world.leave()


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Raise what the system refused, as a full disk, as the machine's failure."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"{error}; mend this and go on with --resume") from error


@contextlib.contextmanager
def _only_run(folder: Path, control: Control) -> Iterator[None]:
    """Keep other runs out of a folder while this one writes; what trained nothing leaves none.

    Raises:
        ValueError: Another run is in it; on all ranks alike.
    """
    with contextlib.ExitStack() as held:
        problem, made = "", []
        if control.rank == 0:
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((folder / ".lock").open("a", encoding="utf-8"))
            if not _take(lock):
                problem = f"{locks.in_use(folder)}, or choose another --name"
        if problem := control.exchange_all("folder", [problem])[0][0]:
            raise ValueError(problem)
        try:
            yield
        finally:
            if made and [one.name for one in folder.iterdir()] == [".lock"]:
                (folder / ".lock").unlink()
                _remove_empty(made)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # another has put something there meanwhile
            folder.rmdir()


def _take(lock: IO[str]) -> bool:
    """Take a lock and sign it; return whether it was free, or the file system has none."""
    try:
        is_free = locks.take(lock)
    except locks.NoLocksError:  # other runs cannot be kept out
        return True
    if is_free:
        locks.sign(lock)
    return is_free


def _report(row: EpochRow) -> None:
    accuracy = "-" if row.val_accuracy is None else f"{row.val_accuracy:.4f}"
    _say(
        f"epoch {row.epoch}/{row.epochs}  train loss {row.train_loss:.4f}  "
        f"validation loss {row.val_loss:.4f}  accuracy {accuracy}  "
        f"{row.samples_per_s:,.0f} samples/s"
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _report_buckets(summary: Mapping[str, Any]) -> None:
    """Say in how many pieces DDP reduces the gradients; nothing of too short a run."""
    if sizes := summary.get("bucket_bytes"):
        named = listed((f"{size / MEGA:.3g}" for size in sizes), MOST_SIZES)
        sys.stdout.write(f"{counted(len(sizes), 'gradient bucket')} of {named} MB\n")


def _nothing(row: EpochRow) -> None:
    """Say nothing."""


def _read_config(path: Path) -> TrainConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); give the JSON file of a training run"
        ) from error
    return TrainConfig.from_dict(json.loads(text))


def main(arguments: Sequence[str]) -> int:
    """Train as one rank; what failed first also goes to CONFIG.error."""
    path = Path(arguments[0])
    try:
        config = _read_config(path)
        check_equal_parameters(run(config, path.with_suffix(".error"))["parameter_checksums"])
    except ValueError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except DivergedError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    except RuntimeError:
        traceback.print_exc()
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
