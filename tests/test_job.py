from pathlib import Path

import pytest
from data.job_samples import campaign_of, site_of, small

from lockstep.campaign.campaign import Launch, plan
from lockstep.slurm.submit.job import jobs, profile
from lockstep.slurm.submit.job_spec import Dependency, directive

FOLDER = Path("/results/ladder")
NO_GPUS = {"gpus_per_node": 0, "gpu_type": None}


def waits(job):
    return [(one.how, one.job) for one in job.after]


@pytest.mark.parametrize(
    ("world_size", "gpus", "cpus", "most", "expected"),
    [
        # nodes, ranks on each, CPUs of a rank
        (1, 4, 64, None, (1, 1, 16)),
        (4, 4, 64, None, (1, 4, 16)),
        (8, 4, 64, None, (2, 4, 16)),
        (1024, 8, 96, None, (128, 8, 12)),
        (8, 4, 64, 2, (4, 2, 32)),
        (4, 0, 8, 2, (2, 2, 4)),
        (3, 4, 64, None, (1, 3, 16)),
        (16, 0, 8, None, (2, 8, 1)),
        (4, 4, 63, None, (1, 4, 15)),
    ],
)
def test_nodes_and_cpus_are_computed(world_size, gpus, cpus, most, expected):
    site = site_of(
        gpus_per_node=gpus,
        gpu_type="h100" if gpus else None,
        cpus_per_node=cpus,
        max_ranks_per_node=most,
    )
    (job,) = jobs(campaign_of(world_sizes=[world_size], studies=["weak"]), site, FOLDER)
    nodes, on_node, cpus_per_task = expected
    assert (job.num_nodes, job.cpus_per_task, job.num_ranks) == (nodes, cpus_per_task, world_size)
    assert job.gpus_per_node == (on_node if gpus else 0)
    assert job.shapes[world_size][:3] == (
        f"--nodes={nodes}",
        f"--ntasks={world_size}",
        f"--ntasks-per-node={on_node}",
    )
    assert f"--nodes={nodes}" in job.directives
    assert f"--ntasks-per-node={on_node}" in job.directives


def test_hours_are_those_of_the_limit():
    shared = site_of(extra_directives=[])
    (job,) = jobs(campaign_of(), shared, FOLDER)
    assert (job.time_s, job.node_hours, job.gpu_hours) == (7200, 4.0, 16.0)
    by_size = jobs(campaign_of(jobs={"allocation": "job"}), shared, FOLDER)
    assert [(one.name, one.gpu_hours) for one in by_size] == [
        ("ladder-w1", 2.0),
        ("ladder-w2", 4.0),
        ("ladder-w4", 8.0),
        ("ladder-w8", 16.0),
    ]


def test_an_exclusive_node_costs_all_its_gpus():
    asked = {"allocation": "job", "collect": True}
    found = jobs(campaign_of(world_sizes=[1, 8], jobs=asked), site_of(), FOLDER)
    assert [(one.gpus_per_node, one.gpu_hours) for one in found] == [(1, 8.0), (4, 16.0), (0, 2.0)]
    (on_cpus,) = jobs(campaign_of(world_sizes=[64], device="cpu"), site_of(), FOLDER)
    assert (on_cpus.gpus_per_node, on_cpus.gpu_hours) == (0, 8.0)


def test_node_hours_are_nodes_by_hours_by_runs():
    # 3 nodes x 0.75 h x 10 runs x 3 repeats, a sum done by hand.
    asked = {"launch_time": "00:45:00"}
    (job,) = jobs(small(world_sizes=[12], repeats=30, jobs=asked), site_of(), FOLDER)
    assert job.node_hours == 67.5
    assert (job.time_s, job.directives[8]) == (81000, "--time=22:30:00")


APART = {"share_job": False}


def test_each_repeat_of_a_ladder_is_a_job_of_its_own():
    campaign = campaign_of(repeats=3, jobs=APART | {"preflight": True, "collect": True})
    found = jobs(campaign, site_of(), FOLDER)
    names = ["ladder-r0", "ladder-r1", "ladder-r2"]
    first = ("afterok", "ladder-preflight")
    assert [(one.name, waits(one)) for one in found[1:4]] == [(name, [first]) for name in names]
    assert waits(found[4]) == [("afterany", one.name) for one in found[:4]]
    # Each with the whole ladder, in the order of the campaign.
    assert [launch for one in found for launch in one.launches] == plan(campaign)
    assert [{launch.repeat for launch in one.launches} for one in found[1:4]] == [{0}, {1}, {2}]


def test_repeats_run_one_after_another_where_jobs_share_nodes():
    shared = site_of(extra_directives=[])
    by_size = campaign_of(world_sizes=[1, 8], jobs=APART | {"allocation": "job"})
    assert [(one.name, waits(one)) for one in jobs(by_size, shared, FOLDER)] == [
        ("ladder-w1-r0", []),
        ("ladder-w8-r0", [("afterok", "ladder-w1-r0")]),
        ("ladder-w1-r1", [("afterany", "ladder-w8-r0")]),
        ("ladder-w8-r1", [("afterok", "ladder-w1-r1")]),
    ]
    free = jobs(by_size, site_of(), FOLDER)
    assert [waits(one) for one in free][::2] == [[], []]
    ladders = jobs(campaign_of(jobs=APART), shared, FOLDER)
    assert [waits(one) for one in ladders] == [[], [("afterany", "ladder-r0")]]


def test_what_is_missing_of_a_repeat_goes_into_that_repeat_s_job():
    missing = [Launch(8, 0), Launch(1, 2), Launch(8, 2)]
    found = jobs(campaign_of(repeats=3, jobs=APART), site_of(), FOLDER, missing)
    assert [(one.name, list(one.launches)) for one in found] == [
        ("ladder-r0", missing[:1]),
        ("ladder-r2", missing[1:]),
    ]
    (only,) = jobs(campaign_of(repeats=1, jobs=APART), site_of(), FOLDER)
    assert only.name == "ladder"


def test_repeats_that_share_a_job_keep_the_order_of_the_campaign():
    (job,) = jobs(campaign_of(repeats=5), site_of(), FOLDER)
    assert list(job.launches) == plan(campaign_of(repeats=5))


def test_a_larger_job_waits_for_the_smaller_one_to_succeed():
    asked = {"allocation": "job", "preflight": True, "collect": True}
    found = jobs(campaign_of(world_sizes=[8, 1, 4], jobs=asked), site_of(), FOLDER)
    assert [(one.name, one.kind, waits(one)) for one in found] == [
        ("ladder-preflight", "preflight", []),
        ("ladder-w1", "job", [("afterok", "ladder-preflight")]),
        ("ladder-w4", "job", [("afterok", "ladder-w1")]),
        ("ladder-w8", "job", [("afterok", "ladder-w4")]),
        (
            "ladder-collect",
            "collect",
            [("afterany", f"ladder-{one}") for one in ("preflight", "w1", "w4", "w8")],
        ),
    ]
    assert found[0].num_nodes == 2
    assert (found[-1].num_nodes, found[-1].gpus_per_node) == (1, 0)


def test_an_array_has_one_world_size_and_an_element_for_each_case():
    campaign = campaign_of(jobs={"allocation": "array", "max_running": 3}, world_sizes=[2, 8])
    small, large = jobs(campaign, site_of(), FOLDER)
    assert {one.world_size for one in small.launches} == {2}
    assert "--array=0-3%3" in small.directives  # 2 repeats of 2 cases
    assert "--output=/results/ladder/jobs/slurm-%A_%a.out" in small.directives
    assert sorted(one.name for one in large.launches) == [
        *("w8-r0-p1", "w8-r0-p2", "w8-r1-p1", "w8-r1-p2")
    ]
    assert (large.num_elements, large.node_hours) == (4, 4 * 2 * 2.0)


@pytest.mark.parametrize("max_running", [None, 2])
def test_an_array_is_split_where_slurm_has_its_highest_index(max_running):
    campaign = small(repeats=7, jobs={"allocation": "array", "max_running": max_running})
    found = jobs(campaign, site_of(max_array_size=3), FOLDER)
    assert [one.name for one in found] == ["ladder-w1-1", "ladder-w1-2", "ladder-w1-3"]
    indices = [one.directives[-1].removeprefix("--array=").split("%")[0] for one in found]
    assert indices == ["0-2", "0-2", "0-0"]
    assert [launch for one in found for launch in one.launches] == plan(campaign, by_case=True)
    before = (Dependency("ladder-w1-1", "afterany"),) if max_running else ()
    assert found[1].after == before


def test_arrays_run_one_after_another_where_only_so_many_elements_may_run():
    asked = {"allocation": "array", "max_running": 2, "preflight": True}
    found = jobs(campaign_of(jobs=asked, world_sizes=[1, 2]), site_of(), FOLDER)
    first = ("afterok", "ladder-preflight")
    # After any end of the smaller one: but never after a preflight that failed.
    assert [waits(one) for one in found] == [[], [first], [first, ("afterany", "ladder-w1")]]
    free = jobs(campaign_of(jobs={"allocation": "array"}), site_of(), FOLDER)
    assert [waits(one) for one in free] == [[]] * 4


def test_a_thousand_launches_are_one_array():
    found = jobs(small(repeats=1000, jobs={"allocation": "array"}), site_of(), FOLDER)
    assert [one.num_elements for one in found] == [1000]


def test_every_world_size_gets_the_same_threads_and_the_device_is_said():
    (job,) = jobs(campaign_of(), site_of(), FOLDER)
    assert {"--threads-per-rank=16", "--device=cuda", "--label=site=here"} <= set(job.options)


def test_nothing_missing_needs_no_job():
    everything = {"preflight": True, "collect": True}
    assert jobs(campaign_of(jobs=everything), site_of(), FOLDER, launches=[]) == []


def test_a_profile_is_a_few_steps_of_one_repeat():
    asked = campaign_of(repeats=5, until_efficiency=0.5)
    job = profile(asked, site_of(), FOLDER, "nsys")
    assert job.floor is None  # two rounds under a profiler are no measure of efficiency
    assert (job.name, job.kind) == ("ladder-nsys", "profile")
    assert sorted(one.world_size for one in job.launches) == [1, 2, 4, 8]
    assert {"--rounds=2", "--steps-per-round=3"} <= set(job.options)


def test_ncu_sees_one_rank_for_the_others_would_wait_for_it():
    job = profile(campaign_of(), site_of(), FOLDER, "ncu")
    assert job.launches == (Launch(1, 0),)


def test_a_time_of_each_launch_gives_that_of_the_job():
    asked = {"launch_time": "00:20:00"}
    by_size = jobs(campaign_of(jobs=asked | {"allocation": "job"}), site_of(), FOLDER)
    assert {one.time_s for one in by_size} == {2 * 1200}
    (ladder,) = jobs(campaign_of(jobs=asked), site_of(), FOLDER)
    assert ladder.time_s == 8 * 1200


def test_of_a_short_job_the_warning_takes_a_part():
    (job,) = jobs(campaign_of(jobs={"time": "00:02:00"}), site_of(), FOLDER)
    assert "--signal=B:USR1@30" in job.directives


PARTITIONS = {"gpu": {"time": "04:00:00", "max_nodes": 2}, "debug": {"time": "00:30:00"}}


def test_a_job_stays_within_its_partition():
    site = site_of(partitions=PARTITIONS)
    assert jobs(campaign_of(), site, FOLDER)[0].time_s == 7200
    (job,) = jobs(campaign_of(), site.in_partition("debug"), FOLDER)
    assert (job.time_s, "--partition=debug" in job.directives) == (1800, True)


@pytest.mark.parametrize(
    ("asked", "changes", "reason"),
    [
        ({"time": "05:00:00"}, {}, r"needs 05:00:00, more than the limit 04:00:00 of "
         r"partition gpu; lower \[jobs\] time to 04:00:00"),
        ({"launch_time": "00:45:00"}, {}, 'needs 06:00:00.*; only 5 .* share_job.*"job" or'),
        ({"launch_time": "03:00:00", "allocation": "job"}, {}, '1 of its 2 .* share_job.*"array"'),
        ({"launch_time": "01:30:00", **APART}, {}, '2 of its 4 launches fit: lower launch_time,'),
        ({"launch_time": "05:00:00", "allocation": "array"}, {}, "lower .* launch_time, or choose"),
        ({}, {"world_sizes": [16]}, "16 needs 4 nodes, but partition gpu .* 2 nodes, for up to 8"),
    ],
)  # fmt: skip
def test_a_job_over_its_partition_is_refused_with_what_fits(asked, changes, reason):
    with pytest.raises(ValueError, match=reason):
        jobs(campaign_of(jobs=asked, **changes), site_of(partitions=PARTITIONS), FOLDER)


@pytest.mark.parametrize(
    ("changes", "site_changes", "reason"),
    [
        ({"device": "cuda"}, NO_GPUS, "has gpus_per_node = 0"),
        ({"world_sizes": [6], "studies": ["weak"]}, {}, "6 does not fill .* choose 4 or 8"),
        ({"jobs": {"chain": 2}}, {"gpu_type": None, "gpu_types": ["a100"]}, "set chain = 1"),
        ({"threads_per_rank": 17}, {}, "4 ranks of 17 threads need more than the 64 CPUs"),
    ],
)
def test_a_campaign_that_does_not_fit_is_refused(changes, site_changes, reason):
    with pytest.raises(ValueError, match=reason):
        jobs(campaign_of(**changes), site_of(**site_changes), FOLDER)


@pytest.mark.parametrize("name", ["a%j", "a\nb", "a'b", 'a"b', "a$b", "a,b", "a:b", "a\\b", "a#b"])
def test_a_folder_that_sbatch_would_read_its_own_way_is_refused(name):
    with pytest.raises(ValueError, match="give --to another folder"):
        jobs(campaign_of(), site_of(), Path("/results") / name)


@pytest.mark.parametrize("value", ["a\n#SBATCH --nodes=9", "a\tb", 'a"b', "a'b", "$(a)", "a\x7f"])
def test_a_directive_cannot_end_its_line(value):
    with pytest.raises(ValueError, match="a value for sbatch must not have"):
        directive("job-name", value)


def test_a_space_in_a_directive_is_quoted():
    assert directive("output", "/a b/c") == '--output="/a b/c"'


def test_a_floor_of_bandwidth_is_a_part_of_the_screening():
    asked = {"preflight": True, "screen": True, "min_all_reduce_gb_per_s": 10}
    first = jobs(campaign_of(jobs=asked), site_of(), FOLDER)[0]
    assert first.screen == ("--device=cuda", "--floor-gb-per-s=10")
    with pytest.raises(ValueError, match="set screen = true"):
        campaign_of(jobs=asked | {"screen": False})
