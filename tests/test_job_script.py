"""Batch scripts as they run, with stand-ins for Slurm, Apptainer and Python."""

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from data.job_samples import CONTAINER, campaign_of, small
from job_runs import LAUNCH, JobRun, made, plain, with_real_stat
from launched import until

from lockstep.campaign.campaign import common_options, own_options
from lockstep.slurm.submit.job import jobs, profile, settle
from lockstep.slurm.submit.script import library, render

pytestmark = pytest.mark.slow  # each runs a whole script, of some dozen processes

ALL = {"preflight": True, "collect": True}
COLLECT = 2  # which of these jobs


@pytest.fixture
def job(tmp_path):
    return JobRun(tmp_path, made(tmp_path / "results"))


def is_well(ended):
    return (ended.returncode, ended.stderr) == (0, "")


# What a rank gets


def test_a_script_starts_what_was_meant(job):
    (spec,) = jobs(small(), plain(), job.results)
    # What a job around it asked for is not for its steps.
    names = ("MEM_PER_CPU", "GPUS_PER_TASK", "TRES_PER_TASK", "GPU_BIND", "DISTRIBUTION", "GPUS")
    outer = {f"SLURM_{name}": "outer" for name in (*names, "CLUSTERS", "CPU_BIND_TYPE")}
    assert is_well(job.run(**outer, PYTHONPATH="outer"))
    assert "outer" not in job.environment.values()
    results = job.results
    binds = (f"--bind={results}", "--bind=/scratch")
    assert job.seen("binds") == [
        *("--cleanenv", "--no-eval", "--nv", *binds, "--no-home"),
        "/images/lockstep.sif",
    ]
    words = job.seen("arguments")
    assert words[:3] == ["-m", "pytest", "/opt/lockstep/bench"]
    assert sorted(words[3:]) == sorted(
        [
            *common_options(settle(small(), plain())),
            *own_options(spec.launches[0]),
            *("--label=site=here", "--resume", f"--stop-file={results}/jobs/stop-7"),
            f"--journal={results}/launches/w1-r0/journal.jsonl",
        ]
    )
    own = {"SLURM_PROCID", "SLURM_NTASKS", "LOCKSTEP_LAUNCHER", "CUDA_VISIBLE_DEVICES"}
    assert own | {"NCCL_DEBUG"} <= set(job.in_image)
    assert "STRANGE" not in job.in_image
    assert job.in_image["LOCKSTEP_IMAGE_SHA256"] == "0123abcd"
    end = job.end()
    assert end.pop("ended").endswith("Z")
    facts = {"job_id": "7", "job": spec.name, "exit_code": 0}
    assert end == facts | {"stopped": False, "lost": "", "mend": ""}


def test_what_the_site_s_lines_export_reaches_the_image_or_is_recorded(job):
    lines = """
        export NCCL_IB_HCA='mlx5_0 mlx5_1' FI_PROVIDER=cxi UCX_TLS=rc RCCL_MSCCL_ENABLE=0
        export GLOO_SOCKET_IFNAME=ib0 HSA_ENABLE_SDMA=0
        export MY_TOOL=x OMP_PROC_BIND=true PATH=$PATH:/opt/tool
        UNSEEN=1"""
    site = plain(shell_before=lines, env={"MY_OWN": "1"})
    assert is_well(job.run(site=site, OMP_PROC_BIND="false", OMP_PLACES="cores"))
    assert job.in_image["NCCL_IB_HCA"] == "mlx5_0 mlx5_1"
    steering = {"FI_PROVIDER", "UCX_TLS", "RCCL_MSCCL_ENABLE", "HSA_ENABLE_SDMA"}
    assert steering | {"GLOO_SOCKET_IFNAME", "MY_OWN"} <= set(job.in_image)
    dropped = job.in_image["LOCKSTEP_DROPPED"].split()
    assert sorted(dropped) == ["MY_TOOL", "OMP_PROC_BIND", "PATH"]


def test_a_site_s_own_functions_and_ours_are_apart(job):
    names = ("say", "begin", "enter", "launch", "step", "finish", "after", "end")
    assert is_well(
        job.run(site=plain(shell_before="\n".join(f"{name}() {{ exit 9; }}" for name in names)))
    )


def test_perf_writes_a_file_for_each_rank(job):
    assert is_well(job.execute(render(profile(small(), plain(), job.results, "perf"), plain())))
    folder = job.results / "profiles" / "perf-7" / "w1-r0"
    (output,) = (word for word in job.seen("tool") if word.startswith("--output"))
    assert re.fullmatch(rf"--output={re.escape(str(folder))}/step-\d*-rank-0\.data", output)
    assert f"--journal={folder}/journal.jsonl" in job.seen("arguments")


@pytest.mark.parametrize(
    ("runtime", "image", "sha256"),
    [("pyxis", "/images/a.sqsh", "0123abcd"), ("podman-hpc", "lockstep:1", "feedcafe")],
)
def test_a_rank_of_any_runtime_measures_and_knows_its_image(job, runtime, image, sha256):
    container = {"runtime": runtime, "image": image}
    assert is_well(job.run(small(world_sizes=[2]), plain(container=container)))
    assert job.seen("arguments")[:3] == ["-m", "pytest", "/opt/lockstep/bench"]
    known = {"LOCKSTEP_IMAGE": image, "LOCKSTEP_IMAGE_SHA256": sha256}
    assert known.items() <= job.environment.items()
    assert job.seen("store").count("lockstep.ranks.store") == 1  # its input has not ended
    assert not [name for name in job.environment if name.startswith("_") and name != "_"]


# What a node lacks


def test_an_image_is_not_read_while_it_is_as_it_was_built(job):
    image = job.folder / "built.sif"
    image.write_text("image")
    of_file, site = image.stat(), plain(container={"image": str(image)})
    record = {"sha256": "abcd", "file_stat": f"5 {int(of_file.st_mtime)} {of_file.st_ino}"}
    image.with_name("built.sif.json").write_text(json.dumps(record, indent=1))
    path = with_real_stat(job.folder)
    assert is_well(job.run(site=site, PATH=path))
    assert job.environment["LOCKSTEP_IMAGE_SHA256"] == "abcd"
    assert not (job.folder / "seen.hashed").exists()
    image.write_text("other")
    os.utime(image, (0, 0))
    ended = job.run(site=site, PATH=path)
    assert (ended.returncode, "has changed since it was built" in ended.stderr) == (78, True)


def test_an_image_that_is_gone_ends_the_job(job):
    path = with_real_stat(job.folder)
    ended = job.run(small(world_sizes=[2]), PATH=path, SLURMD_NODENAME="node1")
    assert ended.returncode == job.end()["exit_code"] == 78
    assert ended.stderr.endswith(" image /images/lockstep.sif was not found on host node1\n")
    assert ended.stderr.count("\n") == 1
    assert job.end()["mend"] == "container.image"
    assert not job.has_measured


@pytest.mark.parametrize(
    ("keys", "message", "key"),
    [
        ({"scratch": "$NO_SUCH_FOLDER/mine"}, "uses the variable NO_SUCH_FOLDER, but", "scratch"),
        ({"shell_before": "false"}, "", "shell_before"),
    ],
)
def test_what_the_job_lacks_ends_it_by_its_key_after_the_last_lines(job, keys, message, key):
    ended = job.run(site=plain(**{"scratch": str(job.folder), "shell_after": "echo last"} | keys))
    assert (ended.stdout, message in ended.stderr) == ("last\n", True)
    assert job.end()["exit_code"] == ended.returncode != 0
    assert job.end()["mend"] == key
    assert not job.has_measured


@pytest.fixture
def node(tmp_path):
    (tmp_path / "my scratch").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one").write_text("data")
    (tmp_path / "image.sif").write_text("an image")
    return JobRun(tmp_path, made(tmp_path / "results"))


def image_of(node):
    return CONTAINER | {"image": str(node.folder / "image.sif")}


KEYS = {"image.sif": "container.image", "data set": "container.binds", "my suite": "suite"}


@pytest.mark.parametrize("lacks", KEYS)
def test_what_a_node_lacks_is_recorded_by_its_key(node, lacks):
    path = node.folder / lacks
    binds = [f"{path}:/data:ro"] if lacks == "data set" else []
    more = {"suite": str(path)} if lacks == "my suite" else {}
    site = plain(container=image_of(node) | {"binds": binds}, **more)
    script = node.script(site=site)
    if lacks == "image.sif":  # it goes away once the job has begun
        script = script.replace("\nlockstep_launch", "\nrm $image\nlockstep_launch")
    assert node.execute(script, PATH=with_real_stat(node.folder)).returncode == 1
    key = KEYS[lacks]
    assert node.end()["mend"] == key
    log = (node.results / "launches/w1-r0/log.txt").read_text()
    assert log == f"lockstep: error: {key} {path} was not found on host node1\n"
    assert not node.has_measured
    assert not list((node.results / "jobs").glob(".mend-*"))


def test_an_image_that_is_not_as_it_was_built_is_not_run(node):
    site = plain(container=image_of(node))
    record = node.folder / "image.sif.json"
    record.write_text('{\n "sha256": "0123abcd",\n "size_bytes": 8\n}\n')
    assert is_well(node.run(site=site))
    record.write_text(record.read_text().replace("0123", "ffff"))
    (node.folder / "seen.arguments").unlink()
    ended = node.run(site=site)
    assert ended.returncode == 78
    assert f"{record} records ffffabcd" in ended.stderr
    assert not node.has_measured


# What a job's shell is in: modules, and the site's own lines

# What `module` is to a job's shell: a function that changes its variables.
MODULE = """() {
    echo "$@" >>"$SEEN.modules"
    if [ "$1" = load ]; then
        [ "$2" != absent ] && export PYTHONPATH=$ROOM/$2 OF_NO_USE=$unset_by_all
    fi
}"""


def run_with_modules(job, *modules, before="ROOM=/sw", module=MODULE):
    site = plain(container=None, modules=modules, suite="/suite", shell_before=before)
    return job.run(site=site, **{"BASH_FUNC_module%%": module})


def test_what_modules_put_on_the_path_stays_behind_the_suite(job):
    assert is_well(run_with_modules(job, "torch", before="module use /own; ROOM=/sw${unset_too}"))
    assert job.environment["PYTHONPATH"] == "/suite:/sw/torch"
    # What the site's own lines load is not purged.
    assert (job.folder / "seen.modules").read_text() == "purge\nuse /own\nload torch\n"


def test_a_module_that_cannot_be_loaded_ends_the_job(job):
    assert run_with_modules(job, "absent").returncode == 1
    assert (job.end()["exit_code"], job.end()["mend"]) == (1, "modules")
    assert not job.has_measured


@pytest.mark.parametrize(("after", "code"), [("echo bye", 0), ("false\necho bye", 1)])
def test_the_lines_after_run_and_count(job, after, code):
    ended = job.run(site=plain(shell_after=f"echo last\n{after}"))
    assert (ended.returncode, "last\n" in ended.stdout) == (code, True)
    assert job.end()["exit_code"] == code


def test_the_end_is_on_record_before_what_slurm_may_cut(job):
    assert is_well(job.run(site=plain(shell_after="cp jobs/exit-7.json jobs/before.json")))
    # Cut here, it has not ended well.
    assert json.loads((job.results / "jobs" / "before.json").read_text())["exit_code"] == 1
    assert job.end()["exit_code"] == 0


# Where ranks meet


def test_a_store_that_died_is_started_again_before_the_next_step(job):
    kills = 'kill "$(cat "$SEEN.store-pid")"; sleep 0.2'
    assert is_well(job.run(campaign_of(repeats=1), STUB_DO=kills))
    assert job.seen("store").count("lockstep.ranks.store") == 4


def test_a_store_that_does_not_come_ends_the_job_with_what_it_said(job):
    ended = job.run(small(world_sizes=[2]), NO_STORE="FATAL: no such image")
    assert ended.returncode == job.end()["exit_code"] == 1
    assert "FATAL: no such image\n" in ended.stdout
    assert not job.has_measured


def test_the_store_ends_with_the_script_also_where_that_is_killed(job):
    rank = 'echo $$ >"$SEEN.rank"; exec sleep 60'
    process = job.start(job.script(small(world_sizes=[2])), STUB_DO=rank)
    until(lambda: (job.folder / "seen.rank").exists(), "a rank")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (store,) = [child for child in children if command_of(child) == ["cat"]]
    process.kill()
    process.communicate()
    until(lambda: command_of(store) != ["cat"], "the store's end")
    assert process.returncode == -signal.SIGKILL
    os.kill(int((job.folder / "seen.rank").read_text()), signal.SIGTERM)


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


# How a job ends


def test_the_warning_tells_the_ranks_and_lets_their_launch_end(job):
    script = job.script(campaign_of()).replace("set -euo", "export BATCH=$$; set -euo", 1)
    # A rank that ends in order, with 75, once it finds the stop file.
    rank = 'kill -USR1 "$BATCH"; until [ -e jobs/stop-7 ]; do sleep 0.05; done; exit 75'
    ended = job.execute(script, STUB_DO=rank)
    assert ended.returncode == 75
    assert (ended.stdout.count("srun ended with 75"), ended.stdout.count("not started")) == (1, 7)
    assert job.end()["stopped"] is True


def test_a_stop_file_stops_the_job_unless_it_was_left(job):
    (job.results / "jobs" / "stop-7").touch()
    ended = job.run(
        campaign_of(), STUB_DO="[ ! -e jobs/stop-7 ] || exit 1; touch jobs/stop-7; exit 75"
    )
    assert ended.returncode == 75
    assert ended.stdout.count("not started") == 7


def test_after_a_node_is_lost_no_launch_begins(job):
    message = "Task launch for StepId=7.1 failed on node node2: timeout"
    ended = job.run(campaign_of(), STUB_CODE="1", SAID=message)
    assert ended.returncode == 1
    assert (ended.stdout.count("srun ended with 1"), ended.stdout.count("not started")) == (1, 7)
    end = job.end()
    assert (end["exit_code"], end["stopped"], end["lost"]) == (1, False, "node2")


def test_a_node_that_is_busy_is_not_lost(job):
    message = "Unable to create step for job 7: Job/step already completing or completed"
    ended = job.run(campaign_of(), STUB_CODE="1", SAID=message)
    assert ended.returncode == 1
    assert ended.stdout.count("srun ended with 1") == 8
    assert job.end()["lost"] == ""
    words = job.seen("srun")
    shared = {"--overlap", "--mem=0", "--gres=none"}  # what a step before it still holds
    assert shared <= set(words[: words.index("true")])


# What follows a session

FRESH = json.dumps(LAUNCH | {"expected": ["a", "b"]})
RESUMED = json.dumps(LAUNCH | {"expected": ["a", "b"], "resumed": True, "skips_failed": True})
IN_FLIGHT = '{"kind": "begin", "case": "a"}'
GOOD_B = '{"kind": "case", "case": "b", "benchmark": {}}'
BAD = '{"kind": "fail", "case": "a", "reason": "because"}'


def run_sessions(job, *sessions):
    """Return how a job of one launch ended, and what each of its later sessions was told."""
    folder = job.results / "sessions"
    folder.mkdir()
    for number, (lines, output, code) in enumerate(sessions):
        (folder / f"{number}.lines").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{number}.said").write_text(output)
        (folder / f"{number}.next").write_text(str(code))
    journal = job.results / "launches" / "w1-r0" / "journal.jsonl"
    body = """
        for next in sessions/*.next; do break; done
        own=${next%.next}; mv "$next" "$own.done"
        cat "$own.lines" >>"$JOURNAL"; cat "$own.said"
        sed -n "s/^lockstep: //p" "$own.said" >"${JOURNAL%/*}/rank-1.reason" # as a rank does
        exit "$(cat "$own.done")" """
    ended = job.run(STUB_DO=body, JOURNAL=str(journal))
    assert ended.stderr == ""
    assert list(folder.glob("*.next")) == []
    words = [
        word for word in job.seen("arguments") if word.startswith(("--skip-failed", "--after"))
    ]
    return ended, words


def test_after_a_step_that_ended_badly_the_other_cases_are_measured(job):
    killed = "srun: error: node2: task 1: Killed\nsrun: error: node1: task 0: Terminated\n"
    ended, words = run_sessions(
        job,
        ([FRESH, IN_FLIGHT], killed, 137),
        ([RESUMED, BAD], "lockstep: rank 1 on node1: rank 0 is lost\n" + killed, 70),
        ([RESUMED, GOOD_B], "", 1),
    )
    assert ended.returncode == 1  # a case has failed
    assert words == [
        *("--skip-failed", "--after=node2: task 1: Killed"),
        *("--skip-failed", "--after=rank 1 on node1: rank 0 is lost"),
    ]


def test_what_follows_is_asked_again_and_what_an_image_prints_before_it_is_left_out(job):
    assert is_well(job.run(STUB_NEXT="echo welcome; [ -e asked ] || { touch asked; exit 1; }"))


def test_a_journal_that_cannot_be_read_fails_its_launch_alone(job):
    spoil = 'case "$*" in *w1-r0*) echo spoilt >launches/w1-r0/journal.jsonl; exit 4 ;; esac'
    assert job.run(campaign_of(repeats=1), STUB_DO=spoil).returncode == 1
    assert len(job.launches()) == 4


def test_a_log_that_was_flooded_keeps_its_beginning_and_its_end(job):
    flood = "echo first; head -c 70000000 /dev/zero | tr '\\0' x; echo; echo last"
    assert is_well(job.run(STUB_DO=flood))
    text = (job.results / "launches" / "w1-r0" / "log.txt").read_text()
    assert text.startswith("first\nxxx")
    assert text.endswith("x\nlast\n")
    assert "\nlockstep: this log had 70000012 bytes; only the first and last 1048576 " in text
    assert len(text) < 2_200_000


# The jobs that do not measure


def test_a_collect_job_asks_accounting_outside_the_image(job):
    lines = ['{"uuid": "a"}', '{"uuid": "a", "id": "17"}', '{"uuid": "b", "id": "18"}']
    (job.results / "jobs" / "submitted.jsonl").write_text("\n".join(lines) + "\n")
    (job.results / "jobs" / "points-w2-9_2.out").touch()  # of an array that was sent by hand
    assert is_well(job.run(campaign_of(jobs=ALL), index=COLLECT))
    assert (job.folder / "seen.sacct").read_text().endswith(" --jobs=9,17,18\n")
    assert "7.batch|7.batch|RUNNING\n" in (job.results / "jobs" / "sacct.txt").read_text()
    status = ["-m", "lockstep", "status", "--collect", str(job.results)]
    report = ["-m", "lockstep", "report", str(job.results)]
    assert job.seen("arguments") == [*status, *report]
    assert "--nv" not in job.seen("binds")


@pytest.mark.parametrize(("behind", "num_asked"), [(1, 2), (9, 3)])
def test_a_collect_job_asks_again_until_accounting_has_heard_of_the_end(job, behind, num_asked):
    made(job.results, "in 0 1 2 4 8 15;", "in 0 0 0;")
    (job.results / "jobs" / "submitted.jsonl").write_text('{"uuid": "a", "id": "17"}\n')
    ended = job.run(campaign_of(jobs=ALL), index=COLLECT, BEHIND=str(behind))
    assert is_well(ended)
    assert (job.folder / "seen.sacct").read_text().count("\n") == num_asked
    assert ("not show the end of jobs 17_1" in ended.stdout) is (behind == 9)


@pytest.mark.parametrize("sent", [None, '{"uuid": "a", "id": "17"}\n'])
def test_a_collect_job_without_an_answer_keeps_what_it_had(job, sent):
    (job.results / "jobs" / "sacct.txt").write_text("before\n")
    if sent:
        (job.results / "jobs" / "submitted.jsonl").write_text(sent)
    assert job.run(campaign_of(jobs=ALL), index=COLLECT, SACCT_CODE="1").returncode == 0
    assert (job.results / "jobs" / "sacct.txt").read_text() == "before\n"


# Staging


def staged(node, **changes):
    facts = {"scratch": str(node.folder / "my scratch"), "stage_in": [str(node.folder / "set")]}
    return plain(**facts | {"stage_image": True, "container": image_of(node)} | changes)


# What a rank does on a node: it reads what was staged, and leaves a file.
RANK = 'cat "$LOCKSTEP_SCRATCH/data/set/one"; echo left >"$LOCKSTEP_SCRATCH/out/profile"; '


def staging_of(node):
    return json.loads((node.results / "jobs" / "staging.jsonl").read_text())


def is_clean(node):
    return list((node.folder / "my scratch").iterdir()) == []


def profile_of(node):
    return (node.results / "jobs/out-7/node1/profile").read_text()


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("3", 1)])
def test_a_job_stages_in_and_out_also_where_it_fails(node, code, expected):
    (node.folder / "set").chmod(0o555)  # as data often are
    without_bash_5 = "unset EPOCHREALTIME EPOCHSECONDS SRANDOM\n"
    script = without_bash_5 + node.script(site=staged(node))
    ended = node.execute(script, STUB_DO=RANK, STUB_CODE=code)
    assert (ended.returncode, ended.stderr) == (expected, "")
    scratch = f"{node.folder}/my scratch/lockstep-7"
    assert node.seen("binds")[-2:] == [f"--bind={scratch}", f"{scratch}/image.sif"]
    assert f"--data-root={scratch}/data" in node.seen("arguments")
    assert (node.results / "launches/w1-r0/log.txt").read_text() == "data"
    assert profile_of(node) == "left\n"
    assert is_clean(node)
    assert staging_of(node)["cache_hits"] is None
    assert 0 < staging_of(node)["stage_in_s"] < 60
    assert (node.folder / "image.sif").exists()


def test_what_a_job_has_staged_the_next_one_finds_whole(node):
    site = staged(node, stage_cache=str(node.folder / "my cache"))
    source = node.folder / "set" / "one"
    image = node.folder / "image.sif"
    image.rename(node.folder / "image-2.sif")
    image.symlink_to("image-2.sif")

    def next_job(content="data"):
        (node.results / "jobs" / "staging.jsonl").unlink(missing_ok=True)
        ended = node.run(site=site, STUB_DO=RANK)
        assert (ended.returncode, is_clean(node)) == (0, True)
        log = (node.results / "launches/w1-r0/log.txt").read_text()
        assert log.endswith(content)
        record = staging_of(node)
        (how,) = re.findall("staged: cache (hit|miss) on node1", ended.stderr)
        assert (record["cache_hits"], record["cache_misses"]) == (how == "hit", how == "miss")
        return how

    assert [next_job(), next_job()] == ["miss", "hit"]
    (cache,) = (node.folder / "my cache").iterdir()
    assert f"--bind={cache}:{cache}:ro" in node.seen("binds")
    for one in cache.glob("*/one"):  # as a site cleans up
        one.unlink()
    assert [next_job(), next_job()] == ["miss", "hit"]
    assert len(list(cache.glob("*.old-*"))) == 1  # another job may be reading it
    assert not [one for one in cache.iterdir() if one.is_symlink()]
    source.write_text("other data")
    assert [next_job("other data"), next_job("other data")] == ["miss", "hit"]


def test_a_copy_of_the_image_that_differs_ends_the_job(node):
    (node.results / "jobs/image.sha256").write_text("ffff\nfacts\n")
    stale = node.folder / "my cache" / f"lockstep-cache-{os.getuid()}" / "stale"
    stale.mkdir(parents=True, mode=0o555)
    os.utime(stale, (0, 0))
    ended = node.run(site=staged(node, stage_cache=str(node.folder / "my cache")))
    assert (ended.returncode, "has SHA-256 0123abcd, not ffff" in ended.stderr) == (1, True)
    assert is_clean(node)
    assert not node.has_measured
    assert staging_of(node)["stage_in_s"] is None
    assert list(stale.parent.iterdir()) == []


def test_data_that_are_not_there_end_the_job(node):
    ended = node.run(site=staged(node, stage_in=["/nowhere"]))
    assert (ended.returncode, "'/nowhere': No such file" in ended.stderr) == (1, True)
    assert is_clean(node)


def test_a_scratch_folder_of_another_s_ends_the_job(node):
    (node.folder / "elsewhere").mkdir()
    (node.folder / "my scratch/lockstep-7").symlink_to(node.folder / "elsewhere")
    ended = node.run(site=staged(node))
    assert (ended.returncode, "lockstep-7 belongs to another" in ended.stderr) == (1, True)
    assert list((node.folder / "elsewhere").iterdir()) == []


def test_a_job_that_is_ended_still_stages_out(node):
    script = node.script(campaign_of(), staged(node, shell_after="echo last"))
    process = node.start(script, STUB_DO=RANK + "sleep 60")
    until((node.folder / "my scratch/lockstep-7/out/profile").exists, "a rank's file")
    process.send_signal(signal.SIGTERM)
    assert "last\n" in process.communicate(timeout=20)[0]
    assert process.returncode == 143
    assert profile_of(node) == "left\n"
    assert is_clean(node)
    assert (node.end()["exit_code"], node.end()["stopped"]) == (143, True)
    assert len(node.launches()) == 1


def leave(folder):
    """Start what a node's task does at the end of a job, for the scratch folder in FOLDER."""
    text = re.search(r"^leave='(.*?)'$", library(), re.MULTILINE | re.DOTALL)[1]
    return subprocess.Popen(
        ["bash", "-c", text, "leave", folder / "scratch", folder, "7"],
        env=os.environ | {"SLURMD_NODENAME": "node1"},
    )


def test_what_a_copy_that_died_left_is_copied(tmp_path):
    (tmp_path / "scratch.node1" / "out").mkdir(parents=True)
    (tmp_path / "scratch.node1" / "out" / "trace").write_text("kept")
    assert leave(tmp_path).wait(10) == 0
    assert (tmp_path / "out-7" / "node1" / "trace").read_text() == "kept"
    assert not (tmp_path / "scratch.node1").exists()
    assert leave(tmp_path).wait(10) == 0  # nothing is left to do


def test_a_copy_that_fails_is_no_success_to_who_waits_for_it(tmp_path):
    mine = tmp_path / "scratch.node1"
    mine.mkdir()
    descriptor = os.open(mine, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    waiting = leave(tmp_path)
    time.sleep(0.5)
    assert waiting.poll() is None
    mine.rename(tmp_path / "scratch")
    os.close(descriptor)
    assert waiting.wait(10) == 1
