"""The trainer: batch arithmetic, equal runs, exact validation, resuming, and the truth check."""

import json
import math
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from commands import finish, run
from hypothesis import given
from hypothesis import strategies as st
from launched import ROOT, environ, inside

from lockstep import workloads
from lockstep.core.record import KEY
from lockstep.measure.loading import data
from lockstep.ranks import process_group
from lockstep.report.load.reading import load
from lockstep.report.tracker.runs import read_runs
from lockstep.trainer import plan, trainer
from lockstep.trainer import training_cli as cli
from lockstep.trainer.plan import Batch, TrainConfig, epoch_steps
from lockstep.trainer.trainer import Trainer

NAN_ON_RANK_1 = """
import os
from lockstep.workloads import Workload, make

def nan() -> Workload:
    mlp = make("mlp:width=64,depth=1")
    def loss(outputs, targets):
        factor = float("nan") if os.environ["RANK"] == "1" else 1.0
        return factor * mlp.loss(outputs, targets)
    return Workload("failing", mlp.build, mlp.make_batch, loss)
"""


def config(folder, **changes):
    """Return a run of a second on the real digits."""
    options = {
        "workload": "mlp:width=64,depth=1", "data": "digits", "global_batch": 120, "epochs": 3,
        "lr": 0.05, "folder": str(folder),
    }  # fmt: skip
    return TrainConfig(**(options | changes))


@contextmanager
def one_rank():
    try:
        yield process_group.join(60.0, device="cpu", threads_per_rank=1)
    finally:
        process_group.leave()


def train(folder, **changes):
    """Train on one rank in this process, or go on with what the folder holds."""
    with one_rank() as joined:
        run = Trainer(config(folder, **changes), joined, lambda _: None)
        run.train()
    return run


def train_command(options="", workload="mlp:width=64,depth=1"):
    usual = f"--workload {workload} --data digits --global-batch 120 --device cpu --timeout-s 20"
    command = [sys.executable, "-m", "lockstep", "run", "train", "--threads-per-rank", "1"]
    return [*command, *usual.split(), *options.split()]


def run_command(folder, command, **env):
    return finish(command, cwd=folder, env=environ(ROOT, PYTHONPATH=f"{folder}:{ROOT}") | env)


def block_of(folder):
    (path,) = folder.glob("results/run/launches/*/result.json")
    return json.loads(path.read_text())["benchmarks"][0]["extra_info"][KEY]


@given(st.integers(1, 5000), st.integers(1, 16), st.integers(1, 64))
def test_an_epoch_takes_all_samples_but_those_that_fill_no_last_batch(
    num_samples, world_size, local_batch
):
    assert [epoch_steps(60_000, ranks, 16) for ranks in (1, 2, 4)] == [3750, 1875, 937]  # MNIST
    if num_samples < world_size * local_batch:
        with pytest.raises(ValueError, match="do not fill one global batch"):
            epoch_steps(num_samples, world_size, local_batch)
        return
    samples = epoch_steps(num_samples, world_size, local_batch) * world_size * local_batch
    assert 0 <= num_samples - samples < world_size * local_batch


@given(st.integers(0, 200), st.integers(1, 9))
def test_every_sample_is_validated_on_once(num_samples, world_size):
    shares = [plan.validation_indices(num_samples, rank, world_size) for rank in range(world_size)]
    assert sorted(index for share in shares for index in share) == list(range(num_samples))


def batches(world_size, epoch, seed=3):
    """Return the samples of each step, over all ranks, for 100 samples in batches of 24."""
    local = 24 // world_size
    shares = [
        list(trainer.epoch_sampler(range(100), rank, world_size, seed, epoch))
        for rank in range(world_size)
    ]
    return [
        {index for share in shares for index in share[step * local : (step + 1) * local]}
        for step in range(100 // 24)
    ]


@pytest.mark.parametrize("world_size", [2, 8])
def test_a_step_takes_the_same_samples_at_every_world_size(world_size):
    assert batches(world_size, epoch=1) == batches(1, epoch=1)
    assert all(len(batch) == 24 for batch in batches(world_size, epoch=1))
    assert len(set().union(*batches(world_size, epoch=1))) == 96
    assert batches(world_size, epoch=1) != batches(world_size, epoch=2)
    assert batches(world_size, epoch=1, seed=3) != batches(world_size, epoch=1, seed=4)


def test_a_global_batch_is_divided_a_local_one_multiplied_and_others_refused(tmp_path):
    assert Batch.of(config(tmp_path), 4) == Batch(30, 120, "strong")
    local = config(tmp_path, global_batch=None, local_batch=16)
    assert Batch.of(local, 4) == Batch(16, 64, "fixed-epochs")
    with pytest.raises(ValueError, match="local batch of 60 does not split into 7"):
        Batch.of(config(tmp_path, accumulation=7), 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"global_batch": None}, "local batch"),
        ({"scheduler": "linear"}, "scheduler"),
        ({"warmup_epochs": 3}, "must be lower than epochs=3"),
        ({"lr": float("nan")}, "lr"),
    ],
)
def test_a_run_that_cannot_be_trained_is_refused_before_a_rank_starts(tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        cli.Run(config(tmp_path, **changes), tmp_path / "run", 1).ladder()


@pytest.mark.parametrize(
    ("scheduler", "factors"),
    [
        ("cosine", [(1 + math.cos(math.pi * epoch / 6)) / 2 for epoch in range(6)]),
        ("multistep", [1, 1, 1, 0.1, 0.1, 0.01]),
    ],
)
def test_the_learning_rate_falls_over_the_epochs(scheduler, factors):
    known = [plan.lr_factor(scheduler, epoch, 6) for epoch in range(6)]
    assert known == pytest.approx(factors)


def test_the_rate_follows_the_global_batch_and_rises_with_each_update_of_the_warm_up(tmp_path):
    for rule, lr in (("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)):
        assert plan.scaled_lr(0.1, rule, 1024, 256) == pytest.approx(lr)
    run = config(tmp_path, epochs=4, warmup_epochs=2, scheduler="cosine")
    updates = [(0, 0), (0, 9), (1, 9), (2, 0), (3, 0), (3, 9)]
    factors = [plan.rate_factor(run, epoch, step, 10) for epoch, step in updates]
    assert factors == pytest.approx([0.05, 0.5, 1, 1, 0.5, 0.5])


def test_the_time_to_an_accuracy_is_that_of_the_first_epoch_that_has_it():
    rows = [
        SimpleNamespace(time_s=seconds, accuracy=accuracy)
        for seconds, accuracy in ((1.0, 0.7), (2.0, 0.9), (4.0, 0.8))
    ]
    times = [trainer.time_to(target, rows) for target in (0.5, 0.8, 0.95, None)]
    assert times == [1.0, 3.0, None, None]


@pytest.mark.slow
def test_a_run_is_recorded_in_full_and_goes_on(tmp_path):
    options = "--epochs 3 --scheduler cosine --lr 0.05 --lr-scale linear --base-batch 60"
    command = train_command(f"{options} --checkpoint-every 2")
    ended = run_command(tmp_path, command)
    assert ended.returncode == 0, ended.stderr
    assert len(re.findall(r"^epoch \d  train loss", ended.stdout, re.MULTILINE)) == 3
    block = block_of(tmp_path)
    rows, training = block["training"]["rows"], block["training"]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["is_warmup"] for row in rows] == [True, False, False]
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.075, 0.025])
    for row in rows:
        assert row["samples_per_s"] * row["time_s"] == pytest.approx(1440)
        assert row["checkpoint_s"] > 0
        assert row["peak_memory_bytes"] > 1_000_000
    assert (training["samples_per_epoch"], training["lr"]) == (1440, 0.1)
    assert 0.5 < rows[-1]["accuracy"] < 1
    (launch,) = tmp_path.glob("results/run/launches/*")
    named = training["checkpoints"]
    assert [Path(name).name for name in named["kept"]] == ["epoch-0002.pt"]
    best = torch.load(launch / named["best"], weights_only=True)
    assert best["accuracy"] == training["best_accuracy"]
    steps = (launch / training["steps_file"]).read_text()
    lines = [json.loads(line) for line in steps.splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 37))
    assert rows[0]["loss"] == pytest.approx(sum(line["loss"] for line in lines[:12]) / 12)
    again = run_command(tmp_path, command)
    assert again.returncode == 2
    assert "already holds a run; pass --resume or another --name" in again.stderr
    (row,) = load([tmp_path / "results" / "run"]).rows
    assert len(row.training.rows) == 3
    runs = read_runs(tmp_path / "results")[0]
    assert {run.kind for run in runs} == {"campaign", "launch", "training"}


def test_a_seed_fixes_the_losses(tmp_path):
    def losses(name, **changes):
        return train(tmp_path / name, epochs=1, augment=True, **changes).step_losses

    assert losses("one") == losses("two")
    assert losses("other", seed=1) != losses("one")


@pytest.mark.parametrize(
    "options", [{}, {"optimizer": "adamw", "warmup_epochs": 2, "weight_decay": 0.1}]
)
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(tmp_path, options):
    own = {"augment": True, "lr": 0.01} | options
    whole = train(tmp_path / "whole", **own)
    train(tmp_path / "parts", max_steps=12, **own)
    with (tmp_path / "parts" / "steps.jsonl").open("a") as file:
        file.write("of an epoch that was killed\n")
    resumed = train(tmp_path / "parts", **own)
    assert resumed.step_losses == whole.step_losses
    assert resumed.checksums == whole.checksums
    assert [row.is_warmup for row in resumed.rows] == [True, True, False]
    assert [row.epoch for row in resumed.rows] == [1, 2, 3]
    steps = [(tmp_path / name / "steps.jsonl").read_text() for name in ("whole", "parts")]
    assert steps[0] == steps[1]


def test_a_run_is_not_resumed_as_another(tmp_path):
    train(tmp_path, epochs=1)
    with pytest.raises(ValueError, match=r"lr"):
        train(tmp_path, lr=0.1)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    state["trajectory"]["world_size"] = 2
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="trained with world_size=2, but world_size is now 1"):
        train(tmp_path)


def test_a_run_stopped_within_an_epoch_is_kept_and_not_gone_on_from(tmp_path):
    stopped = train(tmp_path / "run", max_steps=15)
    assert [row.steps for row in stopped.rows] == [12, 3]
    assert train(tmp_path / "run", max_steps=15).step_losses == stopped.step_losses
    # 35 of 36 updates: all epochs were begun, so only the count of updates shows what is missing.
    train(tmp_path / "nearly", max_steps=35)
    sentence = "nearly stopped after 35 updates, within an epoch of 12 .*--max-steps 35 to keep"
    for more in (36, None):
        with pytest.raises(ValueError, match=sentence):
            train(tmp_path / "nearly", max_steps=more)


def test_a_validation_that_is_no_number_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "_sums", lambda _, *values: [math.nan for _ in values])
    with pytest.raises(RuntimeError, match="the validation loss is nan; lower the learning rate"):
        train(tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_data_that_does_not_fit_the_model_is_refused_and_regression_has_no_accuracy(tmp_path):
    score = trainer.Score(SimpleNamespace(loss=torch.nn.functional.mse_loss))
    assert score(torch.ones(3, 2), torch.ones(3, 2)) == score.judged == 0
    with pytest.raises(ValueError, match=r"\(1, 8, 8\) do not fit a model that takes \(1024,\)"):
        train(tmp_path, workload="mlp")
    with pytest.raises(RuntimeError, match="tf32 needs an NVIDIA GPU"):
        train(tmp_path, precision="tf32")


def test_ranks_that_drifted_apart_are_named():
    trainer.check_equal_parameters(["a", "a"])
    with pytest.raises(RuntimeError, match="rank 1 ended with other parameters than rank 0"):
        trainer.check_equal_parameters(["a", "b"])


@pytest.mark.slow
def test_two_ranks_validate_exactly(tmp_path):
    # Batch norm and 357 images over two ranks: neither may show in the result.
    name = "resnet18_cifar:width=4,image=8"
    command = train_command("--world-size 2 --epochs 1 --lr 0.02", name)
    ended = run_command(tmp_path, command)
    assert ended.returncode == 0, ended.stderr
    block = block_of(tmp_path)
    assert block["checks"]["parameters_equal"]
    assert block["local_batch"] == 60
    (launch,) = tmp_path.glob("results/run/launches/*")
    last = block["training"]["checkpoints"]["last"]
    state = torch.load(launch / last, weights_only=True)
    workload = workloads.make(name)
    model = workload.build().eval()
    model.load_state_dict(state["model"])
    splits = data.load("digits", tmp_path, workload, augment=False, num_synthetic=0)
    items = [splits.validation[index] for index in range(357)]
    images = torch.stack([image for image, _ in items])
    labels = torch.tensor([label for _, label in items])
    with torch.no_grad():
        outputs = model(images)
    right = (outputs.argmax(dim=1) == labels).sum().item()
    row = block["training"]["rows"][-1]
    assert row["accuracy"] == right / 357
    assert row["validation_loss"] == pytest.approx(workload.loss(outputs, labels).item())


@pytest.mark.slow
def test_when_the_loss_of_one_rank_is_no_number_all_end_and_that_rank_is_named(tmp_path):
    (tmp_path / "own.py").write_text(NAN_ON_RANK_1)
    ended = run_command(tmp_path, train_command("--world-size 2", "own:nan"))
    assert ended.returncode == 1, ended.stderr
    says = r"rank 1 on \S+: the loss is nan in step 1 of epoch 1; lower --lr, .*"
    assert re.search(rf"^Error: .*{says}", ended.stderr, re.MULTILINE), ended.stderr
    assert inside(tmp_path) == []


def test_tasks_that_srun_started_without_a_launcher_do_not_each_train_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    options = ["--workload", "mlp", "--data", "digits", "--global-batch", "120"]
    with pytest.raises(ValueError, match="srun started 2 tasks, but LOCKSTEP_LAUNCHER is not set"):
        run(cli.train, *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "sizes"), [("4, 1,2", [1, 2, 4]), ("1", None), ("1,two", None)])
def test_world_sizes_are_two_or_more_in_order(text, sizes):
    if sizes is not None:
        assert cli.parse_sizes(text) == sizes
        return
    with pytest.raises(ValueError, match="two or more sizes"):
        cli.parse_sizes(text)


def right_run(**changes):
    return {"accuracy": 0.97, "step_losses": [2.3, 1.0, 0.2], "parameters_equal": True} | changes


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"step_losses": [2.3, 1.0, 0.2 + 2.3 * 0.0011]}, "curve"),
        ({"step_losses": [2.3, math.nan, 0.2]}, "curve"),
        ({"parameters_equal": False}, "parameters"),
        ({"accuracy": 0.949}, "accuracy"),
        ({"step_losses": [2.3, 1.0, 0.2 + 2.3 * 0.0009]}, None),  # rounding
    ],
)
def test_a_broken_run_fails_the_check_it_breaks(changes, name):
    checks = cli.compare({2: right_run(**changes), 1: right_run()})
    assert len(checks) == 6
    failed = [(check.name, check.world_size) for check in checks if not check.passed]
    assert failed == ([(name, 2)] if name else [])
    assert ("FAILED" in cli.table(checks)) == bool(failed)


@pytest.mark.chaos
@pytest.mark.slow
def test_training_is_verified_on_one_and_two_ranks():
    done = CliRunner().invoke(cli.verify, ["--json", "--device", "cpu"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    checks = json.loads(done.stdout)
    assert [(check["name"], check["world_size"]) for check in checks] == [
        (name, world_size) for world_size in (1, 2) for name in ("accuracy", "curve", "parameters")
    ]
    assert all(check["passed"] for check in checks)


def test_a_failed_verification_names_the_check_and_exits_1(monkeypatch):
    broken = {1: right_run(), 2: right_run(parameters_equal=False)}
    monkeypatch.setattr(cli, "_verification_run", lambda asked, folder, size, device: broken[size])
    done = CliRunner().invoke(cli.verify, [], catch_exceptions=False)
    assert done.exit_code == 1
    assert "FAILED: parameters at world size 2" in done.stderr
