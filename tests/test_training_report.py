"""Training runs in `report`, `compare`, `gate` and `lockstep.read`: what is pooled, and what of."""

import json
import os

import pytest
from data.report_samples import document, write
from data.training_samples import run, seeds, trained

from lockstep.report.check.checker import check
from lockstep.report.columns import table
from lockstep.report.compare import outcome
from lockstep.report.compare.comparison import compare
from lockstep.report.compare.comparison import document as compared
from lockstep.report.compute import learning
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.gate import gates
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import gather, load
from lockstep.report.page.content_of_page import page
from lockstep.report.page.figures import draw

# What changes the learning, or its speed, and two values of it.
KEYS = {
    "workload": ("mlp", "gpt"), "data": ("digits", "mnist"), "precision": ("fp32", "bf16"),
    "epochs": (3, 4), "global_batch": (64, 128), "lr": (0.1, 0.2), "scheduler": ("none", "cosine"),
    "num_workers": (0, 2), "bucket_cap_mb": (None, 1), "max_steps": (None, 30),
    "device": ("H100", "A100"), "world_size": (1, 2),
}  # fmt: skip
# Mean 0.75, standard error 0.01 / sqrt 3, t of 2 degrees of freedom 4.3027.
INTERVAL = (0.75 - 0.024841, 0.75 + 0.024841)


def points(*folders):
    return table(series_of(load(folders).rows))


def test_a_point_is_the_mean_of_its_seeds_and_its_times_are_medians(tmp_path):
    seeds(tmp_path, epoch_s=2.0)
    (one,) = points(tmp_path)
    assert (one["num_launches"], one["num_seeds"]) == (3, 3)
    assert one["validation_accuracy"] == pytest.approx(0.75)
    ends = one["validation_accuracy_low"], one["validation_accuracy_high"]
    assert ends == pytest.approx(INTERVAL, abs=1e-5)
    assert one["epoch_s"] == pytest.approx(2.0)
    assert one["throughput_samples_per_s"] == pytest.approx(320)
    # Every run comes to 0.74, in its last epoch; the first epoch takes twice as long.
    assert (one["target_accuracy"], one["num_reached"], one["time_to_target_s"]) == (0.74, 3, 8.0)


def test_a_repeat_of_a_seed_tells_nothing_of_the_spread_between_seeds(tmp_path):
    seeds(tmp_path)
    run(tmp_path / "again", (0.5, 0.7, 0.75), seed=1)
    (one,) = points(tmp_path)
    assert (one["num_launches"], one["num_seeds"]) == (4, 3)
    ends = one["validation_accuracy_low"], one["validation_accuracy_high"]
    assert ends == pytest.approx(INTERVAL, abs=1e-5)


@pytest.mark.parametrize("name", KEYS)
def test_runs_that_differ_are_never_pooled(tmp_path, name):
    for number, value in enumerate(KEYS[name]):
        seeds(tmp_path / f"{number}", **{name: value})
    found = points(tmp_path)
    assert [one["num_launches"] for one in found] == [3, 3]


def test_a_seed_that_failed_forbids_a_verdict_on_the_others(tmp_path):
    case = "test_train[lr=0.1-seed={}]"
    cases = {case.format(seed): trained(seed) for seed in (0, 1)}
    failed = [{"case": case.format(2), "reason": "the loss is not finite"}]
    write(tmp_path, document("w1-r0", 1, cases, failed=failed))
    results = load([tmp_path])
    (finding,) = [one for one in check(results) if one.rule == "failed-case"]
    assert all(map(finding.touches, results.rows))


@pytest.fixture
def ladder(tmp_path):
    """Runs on a CPU, on a GPU ten times as fast, and on two."""
    seeds(tmp_path / "cpu", device="EPYC", epoch_s=10.0)
    seeds(tmp_path / "one", epoch_s=1.0)
    seeds(tmp_path / "two", epoch_s=0.625, world_size=2)
    return tmp_path


def test_the_page_has_a_row_for_each_rung_and_the_curves(ladder):
    results = load([ladder])
    made = page(evaluate(results), 0.7)
    (section,) = [one for one in made["sections"] if one["id"] == "train"]
    labels = [one["label"] for one in section["tables"][0]["columns"]]
    rows = [dict(zip(labels, row, strict=False)) for row in section["tables"][0]["rows"]]
    assert [row["device"] for row in rows] == ["EPYC", "H100", "H100"]
    assert [row["Over first row"] for row in rows] == ["1.00", "10.00", "16.00"]
    assert [row["Efficiency"] for row in rows] == ["\u2013", "100.0", "80.0"]
    assert {row["Accuracy"] for row in rows} == {"75.0"}
    first = section["figures"][0]
    assert [one["kind"] for one in section["figures"]] == ["band"] * 3
    assert first["series"][0]["y"] == pytest.approx([0.5, 0.7, 0.75])
    assert first["series"][0]["band"][:2] == [None, None]
    assert first["series"][0]["band"][2] == pytest.approx(INTERVAL, abs=1e-5)
    assert section["figures"][1]["series"][2]["x"] == pytest.approx([1.25, 1.875, 2.5])
    for spec in section["figures"]:
        assert draw(spec).count("<title") > 9
    assert made["figure"]["id"] == "top-accuracy"
    json.dumps(made, allow_nan=False)


def judged(folder, least):
    results = gather([folder])
    wanted = Targets.model_validate({"schema": 1, "validation_accuracy": least})
    return gates.verdicts(wanted, results)


def test_a_gate_judges_unlike_runs_apart_and_names_what_differs(tmp_path):
    seeds(tmp_path / "a", (0.90, 0.91, 0.92))
    seeds(tmp_path / "b", (0.50, 0.51, 0.52), precision="bf16", lr=0.2)
    found = judged(tmp_path, 0.7)
    assert [(one.verdict, round(one.value, 2)) for one in found] == [
        ("met", 0.91),
        ("missed", 0.51),
    ]
    assert {one.apart for one in found} == {("precision", "lr")}
    assert "2 groups, which differ in precision, lr" in ("\n".join(gates.notes(found)))
    assert judged(tmp_path / "a", 0.7)[0].apart == ()


def test_a_comparison_of_runs_has_times_and_the_difference_in_accuracy(tmp_path):
    jitter = (1.0, 1.01, 0.99)
    for name, factor, gain, precision in (("a", 1.0, 0.0, "fp32"), ("b", 0.5, 0.1, "bf16")):
        for seed in range(3):
            run(tmp_path / name / f"s{seed}", (0.5, 0.7, 0.8 + gain + 0.01 * seed), seed=seed,
                epoch_s=factor * jitter[seed], precision=precision)  # fmt: skip
    sides = load([tmp_path / "a"]), load([tmp_path / "b"])
    with pytest.raises(ValueError, match="--allow precision"):
        compare(*sides)
    made = compare(*sides, allowed=["precision"])
    ((_, verdict),) = made.points
    assert (verdict.verdict, verdict.ratio) == ("faster", pytest.approx(2.0))
    (one,) = compared(made, ("a", "b"))["points"]
    epoch, target = one["times"]
    assert (epoch["kind"], epoch["ratio"]) == ("epoch", pytest.approx(0.5))
    assert (target["accuracy"], target["a"], target["b"]) == (0.8, 4.0, 2.0)
    assert target["interval"][0] < 0.5 < target["interval"][1]
    accuracy = one["quantities"]["validation_accuracy"]
    assert accuracy["difference"] == pytest.approx(0.1)
    assert 0 < accuracy["low"] < 0.1 < accuracy["high"]
    assert "to 80 %" in "\n".join(outcome.text(made, ("a", "b")))


def test_every_epoch_of_every_run_is_a_row_of_a_frame(tmp_path):
    if not os.environ.get("CI"):
        pytest.importorskip("pandas")
    import lockstep

    frame = lockstep.read(seeds(tmp_path), epochs=True)
    assert len(frame) == 9
    assert list(frame[frame.seed == 0].elapsed_s) == [2.0, 3.0, 4.0]
    assert set(frame.epochs.dropna()) <= {3}
    assert list(lockstep.read(tmp_path, launches=True).best_accuracy) == [0.74, 0.75, 0.76]


def test_no_accuracy_is_guessed_where_targets_are_no_classes(tmp_path):
    run(tmp_path / "run", (None, None, None))
    (point,) = series_of(load([tmp_path]).rows)[0].points
    found = learning.summarise(point, learning.target(point.rows))
    assert (found.accuracy, found.best, found.target, found.reached_s) == (None, None, None, None)
