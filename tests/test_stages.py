"""The user's own jobs before and after, jobs that continue each other, and how they are sent."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from data.job_samples import campaign_of, site_of, small
from job_runs import STUBS, JobRun, environ_of, made, plain
from pydantic import ValidationError

from lockstep.campaign.campaign import Stage
from lockstep.campaign.folder import Folder
from lockstep.campaign.stages import Stages
from lockstep.slurm.associations import Limit, excesses
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit.job import jobs
from lockstep.slurm.submit.job_spec import sending_script
from lockstep.slurm.submit.submission import Work

FOLDER = Path("/results/ladder")


def stage(name, **more):
    return {"name": name, "command": "true", "folder": "/here"} | more


def waits(campaign, site=None, launches=None, done=()):
    """Return job -> what it waits for, each as HOW NAME."""
    found = jobs(campaign, site or site_of(), FOLDER, launches, done)
    return {
        one.name.removeprefix("ladder-"): [
            f"{wait.how} {wait.job.removeprefix('ladder-')}" for wait in one.after
        ]
        for one in found
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (  # one after another, and the measurements after each
            [stage("fetch", dependency="afterany"), stage("prepare")],
            {
                "fetch": [],
                "prepare": ["afterany fetch"],
                "ladder": ["afterany fetch", "afterok prepare"],
            },
        ),
        (  # on success one after another, on failure by itself
            [
                stage("evaluate", when="after"),
                stage("alarm", when="after", dependency="afternotok"),
                stage("publish", when="after"),
            ],
            {
                "ladder": [],
                "evaluate": ["afterok ladder"],
                "alarm": ["afternotok ladder"],
                "publish": ["afterok ladder", "afterok evaluate"],
            },
        ),
        (  # beside what measures
            [stage("serve", dependency="after"), stage("watch", when="after", dependency="after")],
            {"serve": [], "ladder": ["after serve"], "watch": ["after ladder"]},
        ),
    ],
)
def test_stages_come_before_and_after_what_measures(asked, expected):
    # What runs beside the measurements is sent each time.
    assert waits(campaign_of(jobs={"stage": asked}), done={"serve", "watch"}) == expected


def test_stages_a_preflight_and_a_chain_together():
    asked = [stage("prepare"), stage("evaluate", when="after")]
    asked += [stage("watch", when="after", dependency="after")]  # begins with the chain's first job
    cut = {"stage": asked, "preflight": True, "collect": True, "chain": 3}
    assert waits(campaign_of(jobs=cut)) == {
        "prepare": [],
        "preflight": ["afterok prepare"],
        "ladder": ["afterok preflight"],
        "c2": ["afterok preflight", "afterany ladder"],
        "c3": ["afterok preflight", "afterany c2"],
        "evaluate": ["afterok preflight", "afterok c3"],
        "watch": ["after preflight", "after ladder"],
        "collect": [f"afterany {name}" for name in (
            "prepare", "preflight", "ladder", "c2", "c3", "evaluate", "watch",
        )],
    }  # fmt: skip


def test_a_stage_beside_what_measures_needs_jobs(tmp_path):
    beside = Stage.model_validate(stage("serve", dependency="after"))
    with pytest.raises(ValueError, match="use lockstep submit"):
        Stages((beside,), Folder(tmp_path), print)


def test_what_has_ended_well_is_not_sent_again():
    asked = [
        stage("prepare"),
        stage("evaluate", when="after"),
        stage("alarm", when="after", dependency="afternotok"),
    ]
    campaign = campaign_of(jobs={"stage": asked})
    assert list(waits(campaign, done={"prepare", "evaluate"})) == ["ladder", "evaluate", "alarm"]
    assert waits(campaign, launches=[], done={"prepare"}) == {"evaluate": []}
    assert waits(campaign, launches=[], done={"prepare", "evaluate"}) == {}


@pytest.mark.parametrize(("code", "command"), [(0, "true"), (1, "true"), (0, "another")])
def test_a_stage_is_done_where_its_last_job_ended_well_and_it_reads_alike(tmp_path, code, command):
    before = campaign_of(jobs={"stage": [stage("prepare")]})
    results = Results(tmp_path)
    results.jobs_folder.mkdir()
    results.claim(before, [])
    for number, rc in enumerate((1 - code, code)):
        end = {"job_id": str(number), "job": "ladder-prepare", "exit_code": rc, "ended": number}
        (results.jobs_folder / f"exit-{number}.json").write_text(json.dumps(end))
    now = campaign_of(jobs={"stage": [stage("prepare", command=command)]})
    is_done = code == 0 and command == "true"
    assert Work(now, site_of(), results).done == ({"prepare"} if is_done else set())


def test_a_stage_has_its_own_nodes_time_and_gpus():
    own = {"nodes": 2, "tasks_per_node": 2, "cpus_per_task": 8, "gpus": True, "time": "00:20:00"}
    (job, _) = jobs(campaign_of(jobs={"stage": [stage("prepare", **own)]}), site_of(), FOLDER)
    wanted = {"--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=8", "--gpus-per-node=h100:2"}
    assert wanted | {"--time=00:20:00"} <= set(job.directives)
    assert job.shapes[1][:2] == ("--nodes=2", "--ntasks=4")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"tasks_per_node": 8, "gpus": True}, "tasks_per_node"),
        ({"cpus_per_task": 65}, "CPUs"),
        ({"time": "03:00:00"}, "time"),
    ],
)
def test_a_stage_that_fits_no_node_is_refused(asked, words):
    site = site_of(partitions={"gpu": {"time": "02:00:00"}})
    with pytest.raises(ValueError, match=words):
        jobs(campaign_of(jobs={"stage": [stage("prepare", **asked)]}), site, FOLDER)


@pytest.mark.parametrize(
    "asked",
    [
        [stage("a"), stage("a")],
        [stage("collect")],
        [stage("a", dependency="afternotok")],
        [stage("a/b")],
    ],
)
def test_stages_that_cannot_be_sent_are_refused(asked):
    with pytest.raises(ValidationError):
        campaign_of(jobs={"stage": asked})


def test_the_script_of_a_stage_runs_the_command_where_it_was_sent_from(tmp_path):
    here = tmp_path / "my files"
    here.mkdir()
    results = made(tmp_path / "results")
    command = 'echo "$PWD $LOCKSTEP_RESULTS" > said\nexit 7'
    campaign = small(jobs={"stage": [stage("prepare", command=command, folder=str(here))]})
    run = JobRun(tmp_path, results)
    ended = run.run(campaign, plain(), 0)
    assert ended.returncode == 7, ended.stdout + ended.stderr
    assert (here / "said").read_text().split("\n")[0] == f"{here} {results}"
    assert (run.end()["job"], run.end()["exit_code"]) == ("ladder-prepare", 7)


@pytest.mark.parametrize(("code", "measures"), [(0, False), (75, True)])
def test_a_job_that_goes_on_ends_at_once_where_nothing_is_left(tmp_path, code, measures):
    results = made(tmp_path / "results")
    (results / "jobs" / "ladder.sh").touch()
    end = '{"job_id": "6", "job": "ladder", "exit_code": %d, "stopped": true}'
    (results / "jobs" / "exit-6.json").write_text(end % code)
    run = JobRun(tmp_path, results)
    run.run(small(jobs={"chain": 2}), plain(), 1)
    assert run.has_measured == measures
    if not measures:
        assert (run.end()["job"], run.end()["exit_code"]) == ("ladder-c2", 0)


def test_scripts_are_sent_with_the_ids_of_those_that_they_wait_for(tmp_path):
    sent = [
        SimpleNamespace(name=name, script=Path(script), after=after)
        for name, script, after in (
            ("a", "/j/a.sh", []),
            ("b-r0", "/j/my b.sh", [("a", "afterok")]),
            ("c", "/j/c.sh", [("a", "afternotok"), ("b-r0", "afternotok")]),
            ("d", "/j/d.sh", [("a", "afterany"), ("b-r0", "afterany"), ("d", "singleton")]),
        )
    ]
    stubs = tmp_path / "bin"
    stubs.mkdir()
    (stubs / "sbatch").write_text('#!/bin/bash\necho "$*" >>calls\nwc -l <calls | tr "\\n" ";"\n')
    (stubs / "sbatch").chmod(0o755)
    environ = environ_of(STUBS, tmp_path) | {"PATH": f"{stubs}:/usr/bin:/bin"}
    subprocess.run(
        ["bash", "-c", sending_script(sent)], cwd=tmp_path, env=environ, check=True, timeout=60
    )
    end = "--kill-on-invalid-dep=yes"
    assert (tmp_path / "calls").read_text().splitlines() == [
        "--parsable /j/a.sh",
        f"--parsable --dependency=afterok:1 {end} /j/my b.sh",
        f"--parsable --dependency=afternotok:1?afternotok:2 {end} /j/c.sh",
        f"--parsable --dependency=afterany:1:2,singleton {end} /j/d.sh",
    ]


@pytest.mark.parametrize(("code", "ends"), [("0", 0), ("1", 1)])
def test_a_preflight_fails_where_the_screening_names_something(tmp_path, code, ends):
    run = JobRun(tmp_path, made(tmp_path / "results"))
    campaign = campaign_of(world_sizes=[2], jobs={"preflight": True, "screen": True})
    fails = f'case "$*" in *" screen "*) exit {code} ;; esac'
    assert run.run(campaign, plain(), 0, STUB_DO=fails).returncode == ends
    screening = ["-m", "lockstep", "screen", "--device=cuda"]
    kept = f"--to={run.results}/jobs/preflight-7.json"
    assert run.seen("arguments")[-5:] == [*screening, kept]


@pytest.mark.parametrize(
    ("asked", "is_well", "ran"),
    [
        ([("a", "false", {}), ("b", "true", {})], True, "a"),
        ([("a", "false", {"dependency": "afterany"})], True, "a MEASURED"),
        ([("z", "true", {"when": "after", "dependency": "afternotok"})], False, "MEASURED z"),
        ([("y", "false", {"when": "after"}), ("z", "true", {"when": "after"})], True,
         "MEASURED y"),
        ([("y", "false", {"when": "after"}),
          ("z", "true", {"when": "after", "dependency": "afterany"})], True, "MEASURED y z"),
        ([("a", "true", {"tasks_per_node": 2})], True, "a a MEASURED"),
    ],
)  # fmt: skip
def test_on_this_machine_stages_run_as_their_jobs_would(tmp_path, asked, is_well, ran):
    def tell(name):
        return f"echo {name} >>$LOCKSTEP_RESULTS/ran; "

    made = [
        Stage.model_validate({"name": name, "command": tell(name) + end, "folder": "/"} | more)
        for name, end, more in asked
    ]
    stages = Stages(tuple(made), Folder(tmp_path), print)
    if stages.run_before():
        with (tmp_path / "ran").open("a") as log:
            log.write("MEASURED\n")
        stages.run_after(is_well=is_well, has_measured=True)
    assert (tmp_path / "ran").read_text().split() == ran.split()
    done = [one.name for one, (_, end, _) in zip(made, asked, strict=True)
            if end == "true" and one.name in ran]  # fmt: skip
    assert [one.name for one in made if stages.is_done(one)] == done
    assert stages.run_before() is ("MEASURED" in ran)  # what is done does not run again


def over(limit, stages=(), **site):
    """Return what of a campaign's jobs is over a limit, in facts."""
    made = jobs(campaign_of(jobs={"stage": stages}), site_of(**site), FOLDER)
    found = excesses(made, site_of(**site), [limit])
    return [(one.kind, one.jobs, one.needs) for one in found]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (Limit("MaxJobs", "QOS q", 1), []),  # one after another
        (Limit("MaxSubmit", "QOS q", 1, denies=True), [("refused", ("ladder-post",), 2)]),
        (Limit("MaxWall", "QOS q", 60), [("held", ("ladder", "ladder-post"), 7200)]),
        # two nodes with eight tasks of eight CPUs each
        (Limit("MaxTRES", "QOS q", 64, "cpu"), [("held", ("ladder", "ladder-post"), 128)]),
    ],
)
def test_limits_count_all_that_stages_and_ladders_ask_for(limit, expected):
    wide = {"nodes": 2, "tasks_per_node": 8, "cpus_per_task": 8}
    post = stage("post", when="after", dependency="singleton", **wide)
    assert over(limit, [post], extra_directives=[]) == expected


@pytest.mark.parametrize(
    ("name", "changes"), [("r0", {"jobs": {"share_job": False}}), ("c2", {"jobs": {"chain": 2}})]
)
def test_a_stage_takes_the_name_of_no_other_job(name, changes):
    asked = changes.get("jobs", {}) | {"stage": [stage(name)]}
    with pytest.raises(ValueError, match=f"{name}'; give the stage another name"):
        jobs(campaign_of(repeats=2, jobs=asked), site_of(), FOLDER)
