"""`lockstep diagnose`: which cases answer a question, and the card of those that load data."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from commands import run
from data.report_samples import document, record, write

from lockstep.campaign import progress, run_cli
from lockstep.campaign.campaign import campaign_of
from lockstep.campaign.folder import Outcome
from lockstep.campaign.next import Ended, Facts
from lockstep.campaign.run_cli import diagnose
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.words import ranking_card


@pytest.mark.parametrize(
    ("name", "num_gpus", "cores", "study", "world_sizes", "size"),
    [
        ("strong", 0, 2, "strong", (1, 2), "laptop"),
        ("strong", 6, 64, "strong", (1, 4), "node"),
        ("straggler", 8, 64, "weak", (8,), "node"),
        ("loader", 1, 64, "loader", (1,), "node"),
    ],
)
def test_a_question_measures_what_tells_and_nothing_else(
    name, num_gpus, cores, study, world_sizes, size
):
    found = campaign_of(name, num_gpus=num_gpus, cores=cores, device=None, workload=None)
    assert (found.studies, found.world_sizes, found.size) == ((study,), world_sizes, size)
    assert found.num_cases() <= 7


@pytest.mark.parametrize("name", ["strong", "straggler"])
def test_what_needs_several_ranks_is_refused_on_one_gpu(name):
    with pytest.raises(ValueError, match="needs 2 GPUs, but torch sees only 1"):
        campaign_of(name, num_gpus=1, cores=8, device=None, workload=None)


def test_two_nodes_are_a_question_for_slurm():
    with pytest.raises(ValueError, match="lockstep submit nodes --site"):
        run(diagnose, "nodes")


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make five launches of 100 s that end with given outcomes; return how many, and the rest."""
    now = [0.0]

    def make(outcomes, limit_s):
        ends = iter(outcomes)

        def run_100_s(launch, _):
            now[0] += 100
            return next(ends)

        view = SimpleNamespace(begin=lambda _: None, end=lambda *_: None, advance=None)
        monkeypatch.setattr(progress, "View", lambda *_: nullcontext(view))
        monkeypatch.setattr(run_cli, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(run_cli, "_explain", lambda *_: None)
        ladder = SimpleNamespace(
            run=run_100_s, find_missed=lambda _: None, folder=tmp_path,
            campaign=SimpleNamespace(studies=()),
        )  # fmt: skip
        ended, stop, is_end = run_cli._make_launches(ladder, [None] * 5, limit_s, {})
        return len(ended), stop, is_end

    return make


def test_no_launch_is_begun_that_would_end_too_late(make):
    assert make([Outcome("w1-r0", measured=1)] * 5, 350) == (
        3, "The time limit is reached; 2 launches did not start.", False,
    )  # fmt: skip


def failed(error):
    cause = {"kind": "fault", "error": error}
    case = {"case": "test_x", "reason": "a traceback", "causes": [cause]}
    return Outcome("w1-r0", failed=(case,), ended=Ended(Facts("")))


@pytest.mark.parametrize(
    ("outcomes", "num_made"),
    [
        ([failed("OSError: full"), failed("OSError: full")], 2),
        ([Outcome("w1-r0", ended=Ended(Facts("rank 3 ended with exit code 1")))] * 2, 2),
        ([Outcome("w1-r0", measured=1), *[failed("a")] * 4], 5),
    ],
)
def test_launches_that_all_fail_alike_are_not_all_started(make, outcomes, num_made):
    num_ended, stop, is_end = make(outcomes, 1e6)
    assert (num_ended, is_end) == (num_made, num_made == 5)
    assert ("run the same command" in stop) is (num_made == 2)


@pytest.mark.parametrize(
    ("idle", "launches", "kind", "best"),
    [
        ({0: 0.4, 1: 0.04, 2: 0.2}, (1.0, 1.01, 0.99), "keeps-up", 1),
        ({0: 0.4, 1: 0.04, 2: 0.2}, (1.0, 1.4, 0.6), "open", 1),
        ({0: 0.4, 2: 0.2}, (1.0, 1.01, 0.99), "waits", 2),
        ({}, (1.0,), None, None),
    ],
)
def test_the_setting_whose_step_waits_least_is_named(tmp_path, idle, launches, kind, best):
    for repeat, pace in enumerate(launches):
        cases = {
            f"loader[{workers}]": record(
                "loader", 2, factors={"num_workers": workers}, scaling=None,
                details={"loader_idle": x * pace},
            )
            for workers, x in idle.items()
        }  # fmt: skip
        cases = cases or {"strong": record(world_size=2)}
        write(tmp_path, document(f"w2-r{repeat}", 2, cases, repeat=repeat))
    series = series_of(load([tmp_path]).rows)
    found = ranking_card.judge_loader(series)
    assert (found and found[0]) == kind
    assert (found and found[1][0].factors.get("num_workers")) == best
    assert len(ranking_card.loader_card(series)) == (3 + len(idle) if found else 0)
