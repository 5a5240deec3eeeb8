"""How a training is measured as a case: an epoch is a round, and a half-trained case goes on."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lockstep.core.record import BASIS, Basis, Data, Epoch
from lockstep.core.sizes import case_id
from lockstep.machine import nvidia
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import facts_of, precision_flags, skip_unless_supported
from lockstep.trainer.plan import TrainConfig, case_folder
from lockstep.trainer.trainer import Trainer


def train(harness: Harness, *, seed: int | None = None, **options: Any) -> None:
    """Train a model on the ranks of this launch, and keep how that went.

    Its files lie beside the launch's journal. A case that was begun before goes on after the last
    epoch that was saved, and ends as it would have without a break. The time that a case may take
    counts anew with each epoch.

    Args:
        harness: The case's view of the launch.
        seed: Of parameters, order and augmentation; the launch's by default.
        options: Of `TrainConfig`: workload, data, either global_batch or local_batch, and others.

    Raises:
        ValueError: That cannot be trained at this world size.
        RuntimeError: The loss is not finite, a device has no room, the data is not to be had, or
            the ranks end with unequal parameters.
    """
    skip_unless_supported(harness, options.get("precision", "fp32"))
    with _base(harness) as base:
        least = {} if harness.measures else {"epochs": 1, "max_steps": 1, "warmup_epochs": 0}
        config = TrainConfig(
            **options | least,
            seed=harness.seed if seed is None else seed,
            data_root=str(harness.data_root),
            folder=str(base / case_folder(f"{harness.name}[{case_id(harness.factors)}]")),
        )
        trainer = Trainer(config, harness.world, lambda row: _note(harness, row))
        with harness.watched() as watch:
            with watch:
                trainer.train()
            harness.case.slowdowns.update(nvidia.slowdowns(harness.device))
        _record(harness, trainer, base)


@contextlib.contextmanager
def _base(harness: Harness) -> Iterator[Path]:
    """Give the folder of the launch's files, or one for now where nothing is kept."""
    if harness.case.folder is not None:
        yield harness.case.folder
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-train-") as folder:
        yield Path(folder)


def _note(harness: Harness, row: Epoch) -> None:
    if harness.case.go_on:
        harness.case.go_on({"kind": "epoch", "row": asdict(row)})


def _record(harness: Harness, trainer: Trainer, base: Path) -> None:
    """Hand over the epochs as rounds; the first of each process is none where there are others."""
    config, batch = trainer.config, trainer.batch
    data: Data = "synthetic" if config.data == "synthetic" else "real"
    basis = Basis(data, times_input=True, optimizer=type(trainer.step.optimizer).__name__)
    numbers = range(len(trainer.rows))
    counted = [number for number in numbers if not trainer.rows[number].is_warmup] or numbers
    size = replace(harness.size, steps_per_round=trainer.plan.steps)
    replace(harness, size=size, goal=None).record(
        [trainer.rank_s[number][harness.world.rank] for number in counted],
        scaling=batch.scaling,
        training=trainer.record(base),
        checks={"parameters_equal": True},
        details=trainer.in_force | {BASIS: basis.to_dict()},
        flags=precision_flags(harness.device, config.precision),
        **facts_of(harness, trainer.workload, config.precision, batch.local_batch),
    )
