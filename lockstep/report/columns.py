"""The columns of Lockstep's tables: name, unit and meaning.

`lockstep report --csv` and `--json` print the table of points; `lockstep.read` returns that and two
more as data frames. `python -m lockstep.report.columns` prints this list.

A later version may add columns. What a column means does not change within a `VERSION`.
"""

import sys
from textwrap import wrap
from typing import NamedTuple

VERSION = 1
# Factors of a case (`bucket_cap_mb`, `num_workers`) are columns of this beginning.
FACTOR = "factor_"
WIDTH = 100


class Column(NamedTuple):
    """What a column holds.

    Attributes:
        unit: Its unit; `count` and `bytes` are whole numbers, `ratio` is never in per cent.
    """

    unit: str
    meaning: str

    @property
    def dtype(self) -> str:
        """Its type in a data frame, which knows what is unknown in every column."""
        whole = {"count": "Int64", "bytes": "Int64", "text": "string", "truth": "boolean"}
        return whole.get(self.unit, "float64")


WHAT = {
    "case": Column("text", "the benchmark's name, or the imported table's"),
    "origin": Column("text", "measured, cited or target: never mixed in one series"),
    "study": Column("text", "the question: strong, weak, precision, bucket, collective, ..."),
    "workload": Column("text", "the model that was trained, with its options"),
    "scaling": Column("text", "strong, weak or fixed-epochs"),
    "precision": Column("text", "fp32, tf32, bf16 or fp16"),
    "local_batch": Column("count", "samples of a rank in an optimizer update"),
    "global_batch": Column("count", "samples of all ranks in an optimizer update"),
    "world_size": Column("count", "ranks"),
    "num_nodes": Column("count", "hosts of the ranks"),
    "ranks_per_node": Column("count", "most ranks on one host"),
}
_STEPS = {
    "min_step_s": Column("s", "shortest round, a step of it"),
    "max_step_s": Column("s", "longest round, a step of it"),
    "mean_step_s": Column("s", "mean over rounds, which costs follow from"),
    "stddev_step_s": Column("s", "standard deviation over rounds"),
    "time_s": Column("s", "a whole run, where a table gives times"),
    "sample_unit": Column("text", "what a sample is"),
    "samples_per_step": Column("count", "samples of all ranks in a step"),
}
_IS_POOLED = {
    "is_pooled": Column("truth", "whether its point has it; else it differs in what may not vary")
}
_OF_DEVICES = {
    "peak_memory_bytes": Column("bytes", "of the rank that needs most"),
    "peak_reserved_bytes": Column("bytes", "held by the GPU's allocator, of the rank with most"),
    "joules_per_sample": Column("J", "mean power of all ranks' boards over the throughput"),
}
_BOUNDS = {"low": "lower end of its 95 % interval", "high": "upper end of its 95 % interval"}


def _with_interval(name: str, unit: str, meaning: str) -> dict[str, Column]:
    bounds = {f"{name}_{end}": Column(unit, text) for end, text in _BOUNDS.items()}
    return {name: Column(unit, meaning)} | bounds


OF_TRAININGS = {
    "num_seeds": Column("count", "different seeds of training runs, which accuracies are over"),
    **_with_interval("epoch_s", "s", "median epoch of training, validation left aside"),
    **_with_interval("validation_accuracy", "ratio", "mean over runs, after the last epoch"),
    **_with_interval("best_accuracy", "ratio", "mean over runs of the best epoch's"),
    "target_accuracy": Column("ratio", "to reach: as asked for, or what all runs come to"),
    "num_reached": Column("count", "runs that reach it"),
    **_with_interval("time_to_target_s", "s", "training until then, where all runs reach it"),
}
# One row a case, layout and world size, over all its launches.
POINTS = {
    "series": Column("text", "label of the curve: what varies, without what all share"),
    **WHAT,
    "layout": Column("text", "what tells it from the series' main layout"),
    "num_launches": Column("count", "repeats, which intervals are over"),
    "num_jobs": Column("count", "Slurm jobs of the launches"),
    "interval_over": Column("text", "launches, jobs, or launches of one job"),
    "rounds": Column("count", "timed rounds of all launches"),
    **_with_interval("step_s", "s", "median over launches of a launch's median step"),
    **_STEPS,
    **_with_interval("throughput_samples_per_s", "samples/s", "samples of all ranks, counted once"),
    "baseline_world_size": Column("count", "what the ratios of this row divide by"),
    **_with_interval("speedup", "ratio", "throughput over the baseline's"),
    **_with_interval("parallel_efficiency", "ratio", "speed-up over the ratio of world sizes"),
    "time_ratio": Column("ratio", "the baseline's step time over this, weak and fixed-epochs"),
    "device_hours": Column("h", "world size times hours at the mean step"),
    "device_hours_per": Column("text", "what they buy: a run, or 1e6 samples"),
    "cost": Column("currency", "device-hours times the price of one"),
    "extra_device_hours": Column("ratio", "device-hours over the baseline's, less 1"),
    "mfu": Column("ratio", "model FLOP/s over the datasheet's dense peak"),
    **_OF_DEVICES,
    "data_s": Column("s", "what a step waits for its batch, where it draws one"),
    "forward_s": Column("s", "forward of the turns' step, the loss with it"),
    "backward_s": Column("s", "backward of that, with the communication that it does not hide"),
    "optimizer_s": Column("s", "update of that"),
    **_with_interval(
        "exposed_communication_s",
        "s",
        "what a step waits for its all-reduce, with DDP's own work, which a card of a ladder from "
        "one rank takes out",
    ),
    **_with_interval("all_reduce_s", "s", "all-reduce of the gradients alone, nothing beside it"),
    **_with_interval("overlap", "ratio", "1 - exposed communication / all-reduce alone"),
    "first_reduce_s": Column(
        "s", "from the backward's beginning until DDP's first bucket is ready"
    ),
    **OF_TRAININGS,
    "flags": Column("text", "kinds of reasons for which it is no proposal evidence"),
    "num_far_out": Column("count", "rounds far outside their launch's quartiles; none is left out"),
    "blocked_by": Column("text", "rules of lockstep check that forbid its ratios"),
}
# What `--csv` and `--json` give of a study or an imported table beside these.
DETAILS = {"details": Column("object", "name -> distinct values over launches")}

# One row a case and launch.
LAUNCHES = {
    "launch": Column("text", "name of the launch, or the line of an imported table"),
    **WHAT,
    "job": Column("text", "Slurm job of the launch"),
    "started": Column("text", "when the launch began, as ISO 8601"),
    **_IS_POOLED,
    "position": Column("count", "place of the case in its launch's order"),
    "rounds": Column("count", "timed rounds"),
    "steps_per_round": Column("count", "steps of a round"),
    "step_s": Column("s", "median round over its steps; a round lasts as its slowest rank"),
    **_STEPS,
    "throughput_samples_per_s": Column("samples/s", "samples of all ranks, counted once"),
    "mfu": Column("ratio", "model FLOP/s over the datasheet's dense peak"),
    "communication_share": Column("ratio", "exposed communication over the turns' step"),
    "overlap": Column("ratio", "1 - exposed communication / all-reduce alone"),
    "gpu_utilisation": Column("ratio", "share of NVML's sample periods in which a kernel ran"),
    "loader_idle": Column("ratio", "share of a step that waits for the data loader"),
    **_OF_DEVICES,
    "seed": Column("count", "of a training run"),
    "epoch_s": Column("s", "median epoch of a training run, validation left aside"),
    "validation_accuracy": Column("ratio", "of a training run, after its last epoch"),
    "best_accuracy": Column("ratio", "of a training run, its best epoch's"),
    "num_far_out": Column("count", "rounds far outside the quartiles; none is left out"),
    "flags": Column("text", "kinds of reasons for which it is no proposal evidence"),
}

# One row a case, launch, rank and round.
ROUNDS = {
    "launch": Column("text", "name of the launch"),
    **WHAT,
    **_IS_POOLED,
    "rank": Column("count", "the rank, from 0"),
    "host": Column("text", "its host"),
    "round": Column("count", "the timed round, from 0"),
    "steps_per_round": Column("count", "steps of a round"),
    "round_s": Column("s", "the rank's own duration of the round"),
    "step_s": Column("s", "that over the round's steps"),
}

# One row a training run and epoch.
EPOCHS = {
    "launch": Column("text", "name of the launch, or of the folder of a run"),
    **WHAT,
    **_IS_POOLED,
    "seed": Column("count", "of the run"),
    "epoch": Column("count", "which, from 1"),
    "steps": Column("count", "updates"),
    "time_s": Column("s", "from the first update to the slowest rank's last one"),
    "elapsed_s": Column("s", "training since the run began, at the end of the epoch"),
    "throughput_samples_per_s": Column("samples/s", "samples of all ranks, counted once"),
    "lr": Column("ratio", "learning rate of the last update"),
    "loss": Column("ratio", "mean over updates and ranks, each before its update"),
    "validation_loss": Column("ratio", "mean over the whole validation set"),
    "accuracy": Column("ratio", "share of the validation set predicted right"),
    "train_accuracy": Column("ratio", "share of the samples predicted right, before each update"),
    "validation_s": Column("s", "validation, slowest rank"),
    "checkpoint_s": Column("s", "until the checkpoint was on disk"),
    "peak_memory_bytes": Column("bytes", "of the rank that needs most"),
    "is_warmup": Column("truth", "whether it is the first epoch of its process"),
}

TABLES = {"points": POINTS, "launches": LAUNCHES, "rounds": ROUNDS, "epochs": EPOCHS}


def listing() -> str:
    """Return all columns as text, a table after the other."""
    extra = {"points": DETAILS}
    lines = []
    for name, columns in TABLES.items():
        lines += ["", f"{name} (version {VERSION})"]
        for column, (unit, meaning) in (columns | extra.get(name, {})).items():
            head = f"  {column:30}{unit:11}"
            lines += wrap(meaning, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(listing())
