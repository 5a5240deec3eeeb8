from pathlib import Path

import pytest
from data.job_samples import campaign_of, site_of, small

from lockstep.campaign.campaign import Launch, plan
from lockstep.slurm.submit.job import jobs
from lockstep.slurm.submit.job_spec import Dependency, directive

FOLDER = Path("/results/ladder")


def waits(job):
    return [(one.how, one.job) for one in job.after]


@pytest.mark.parametrize(
    ("world_size", "gpus", "cpus", "most", "expected"),
    [
        # nodes, ranks on each, CPUs of a rank
        (1, 4, 64, None, (1, 1, 16)),
        (4, 4, 64, None, (1, 4, 16)),
        (8, 4, 64, None, (2, 4, 16)),
        (8, 4, 64, 2, (4, 2, 32)),
        (4, 0, 8, 2, (2, 2, 4)),
        (16, 0, 8, None, (2, 8, 1)),
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
    assert (job.num_nodes, job.num_threads, job.num_ranks) == (nodes, cpus_per_task, world_size)
    assert job.gpus_per_node == (on_node if gpus else 0)
    assert job.shapes[world_size][:3] == (
        f"--nodes={nodes}",
        f"--ntasks={world_size}",
        f"--ntasks-per-node={on_node}",
    )
    assert f"--nodes={nodes}" in job.directives
    assert f"--ntasks-per-node={on_node}" in job.directives


@pytest.mark.parametrize(
    ("site", "asked", "hours"),
    [
        # node-hours and GPU-hours of each job: nodes x 2 h, and as many GPUs as ranks
        ({"extra_directives": []}, {}, [(4.0, 16.0)]),
        (
            {"extra_directives": []},
            {"jobs": {"allocation": "job"}},
            [(2.0, 2.0), (2.0, 4.0), (2.0, 8.0), (4.0, 16.0)],
        ),
        # an exclusive node costs all its GPUs; so does the job that collects, for half an hour
        (
            {},
            {"world_sizes": [1, 8], "jobs": {"allocation": "job", "collect": True}},
            [(2.0, 8.0), (4.0, 16.0), (0.5, 2.0)],
        ),
        # each of four elements has the whole limit
        ({}, {"world_sizes": [8], "jobs": {"allocation": "array"}}, [(16.0, 64.0)]),
    ],
)
def test_hours_are_those_of_the_limit(site, asked, hours):
    made = jobs(campaign_of(**asked), site_of(**site), FOLDER)
    assert [(job.node_hours, job.gpu_hours) for job in made] == hours


APART = {"share_job": False}


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


@pytest.mark.parametrize(
    ("asked", "time_s", "warning_s"),
    [
        ({"launch_time": "00:20:00", "allocation": "job"}, 2 * 1200, 120),
        ({"launch_time": "00:20:00"}, 8 * 1200, 120),
        ({"time": "00:02:00"}, 120, 30),  # in a short job the warning takes only a part
    ],
)
def test_a_job_has_the_time_of_its_launches(asked, time_s, warning_s):
    for job in jobs(campaign_of(jobs=asked), site_of(), FOLDER):
        assert (job.time_s, f"--signal=B:USR1@{warning_s}" in job.directives) == (time_s, True)


PARTITIONS = {"gpu": {"time": "04:00:00", "max_nodes": 2}, "debug": {"time": "00:30:00"}}


def test_a_job_stays_within_its_partition():
    site = site_of(partitions=PARTITIONS)
    assert jobs(campaign_of(), site, FOLDER)[0].time_s == 7200
    (job,) = jobs(campaign_of(), site.choose_partition("debug"), FOLDER)
    assert (job.time_s, "--partition=debug" in job.directives) == (1800, True)


def test_a_partition_replaces_keys_of_the_site():
    own = {"account": "cpus", "constraint": "rome", "gpus_per_node": 0, "cpus_per_node": 8}
    site = site_of(partitions={"cpu": own | {"mem": "64G"}, "big": {"gpu_type": "h200"}})
    (job,) = jobs(campaign_of(world_sizes=[8]), site.choose_partition("cpu"), FOLDER)
    asked = ("account=cpus", "constraint=rome", "mem=64G", "nodes=1", "ntasks-per-node=8")
    assert {f"--{option}" for option in asked} <= set(job.directives)
    assert not any("gpu" in option for option in job.directives)
    (job,) = jobs(campaign_of(world_sizes=[8]), site.choose_partition("big"), FOLDER)
    assert {"--account=project", "--gpus-per-node=h200:4", "--mem=480G"} <= set(job.directives)
    collected = site.model_copy(update={"collect_partition": "cpu"}).collecting_site()
    assert (collected.account, collected.constraint, collected.mem) == ("cpus", "rome", "64G")


@pytest.mark.parametrize(
    ("asked", "changes", "reason"),
    [
        ({"time": "05:00:00"}, {}, r"needs 05:00:00, which is more than the limit 04:00:00 of "
         r"partition gpu; lower time in \[jobs\] of the campaign file to 04"),
        ({"launch_time": "00:45:00"}, {}, 'needs 06:00:00.*; only 5 .* share_job.*"job" or'),
        ({"launch_time": "05:00:00", "allocation": "array"}, {}, "lower launch_time in .* choose"),
        ({}, {"threads_per_rank": 17}, "4 ranks with 17 threads each need more than the 64 CPUs"),
    ],
)  # fmt: skip
def test_a_campaign_that_does_not_fit_is_refused_with_what_fits(asked, changes, reason):
    with pytest.raises(ValueError, match=reason):
        jobs(campaign_of(jobs=asked, **changes), site_of(partitions=PARTITIONS), FOLDER)


def test_a_device_and_a_chain_that_do_not_fit_the_site_are_refused():
    with pytest.raises(ValueError, match="has gpus_per_node = 0"):
        jobs(campaign_of(device="cuda"), site_of(gpus_per_node=0, gpu_type=None), FOLDER)
    with pytest.raises(ValueError, match="set chain = 1"):
        jobs(campaign_of(jobs={"chain": 2}), site_of(gpu_type=None, gpu_types=["a100"]), FOLDER)


@pytest.mark.parametrize("name", ["a%j", "a\nb", "a'b", 'a"b', "a$b", "a,b", "a:b", "a\\b", "a#b"])
def test_a_folder_that_sbatch_would_read_its_own_way_is_refused(name):
    with pytest.raises(ValueError, match="give --to another folder"):
        jobs(campaign_of(), site_of(), Path("/results") / name)


@pytest.mark.parametrize("value", ["a\n#SBATCH --nodes=9", "a\tb", 'a"b', "a'b", "$(a)", "a\x7f"])
def test_a_directive_cannot_end_its_line(value):
    assert directive("output", "/a b/c") == '--output="/a b/c"'
    with pytest.raises(ValueError, match="a value for sbatch must not have"):
        directive("job-name", value)


def test_a_floor_of_bandwidth_is_a_part_of_the_screening():
    asked = {"preflight": True, "screen": True, "min_all_reduce_gb_per_s": 10}
    first = jobs(campaign_of(jobs=asked), site_of(), FOLDER)[0]
    assert first.screen == ("--device=cuda", "--floor-gb-per-s=10")
    with pytest.raises(ValueError, match="needs screen = true"):
        campaign_of(jobs=asked | {"screen": False})
