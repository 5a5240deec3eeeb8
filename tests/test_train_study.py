"""Training as a study: cases that train, are killed or stopped, and end as if they were not."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
from commands import finish
from launched import ROOT, environ, inside, read_lines, until
from measured import SHARED, write_campaign

from lockstep.core import journal
from lockstep.core.record import KEY, CaseRecord
from lockstep.report.load.contents import check_value

pytestmark = pytest.mark.slow
EPOCHS = 4
FACTORS = {"lr": [0.1, 0.01], "epochs": [EPOCHS], "target_accuracy": [0.9]}


def command(folder):
    file = folder / "train.toml"
    if not file.exists():
        given = {"name": "train", "studies": ["train"], "repeats": 1, "device": "cpu"}
        write_campaign(file, **SHARED, **given)
        with file.open("a") as text:
            text.write("[factors]\n")
            text.writelines(f"{name} = {json.dumps(value)}\n" for name, value in FACTORS.items())
    return [sys.executable, "-m", "lockstep", "run", str(file), "--to", str(folder)]


def run(folder):
    ended = finish(command(folder), cwd=folder, env=environ(ROOT))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def lines(folder, kind):
    paths = sorted(folder.glob("**/journal.jsonl"))
    every = [(path.parent.name, line) for path in paths for line in read_lines(path)]
    return [(launch, line) for launch, line in every if line["kind"] == kind]


def records(path):
    entries = json.loads(path.read_text())["benchmarks"]
    blocks = [entry["extra_info"][KEY] for entry in entries]
    return [check_value(CaseRecord, block, "x.json") for block in blocks]


def learned(folder):
    return {
        (case.world_size, case.factors["lr"]): [
            (row.epoch, row.steps, row.lr, row.loss, row.validation_loss, row.accuracy)
            for row in case.training.rows
        ]
        for path in folder.glob("**/result.json")
        for case in records(path)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A campaign of two rates and two world sizes, as it goes undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return folder


def test_a_case_is_a_training_whose_rounds_are_its_epochs(whole):
    assert Counter(world_size for world_size, _ in learned(whole)) == {1: 2, 2: 2}
    for path in whole.glob("**/result.json"):
        for case in records(path):
            assert (case.scaling, case.global_batch, case.steps_per_round) == ("strong", 96, 15)
            assert len(case.round_s) == EPOCHS - 1  # the first one warms up
            assert case.round_s == [row.time_s for row in case.training.rows[1:]]
            assert case.training.samples_per_epoch == case.samples_per_step * 15 == 1440
            there = [
                path.parent / case.training.checkpoints.best,
                path.parent / case.training.steps_file,
            ]
            assert there[0].exists()
            assert len(read_lines(there[1])) == EPOCHS * 15


def test_every_world_size_learns_the_same_and_every_setting_something_else(whole):
    found = learned(whole)
    for (_, lr), rows in found.items():
        assert [row[3] for row in rows] == pytest.approx([row[3] for row in found[1, lr]], rel=1e-4)
    assert found[1, 0.1][-1][3] != found[1, 0.01][-1][3]
    assert found[1, 0.1][-1][5] > 0.5


def test_a_campaign_killed_in_a_training_goes_on_to_the_same_end(whole, tmp_path):
    driver = subprocess.Popen(
        command(tmp_path), cwd=tmp_path, env=environ(ROOT), stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: len(lines(tmp_path, "epoch")) > EPOCHS or driver.poll() is not None, "epochs")
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    until(lambda: not inside(tmp_path), "the end of the ranks", 60.0)
    assert len(lines(tmp_path, "case")) < 4  # of all launches
    run(tmp_path)
    assert learned(tmp_path) == learned(whole)
    epochs = Counter(
        (at, line["case"], line["row"]["epoch"]) for at, line in lines(tmp_path, "epoch")
    )
    ends = Counter((at, line["case"]) for at, line in lines(tmp_path, "case"))
    assert set(epochs.values()) == set(ends.values()) == {1}
    assert len(ends) == 4
    # The kill may come between a checkpoint and its line.
    assert 4 * EPOCHS - 1 <= len(epochs) <= 4 * EPOCHS
    for path in tmp_path.glob("**/steps.jsonl"):
        assert [line["step"] for line in read_lines(path)] == list(range(1, EPOCHS * 15 + 1))


def test_the_stop_file_ends_a_training_between_two_epochs(run_ranks, tmp_path):
    given = "-m train -p lockstep.launch.hooks --size=smoke --device=cpu --threads-per-rank=1"
    files = "--journal=journal.jsonl --stop-file=stop --resume"
    epochs = ["--set", "epochs=30"]
    options = ["-m", "pytest", str(ROOT / "bench"), *given.split(), *files.split(), *epochs]
    path = tmp_path / "journal.jsonl"

    def stop():
        until(lambda: path.exists() and bool(lines(tmp_path, "epoch")), "an epoch")
        (tmp_path / "stop").touch()

    stopper = threading.Thread(target=stop)
    stopper.start()
    first = run_ranks([options, options], tmp_path)
    stopper.join()
    assert [ended.returncode for ended in first] == [75, 75], first
    assert 1 <= len(lines(tmp_path, "epoch")) < 30
    assert journal.in_flight(path) is not None
    (tmp_path / "stop").unlink()
    again = run_ranks([options, options], tmp_path)
    assert [ended.returncode for ended in again] == [0, 0], again
    assert [line["row"]["epoch"] for _, line in lines(tmp_path, "epoch")] == [*range(1, 31)]
    (entry,) = journal.measured(path).values()
    assert len(entry["extra_info"][KEY]["rank_round_s"][0]) == 28  # two processes warmed up
