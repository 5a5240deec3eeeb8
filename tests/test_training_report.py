"""Training runs in `report`, `compare`, `gate` and `lockstep.read`: what is pooled, and what of."""

import json
import os

import pytest
from data.report_samples import document, provenance, write
from data.training_samples import run, seeds, trained
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.report.check.checker import check
from lockstep.report.columns import table
from lockstep.report.compare import outcome
from lockstep.report.compare.comparison import compare
from lockstep.report.compare.comparison import document as compared
from lockstep.report.compute import learning
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.gate import gates
from lockstep.report.gate.gates import block
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import gather, load
from lockstep.report.page.content_of_page import page
from lockstep.report.page.figures import draw
from lockstep.report.words.console import console_table

# What changes the learning, or its speed, and two values of it.
KEYS = {
    "workload": ("mlp", "gpt"), "data": ("digits", "mnist"), "precision": ("fp32", "bf16"),
    "epochs": (3, 4), "global_batch": (64, 128), "lr": (0.1, 0.2), "optimizer": ("sgd", "adamw"),
    "momentum": (0.9, 0.0), "weight_decay": (0.0, 0.1), "scheduler": ("none", "cosine"),
    "warmup_epochs": (0, 1), "accumulation": (1, 2), "augment": (False, True),
    "num_workers": (0, 2), "bucket_cap_mb": (None, 1), "max_steps": (None, 30),
    "device": ("H100", "A100"), "world_size": (1, 2), "threads_per_rank": (None, 2),
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


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from((64, 128)), st.sampled_from((0.1, 0.2)),
                          st.integers(0, 3)), min_size=1, max_size=6))  # fmt: skip
def test_a_group_has_all_of_its_runs_and_no_other(tmp_path_factory, runs):
    folder = tmp_path_factory.mktemp("runs")
    for number, (batch, lr, seed) in enumerate(runs):
        run(folder / f"{number}", global_batch=batch, lr=lr, seed=seed)
    found = {
        (one.row.factors["global_batch"], one.row.factors["lr"]): [row.launch for row in p.rows]
        for one in series_of(load([folder]).rows) for p in one.points
    }  # fmt: skip
    wanted: dict[tuple[int, float], list[str]] = {}
    for number, (batch, lr, _) in enumerate(runs):
        wanted.setdefault((batch, lr), []).append(f"{number}")
    assert found == wanted


def campaign(folder, launch, device, world_size=1, **facts):
    cases = {f"test_train[seed={s}]": trained(s, world_size, device) for s in (0, 1)}
    known = provenance(world_size, device_names=[device], **facts)
    return write(folder, document(launch, world_size, cases, provenance=known))


def test_devices_are_rungs_of_one_table_and_no_conflict(tmp_path):
    campaign(tmp_path, "w1-r0", "EPYC", torch="2.7.0+cpu")
    campaign(tmp_path, "g1-r0", "H100")
    campaign(tmp_path, "g2-r0", "H100", world_size=2)
    results = gather([tmp_path])
    assert results.conflicts == []
    found = table(series_of(results.rows))
    assert [one["num_seeds"] for one in found] == [2, 2, 2]
    # One launch each: the seeds in it share what slows it.
    assert {one["epoch_s_low"] for one in found} == {None}


def test_a_seed_that_failed_forbids_a_verdict_on_the_others(tmp_path):
    case = "test_train[lr=0.1-seed={}]"
    cases = {case.format(seed): trained(seed) for seed in (0, 1)}
    failed = [{"case": case.format(2), "reason": "the loss is not finite"}]
    write(tmp_path, document("w1-r0", 1, cases, failed=failed))
    results = load([tmp_path])
    (finding,) = [one for one in check(results) if one.rule == "failed-case"]
    assert all(map(finding.touches, results.rows))


def test_trainings_that_crowd_their_cores_are_judged_by_what_they_learn_alone(tmp_path):
    for device, threads in (("EPYC", 2), ("H100", 1)):
        known = provenance(cores_per_node=1, threads_per_rank=threads)
        cases = {f"test_train[device={device}-seed=0]": trained(0, device=device)}
        write(tmp_path, document(f"w1-{device}", 1, cases, provenance=known))
    results = gather([tmp_path])
    evaluation = evaluate(results)
    findings, series = evaluation.findings, evaluation.series
    wanted = Targets.model_validate({"schema": 1, "validation_accuracy": 0.7})
    judged = block(gates.verdicts(wanted, results), results, findings)
    assert [one.blocked_by for one in judged] == [[], []]
    made = page(evaluate(results), 0.7)
    assert (made["errors"], "crowded" in made["next"]) == ([], False)
    lines = "\n".join(console_table(results, series, 120))
    assert "x first" not in lines  # no rate is over that of a crowded run
    assert "80.0" in lines
    found = compared(compare(results, results, findings=(findings, findings)), ("A", "B"))
    crowded, free = sorted(found["points"], key=lambda one: not one["blocked_by"])
    assert (crowded["blocked_by"], crowded["ratio"]) == (["crowded-training"], None)
    assert crowded["quantities"].keys() == {"validation_accuracy"}
    assert (free["blocked_by"], free["ratio"]) == ([], 1)


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
    assert list(lockstep.read(tmp_path, launches=True).best_accuracy) == [0.74, 0.75, 0.76]
    # These runs have no phases, and ran on one rank.
    unknown = ["data_s", "forward_s", "backward_s", "communication_s", "gpu_utilisation"]
    assert frame[unknown].isna().all(axis=None)
    assert set(frame.parallel_efficiency) == {1.0}
    assert set(frame.ranks_per_node) <= {1}


def test_no_accuracy_is_guessed_where_targets_are_no_classes(tmp_path):
    run(tmp_path / "run", (None, None, None))
    (point,) = series_of(load([tmp_path]).rows)[0].points
    found = learning.summarise(point, learning.target(point.rows))
    assert (found.accuracy, found.best, found.target, found.reached_s) == (None, None, None, None)
