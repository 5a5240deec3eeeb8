from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.formats import number
from lockstep.core.metrics import NOTABLE
from lockstep.measure.causes import bound
from lockstep.measure.causes.bound import Base, Buckets
from lockstep.measure.causes.card import card
from lockstep.report.columns import table
from lockstep.report.compute import quantities
from lockstep.report.compute.quantities import reason
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.results import Row
from lockstep.report.page.curves import ladder_panel, phase_table
from lockstep.report.words import verdict_card

NUM_TURNS = 8
# Of three launches that differ by a thousandth.
LAUNCHES = (0.999, 1.0, 1.001)


def steady(seconds, ranks=1):
    return [[seconds] * NUM_TURNS] * ranks


def times(factor, variants):
    return {name: (np.array(ranks) * factor).tolist() for name, ranks in variants.items()}


def ladder(scaling, points):
    """Rows of (world size, step in seconds, turns of each variant), in three launches."""
    rows = [
        Row(f"w{size}-r{repeat}", "c", scaling, "w", size, 1 / step, scaling=scaling,
            step_s=step * factor, rank_variant_s=times(factor, variants))
        for size, step, variants in points for repeat, factor in enumerate(LAUNCHES)
    ]  # fmt: skip
    (series,) = series_of(rows)
    return series


def loss(series, point):
    return quantities.parts_and_loss(series, point)[1]


def lost(scaling, base, here):
    series = ladder(scaling, [(1, *base), (2, *here)])
    return loss(series, series.points[1])


def told(series, point):
    return verdict_card.why_short(series, point, reason(series, point))


def why(series):
    found = reason(series, series.points[1])
    return found.kind, [part.cause for part in found.named]


def seconds_of(found):
    return {part.cause: part.seconds for part in found.parts}


# Of 1 s DDP's own work takes 0.1, and of the rest 0.2 is fixed, whatever the batch.
BASE = (1.0, {"full": steady(1.0), "own": steady(0.9), "half": steady(0.55)})


def two(slow, whole, own=0.9):
    return {"full": steady(whole, 2), "own": [*steady(own), *steady(slow)]}


def test_a_steady_step_is_split_by_hand():
    # One rank of two takes 0.2 s longer, the step 0.1 beyond that and DDP's work; the rounds take a
    # tenth longer than the turns, and their step is what the parts add up to.
    series = ladder("weak", [(1, 1.1, BASE[1]), (2, 1.43, two(1.1, 1.3))])
    assert seconds_of(loss(series, series.points[1])) == pytest.approx(
        {"exposed": 0.11, "imbalance": 0.22, "contention": 0, "own": 0}
    )
    assert why(series) == ("named", ["imbalance", "exposed"])


def test_a_strong_ladder_loses_half_of_what_the_ranks_do_not_share():
    # Of 0.9 s 0.2 are fixed, so a rank alone is to take 0.2 + 0.7 / 2.
    found = lost("strong", BASE, (0.9, two(0.7, 0.9, own=0.6)))
    assert seconds_of(found) == pytest.approx(
        {"exposed": 0.1, "imbalance": 0.1, "contention": 0.05, "fixed": 0.1, "ddp": 0.05, "own": 0}
    )
    assert found.seconds == pytest.approx(0.4)


def test_launches_of_one_job_are_no_repeats_of_what_its_nodes_add():
    # Communication takes 0.1 to 0.3 s by the job, and in a job's launches alike.
    here = (1.2, {"full": steady(1.2, 2), "own": [*steady(0.9), *steady(0.9)]})
    series = ladder("weak", [(1, *BASE), (2, *here)] * 5)
    for row in rows_of(series):
        row.job = row.launch[-1]
        if row.world_size == 2:
            row.rank_variant_s["full"] = steady(1.1 + 0.1 * int(row.job), 2)
    card = quantities.find_bottleneck(series, series.points[1])
    assert len(series.points[1].rows) == 15
    assert (why(series), card.named, card.num_launches) == (("open", []), (), 15)


def test_steps_alone_of_an_older_release_are_split():
    found = lost("weak", (1.0, {"own": [[0.9]]}), (1.3, {"own": [[0.9], [1.1]]}))
    assert seconds_of(found) == pytest.approx(
        {"exposed": 0.1, "imbalance": 0.2, "contention": 0, "own": 0}
    )


def rows_of(series):
    return [row for point in series.points for row in point.rows]


seconds = st.floats(1e-3, 10)
turns = st.lists(
    st.lists(seconds, min_size=NUM_TURNS, max_size=NUM_TURNS), min_size=4, max_size=4
)  # fmt: skip


@settings(max_examples=25)
@given(
    seconds, st.floats(0.5, 1.5), turns, turns, st.sampled_from(["strong", "weak"]), st.booleans(),
    st.floats(0.1, 1),
)  # fmt: skip
def test_the_losses_add_up_to_the_whole(base, times_turns, full, own, scaling, has_half, running):
    step = times_turns * float(np.mean(np.max(full, axis=0)))
    alone = {"full": steady(base), "own": steady(0.9 * base), "running": steady(0.8 * base)}
    alone |= {"half": steady(0.5 * base)} if has_half else {}
    here = {"full": full, "own": own, "running": times(running, {"": own})[""]}
    series = ladder(scaling, [(1, base, alone), (4, step, here)])
    factor = 1 / 4 if scaling == "strong" else 1.0
    found = loss(series, series.points[1])
    if found is None:  # the turns are unlike the rounds
        assert quantities.find_bottleneck(series, series.points[1]).is_unlike
    else:
        assert found.seconds == pytest.approx(step - factor * base, abs=1e-9)
        assert sum(seconds_of(found).values()) == pytest.approx(found.seconds, abs=1e-9)


def noisy(draw, ranks, **means):
    return {
        name: np.reshape(mean, (-1, 1)) * (1 + 0.01 * draw.standard_normal((ranks, 24)))
        for name, mean in means.items()
    }


@pytest.mark.parametrize(
    ("kind", "means"),
    [
        ("compute", {"full": [1, 1], "own": [1, 1], "half": [0.5, 0.5]}),
        ("communication", {"full": [1.3, 1.3], "own": [1, 1], "half": [0.5, 0.5]}),
        ("imbalance", {"full": [1.3, 1.3], "own": [1, 1.3], "half": [0.5, 0.65]}),
        ("input", {"full": [1.3, 1.3], "resident": [1, 1], "own": [1, 1]}),
        ("launch", {"full": [1, 1], "own": [1, 1], "half": [0.7, 0.7]}),
        ("contention", {"full": [1.3, 1.3], "own": [1.3, 1.3], "running": [1, 1]}),
    ],
)
def test_the_largest_cause_that_is_shown_bounds_a_step(kind, means):
    draw = np.random.default_rng(1)
    found = bound.judge([noisy(draw, 2, **means)])
    assert found.kind == kind
    if kind != "compute":
        assert found.named[0].seconds == pytest.approx(0.3 if kind != "launch" else 0.4, abs=0.03)
    assert (found.slow and found.slow.rank) == (1 if kind == "imbalance" else None)
    assert len(card(found)) <= 12
    late = card(replace(found, late=bound.LateInput(1, 0.5, 0.01, 2)))
    assert ("rank 1 is late" in late[0]) is (kind != "input")


@pytest.mark.parametrize(("running", "kinds"), [(1.0, {"exposed"}), (0.8, {"contention"})])
def test_no_small_cause_is_named_where_ranks_waited_for_cores(running, kinds):
    draw = np.random.default_rng(1)
    found = bound.judge([
        noisy(draw, 2, full=[1.07, 1.07], own=[1, 1], half=[0.5, 0.5], running=[running, running])
    ])  # fmt: skip
    assert {share.cause for share in found.named} == kinds
    assert (found.queued >= NOTABLE) is ("contention" in kinds)


def test_what_every_size_pays_alike_is_no_loss_of_equal_batches():
    draw = np.random.default_rng(1)
    base = noisy(draw, 1, full=[1.0], own=[0.9], half=[0.6])  # 0.1 of DDP's own, 0.3 fixed
    here = noisy(draw, 4, full=[1.3] * 4, own=[0.9] * 4, half=[0.6] * 4)
    found = bound.judge([here], [Base(base)])
    assert [share.cause for share in found.named] == ["exposed"]
    assert found.named[0].seconds == pytest.approx(0.3, abs=0.03)
    shared = noisy(draw, 4, full=[0.65] * 4, own=[0.45] * 4, half=[0.375] * 4)
    found = bound.judge([shared], [Base(base, share=0.25)])
    assert {share.cause: share.seconds for share in found.named} == pytest.approx(
        {"fixed": 0.225, "exposed": 0.1, "ddp": 0.075}, abs=0.03
    )
    captured = next(gain for gain in found.gains if gain.change == "captured step")
    assert captured.step_s == pytest.approx(0.65 - 0.3, abs=0.03)  # the part that is not lost, too


@settings(max_examples=10)
@given(turns, turns, turns, st.sampled_from([0.25, 1.0]))
def test_a_single_rank_waits_for_nobody_and_no_base_makes_it_compute_more_than_its_step(
    full, own, half, share
):
    here = {"full": np.array(full), "own": np.array(own), "half": np.array(half)}
    one = {name: each[:1] for name, each in here.items()}
    alone = bound.judge([one])
    assert {"ddp"} <= {share.cause for share in alone.shares} <= {"ddp", "fixed"}
    held = bound.judge([here], [Base(one, share)])
    contention = next(each for each in held.shares if each.cause == "contention")
    assert contention.seconds >= 0


@pytest.mark.slow
def test_intervals_of_turns_hold_the_truth_as_often_as_they_say():
    draw, means = np.random.default_rng(2), {"full": [1.2, 1.2], "own": [1.0, 1.0]}
    held = 0
    for _ in range(60):
        found = bound.judge([noisy(draw, 2, **means)], confidence=0.9)
        low, high = next(one.interval for one in found.shares if one.cause == "exposed")
        held += low <= 0.2 * (1 + 0.01 * 0.5642) <= high  # the slower of two normal draws
    assert held / 60 >= 0.85


def test_a_bucket_is_exposed_by_what_of_it_lies_behind_the_backward():
    # 0.2 s before the end the first is ready; the second waits for it, the third for its gradients.
    buckets = Buckets([100, 100, 200], [0.2, 0.15, 0.0])
    assert buckets.exposed_s(np.array(0.4)) == pytest.approx([0.0, 0.0, 0.2])
    assert buckets.exposed_s(np.array(1.2)) == pytest.approx([0.1, 0.3, 0.6])
    assert float(buckets.saved_s(np.array(0.4), 2.0)) == pytest.approx(0.1)


def test_the_exposed_time_of_buckets_adds_to_that_of_the_step():
    # The timeline has 1.0 s exposed, 0.1 and 0.3 and 0.6 of it; 0.5 s are measured.
    turns = {"full": steady(1.5, 2), "own": steady(1.0, 2), "reduce": steady(1.2, 2)}
    found = bound.judge([turns], buckets=Buckets([100, 100, 200], [0.2, 0.15, 0.0]))
    assert found.exposed_bucket_s == pytest.approx((0.05, 0.15, 0.3))


def test_what_the_baseline_waits_for_its_input_too_is_told_apart_from_what_is_lost_to_it():
    def waiting(step, ranks):
        return step, {name: steady(seconds, ranks) for name, seconds in waits(step).items()}

    series = ladder("weak", [(1, *waiting(1.0, 1)), (2, *waiting(1.1, 2))])
    here = series.points[1]
    lost = {part.cause: part.seconds for part in loss(series, here).parts}
    assert lost["input"] == pytest.approx(0.1)
    said = told(series, here)
    assert "a step takes 1100 ms instead of the ideal 1000 ms; 100 ms (" in said
    assert "+500" not in said


def waits(full, resident=0.6):
    return {"full": full, "resident": resident, "own": 0.6}


def test_a_point_that_loses_little_needs_no_reason():
    series = ladder("strong", [(1, *BASE), (2, 0.51, two(0.46, 0.51, own=0.46))])
    assert told(series, series.points[1]) is None
    assert told(series, series.base) is None


def test_a_small_loss_of_noisy_launches_is_open_and_a_sure_cause_is_named_all_the_same():
    series = ladder("weak", [(1, *BASE), (2, 1.01, two(0.9, 1.01))])
    for row, factor in zip(series.base.rows, (0.8, 1.0, 1.2), strict=True):
        row.step_s = factor
    assert why(series) == ("open", [])
    for row in series.points[1].rows:
        row.rank_variant_s["own"][1] = steady(1.2)[0]
    assert why(series) == ("named", ["imbalance"])


def test_what_turns_and_rounds_differ_by_is_in_its_interval_no_cause_and_in_no_share():
    series = ladder("weak", [(1, *BASE), (2, 1.5, two(0.9, 1.3))])
    here = series.points[1]
    for row, factor in zip(here.rows, (1.5, 1.5, 1.9), strict=True):
        row.step_s = factor
    found = loss(series, here)
    for one in (found, *found.parts, *quantities.parts_and_loss(series, here)[0]):
        assert not one.interval or one.interval[0] <= one.seconds <= one.interval[1]
    assert why(series) == ("named", ["exposed"])
    card = quantities.find_bottleneck(series, here)
    assert (card.step_s, card.beyond_rounds) == (here.step_s, pytest.approx(1.3 / 1.5 - 1))
    assert all(gain.interval[0] <= gain.step_s <= gain.interval[1] for gain in card.gains)
    assert quantities.values(here.rows, "communication_share") == pytest.approx([0.4 / 1.3] * 3)


def test_overlap_is_what_of_the_all_reduce_alone_a_step_does_not_wait_for():
    here = two(0.9, 1.1) | {"reduce": steady(0.8, 2)}
    series = ladder("weak", [(1, *BASE), (2, 1.1, here)])
    base, point = table([series])
    assert (point["exposed_communication_s"], point["all_reduce_s"], point["overlap"]) == (
        pytest.approx((0.2, 0.8, 0.75))
    )
    assert point["all_reduce_s_low"] < 0.8 < point["all_reduce_s_high"]
    assert [base[name] for name in ("exposed_communication_s", "overlap")] == [None, None]
    assert phase_table(series)["rows"] == [["2", "800", "200", "75.0"]]


@pytest.mark.parametrize(
    ("step_s", "running", "kind"),
    [(0.7, 0.4, "open"), (0.9, 0.4, "contention"), (0.7, 0.98, "input")],
)
def test_turns_of_a_busy_machine_name_no_cause(step_s, running, kind):
    # The turns take 1 s, more than the rounds, and wait for cores for much of that or for little.
    draw = np.random.default_rng(1)
    turns = noisy(draw, 1, full=[1.0], resident=[0.8], own=[0.8], running=[0.8 * running])
    found = bound.judge([turns]).rescale(step_s, None)
    assert (found.kind, found.is_unlike, not found.named) == (kind, *[kind == "open"] * 2)
    assert ("quiet" in card(found)[0], found.is_busy) == (kind == "open", kind == "contention")


def test_results_without_variants_are_not_split():
    series = ladder("strong", [(1, 1.0, {}), (2, 0.8, two(0.6, 0.8))])
    assert quantities.parts_and_loss(series, series.base) == ((), None)
    assert loss(series, series.points[1]) is None
    assert told(series, series.points[1]) is None


@pytest.mark.parametrize("rules", [[], ["shared-device"]])
def test_what_the_check_forbids_has_no_causes_either(rules):
    series = ladder("weak", [(1, *BASE), (2, 1.35, two(1.1, 1.3))])
    here = series.points[1]
    here.blocked_by.extend(rules)
    told = (*quantities.parts_and_loss(series, here), verdict_card.judge([series], 0.7))
    made = ladder_panel("weak", [series], 0.7, "GPU-hours", {})
    drawn = [figure for figure in made["figures"] if figure["id"].startswith("weak-causes")]
    assert [bool(one) for one in (*told, drawn)] == [not rules] * 4


def test_one_loss_has_one_value_on_card_and_headline():
    # The turns take a tenth less than the rounds, and communication 0.1 s more in each launch.
    series = ladder("weak", [(1, 1.1, BASE[1]), (2, 1.6, two(1.1, 1.4))])
    here = series.points[1]
    for row, more in zip(here.rows, (0.0, 0.1, 0.2), strict=True):
        row.rank_variant_s["full"] = steady(1.4 + more, 2)
    card = quantities.find_bottleneck(series, here)
    shares = {share.cause: (share.seconds, share.interval) for share in card.shares}
    parts, lost = quantities.parts_and_loss(series, here)
    kept = [part for part in parts if part.cause in shares]  # the rest is the card's compute
    assert sum(p.seconds for p in parts if p not in kept) == pytest.approx(card.compute_s)
    for found in (kept, lost.parts[1:]):  # one rank waits for nobody, so all of it is lost
        assert {part.cause: (part.seconds, part.interval) for part in found} == shares
    assert {p.cause: p.seconds for p in reason(series, here).named}.items() <= {
        cause: seconds for cause, (seconds, _) in shares.items()
    }.items()
    exposed = number(shares["exposed"][0] * 1e3)
    assert any(f"{exposed} ms" in line for line in verdict_card.judge([series], 0.7).lines())
