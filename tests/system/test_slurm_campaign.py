"""Campaigns on the testbed: a real Slurm, a real image, an ordinary user on a login node."""

import json
import re
import shutil

import launched
import pytest
import torch
from cluster import (
    IMAGE,
    ROOT,
    SHARED,
    as_user,
    done,
    give,
    need_base,
    need_image,
    site_text,
    unpack_checkout,
)

from lockstep.measure.step.precision import is_emulated

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PATIENCE_S = 600
# A look costs a second of a core, which the ranks want, too; one at the queue, a hundredth.
POLL_S = 4
QUEUE_POLL_S = 0.5
CAMPAIGN = """schema = 1
name = "campaign"
studies = ["strong", "weak"]
world_sizes = [1, 2, 4]
repeats = 2
size = "smoke"
device = "cpu"
threads_per_rank = 1
[jobs]
"""
# Fewer jobs, so that the test is shorter.
ONE_JOB = "share_job = true\n"
GPUS = 'gpus_per_node = 2\ngpu_type = "fake"\n'


@pytest.fixture(scope="module", autouse=True)
def testbed():
    need_image()


def write(path, text):
    path.write_text(text)
    give(path)


@pytest.fixture
def folder(request):
    """A folder of the user's that all nodes see, with a campaign file and a site file."""
    made = SHARED / re.sub(r"\W+", " ", request.node.name)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    (made / "site.toml").write_text(site_text())
    (made / "campaign.toml").write_text(CAMPAIGN)
    give(made)
    yield made
    lockstep(made, "cancel", "results/campaign")
    shutil.rmtree(made)


def change(path, **keys):
    """Set top-level keys of a TOML file."""
    kept = [line for line in path.read_text().splitlines() if line.partition(" =")[0] not in keys]
    set_ = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    write(path, "\n".join([*set_, *kept, ""]))


def lockstep(folder, *arguments):
    return as_user("lockstep", *arguments, cwd=folder)


def submit(folder):
    return done(lockstep(folder, "submit", "campaign.toml", "--site", "site.toml"))


def status(folder):
    """Return how the campaign stands; a job that ended badly has its own exit code."""
    ended = lockstep(folder, "status", "results/campaign", "--json")
    assert ended.returncode in (0, 1), ended.stderr
    return json.loads(ended.stdout)


def until(folder, holds):
    """Wait until something holds of the campaign's status, and return that."""
    found = {}

    def look():
        found.update(status(folder))
        return holds(found)

    try:
        launched.until(look, "the campaign", PATIENCE_S, POLL_S)
    except RuntimeError:
        pytest.fail(f"{found}\n{texts(folder)}")
    return found


def texts(folder):
    """Return all that the jobs and launches said."""
    found = [path for path in folder.rglob("*") if path.suffix in (".out", ".txt")]
    return "\n".join(f"{path}:\n{path.read_text()}" for path in found)


def until_ended(folder):
    """Wait until every job of the campaign has left the queue, and return its status then."""
    path = folder / "results" / "campaign" / "jobs" / "submitted.jsonl"
    entries = map(json.loads, path.read_text().splitlines())
    ids = ",".join(entry["id"] for entry in entries if entry.get("id"))
    # Slurm forgets a job that ended long ago; then it is in no queue, either.
    queue = ("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING", f"--jobs={ids}")
    launched.until(lambda: not as_user(*queue).stdout, "the queue", PATIENCE_S, QUEUE_POLL_S)
    return until(folder, has_ended)


def has_ended(found):
    running = {"PENDING", "RUNNING", "COMPLETING", "unknown"}
    return not running & {job["state"] for job in found["jobs"]}


def states(found):
    return {job["job"]: job["state"] for job in found["jobs"]}


def sent(folder):
    """Return (job, launches) of every job that was sent."""
    path = folder / "results" / "campaign" / "jobs" / "submitted.jsonl"
    entries = map(json.loads, path.read_text().splitlines())
    return [(entry["job"], entry["launches"]) for entry in entries if "launches" in entry]


def begin(folder, num_complete=1):
    """Send the campaign, and return its complete launches once there are so many."""
    submit(folder)
    found = until(folder, lambda now: now["num_complete"] >= num_complete)
    return {name for name, one in found["launches"].items() if one["complete"]}


def journals(folder):
    """Return launch -> how often each of its cases was measured."""
    found = {}
    for path in (folder / "results" / "campaign" / "launches").glob("*/journal.jsonl"):
        entries = map(json.loads, path.read_text().splitlines())
        found[path.parent.name] = [e["case"] for e in entries if e["kind"] == "case"]
    return found


def read_result(folder, name):
    path = folder / "results" / "campaign" / "launches" / name / "result.json"
    return json.loads(path.read_text())


def check_complete(folder, num_launches):
    """Check that every launch was measured, and no case of it twice."""
    found = until_ended(folder)
    assert found["num_complete"] == found["num_planned"] == num_launches, texts(folder)
    for name, cases in journals(folder).items():
        assert len(set(cases)) == len(cases), name


def test_a_campaign_runs_from_its_preflight_to_its_report_although_a_job_is_killed(folder):
    text = CAMPAIGN.replace("repeats = 2", "repeats = 1")
    write(folder / "campaign.toml", text + ONE_JOB + "preflight = true\ncollect = true\n")
    planned = done(lockstep(folder, "plan", "campaign.toml", "--site", "site.toml", "--json"))
    after = {job["job"]: job["after"] for job in json.loads(planned)["jobs"]}
    before, middle, last = after
    assert (after[before], after[middle]) == ([], [before])
    assert middle in after[last]

    first = begin(folder)
    refused = lockstep(folder, "submit", "campaign.toml", "--site", "site.toml")
    assert refused.returncode == 2, refused.stdout
    done(lockstep(folder, "cancel", "results/campaign", "--job", middle))
    found = until_ended(folder)
    wanted = {before: "COMPLETED", middle: "CANCELLED", last: "COMPLETED"}
    assert states(found) == wanted, texts(folder)

    done(lockstep(folder, "resume", "results/campaign"))
    again = dict(sent(folder)[3:])[middle]
    assert not first & set(again)
    assert again
    check_complete(folder, num_launches=3)

    done(lockstep(folder, "status", "--collect", "results/campaign"))
    check_collected(folder, middle)
    said = done(lockstep(folder, "report", "results/campaign"))
    for study in ("strong", "weak"):
        # One launch of a size has no interval, so a line holds the study's name as well.
        assert re.findall(rf"^{study} +(\d+) ", said, re.MULTILINE) == ["1", "2", "4"], said
    page = (folder / "results" / "campaign" / "report.html").read_text()
    assert "CANCELLED" in page
    keep(folder)


def check_collected(folder, middle):
    results = folder / "results" / "campaign"
    for name, num_nodes in {"w1-r0": 1, "w2-r0": 1, "w4-r0": 2}.items():
        block = read_result(folder, name)["lockstep"]
        assert (f"w{block['world_size']}-", block["num_nodes"]) == (name[:3], num_nodes)
        built = json.loads(IMAGE.with_suffix(".sif.json").read_text())
        assert block["provenance"]["image_sha256"] == built["sha256"]
    rows = json.loads((results / "accounting.json").read_text())["jobs"]
    of_ladder = [row["accounting"] for row in rows if row["job"] == middle]
    assert [account["state"] for account in of_ladder] == ["CANCELLED", "COMPLETED"]
    # It began once its preflight had ended: that is no wait in the queue.
    assert of_ladder[0]["eligible"] > of_ladder[0]["submitted"]
    for account in of_ladder:
        assert account["elapsed_s"] > 0
        held_until = max(account["submitted"], account["eligible"])
        assert account["queue_wait_s"] == account["started"] - held_until
        assert account["max_rss_bytes"] > 1e8


def keep(folder):
    """Leave the campaign to CI, which shows its report."""
    kept = SHARED / "campaign"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder / "results" / "campaign", kept)
    give(kept)


@pytest.mark.chaos
def test_ranks_that_fit_on_one_node_are_measured_spread_over_two(folder):
    change(folder / "campaign.toml", world_sizes=[2], repeats=1, studies=["weak"])
    change(folder / "site.toml", max_ranks_per_node=1)
    submit(folder)
    check_complete(folder, num_launches=1)
    done(lockstep(folder, "status", "--collect", "results/campaign"))
    block = read_result(folder, "w2-r0")["lockstep"]
    assert (block["world_size"], block["num_nodes"]) == (2, 2)


@pytest.mark.chaos
def test_a_sweep_is_one_array(folder):
    change(folder / "campaign.toml", world_sizes=[1], repeats=1, studies=["precision"])
    jobs = 'allocation = "array"\nmax_running = 4\n'
    write(folder / "campaign.toml", (folder / "campaign.toml").read_text() + jobs)
    submit(folder)
    ((name, launches),) = sent(folder)
    assert len(set(launches)) == 4
    check_complete(folder, num_launches=4)
    (row,) = status(folder)["jobs"]
    assert row["elements"] == {"COMPLETED": 4}, name
    done(lockstep(folder, "status", "--collect", "results/campaign"))
    skipped = [case for one in launches for case in read_result(folder, one)["lockstep"]["skipped"]]
    cases = {case for measured in journals(folder).values() for case in measured}
    assert len(cases) + len(skipped) == 4  # fp16 asks for a GPU
    assert len(cases) == (1 if is_emulated("bf16", torch.device("cpu")) else 2)
    done(lockstep(folder, "report", "results/campaign"))


def test_a_torchrun_on_each_of_two_nodes_starts_ranks_that_fit_on_one(folder):
    change(folder / "campaign.toml", world_sizes=[2], repeats=1, studies=["weak"])
    change(folder / "site.toml", launcher="torchrun", max_ranks_per_node=1)
    submit(folder)
    check_complete(folder, num_launches=1)
    done(lockstep(folder, "status", "--collect", "results/campaign"))
    block = read_result(folder, "w2-r0")["lockstep"]
    assert (block["world_size"], block["num_nodes"]) == (2, 2)
    assert block["provenance"]["launcher"] == "torchrun"


@pytest.mark.chaos
def test_a_rendered_script_is_sent_by_hand_from_anywhere(folder):
    change(folder / "campaign.toml", world_sizes=[1], repeats=1, studies=["weak"])
    site = (folder / "site.toml").read_text()
    before = 'shell_before = "export NCCL_IB_HCA=mlx5_9 OMP_PROC_BIND=true"\n'
    write(folder / "site.toml", before + site + "MY_TEXT = 'a $(touch hostile) `touch hostile`'\n")
    made = lockstep(folder, "submit", "--by-hand", "campaign.toml", "--site", "site.toml")
    (script,) = done(made).splitlines()
    # Apptainer would run what a variable that it is handed says, and Slurm hands on this name.
    assert f"Next:\n  sbatch {script}\n" in done(lockstep(folder, "status", "results/campaign"))
    elsewhere = folder / "sub $(touch hostile)"
    done(as_user("mkdir", elsewhere))
    job_id = done(as_user("sbatch", "--parsable", "--wait", script, cwd=elsewhere)).strip()
    assert "COMPLETED" in done(as_user("sacct", "-X", "-n", "-P", "-o", "State", "-j", job_id))
    (path,) = (folder / "results" / "campaign" / "launches").glob("w1-r0/journal.jsonl")
    facts = json.loads(path.read_text().splitlines()[0])["launch"]["provenance"]
    assert facts["environment"]["NCCL_IB_HCA"] == "mlx5_9"
    assert facts["dropped_environment"] == ["OMP_PROC_BIND"]
    assert facts["slurm"]["SLURM_JOB_ID"] == job_id
    (row,) = status(folder)["jobs"]
    assert (row["id"], row["job"], row["by_hand"]) == (job_id, "campaign", True)
    assert (row["state"], row["num_complete"]) == ("COMPLETED", 1)
    said = done(lockstep(folder, "status", "--collect", "results/campaign"))
    assert "accounting is known for 1 of 1 job" in said
    assert list(folder.rglob("hostile")) == []


def test_the_image_measures_its_own_suite_and_a_checkout_s(folder):
    measured = ["--size", "smoke", "-m", "weak"]
    said = done(as_user("apptainer", "run", IMAGE, *measured, cwd=folder))
    assert "1 passed" in said
    built = json.loads(IMAGE.with_suffix(".sif.json").read_text())
    assert commit_of(folder) == built["git_commit"]

    checkout = folder / "checkout"
    checkout.mkdir()
    unpack_checkout(checkout)
    (checkout / "COMMIT").write_text("f" * 40)
    give(checkout)
    line = ["apptainer", "exec", IMAGE, "pytest", "bench/", *measured]
    assert "1 passed" in done(as_user(*line, cwd=checkout))
    assert commit_of(checkout) == "f" * 40


def commit_of(folder):
    """Return the commit of the suite that the one journal below a folder was measured with."""
    (path,) = folder.glob("results/pytest/*/journal.jsonl")
    head = json.loads(path.read_text().splitlines()[0])
    return head["launch"]["provenance"]["git_commit"]


@pytest.mark.parametrize(("allocation", "count"), [("ladder", 4), ("job", 8), ("array", 5)])
def test_slurm_would_take_every_script(folder, allocation, count):
    jobs = f'allocation = "{allocation}"\npreflight = true\ncollect = true'
    text = CAMPAIGN.replace('device = "cpu"\n', "") + jobs + "\n"
    write(folder / "campaign.toml", text)
    site = (folder / "site.toml").read_text().replace("gpus_per_node = 0\n", GPUS)
    write(folder / "site.toml", site)
    made = lockstep(folder, "submit", "--by-hand", "campaign.toml", "--site", "site.toml")
    scripts = [one for one in done(made).splitlines() if not one.endswith("/submit.sh")]
    assert len(scripts) == count
    for script in scripts:
        tested = as_user("sbatch", "--test-only", script)
        assert tested.returncode == 0, tested.stderr


def test_what_ends_a_preflight_is_named_by_the_site_s_key(folder):
    change(folder / "campaign.toml", world_sizes=[2], repeats=1, studies=["weak"])
    write(folder / "campaign.toml", (folder / "campaign.toml").read_text() + "preflight = true\n")
    site = (folder / "site.toml").read_text()
    write(folder / "site.toml", site.replace("[env]", 'binds = ["/nowhere"]\n[env]'))
    submit(folder)
    preflight, waiting = until_ended(folder)["jobs"]
    assert (preflight["state"], preflight["mend"]) == ("FAILED", "container.binds"), texts(folder)
    assert waiting["state"] == "CANCELLED"


def test_a_mended_campaign_is_sent_by_the_same_command(folder):
    change(folder / "campaign.toml", device="cuda", studies=["weak"], world_sizes=[1], repeats=1)
    site = (folder / "site.toml").read_text()
    write(folder / "site.toml", site.replace("gpus_per_node = 0\n", GPUS))
    submit(folder)
    failed = until_ended(folder)
    assert failed["num_complete"] == 0
    assert {job["mend"] for job in failed["jobs"]} == {"device"}
    said = lockstep(folder, "status", "results/campaign").stdout
    assert "correct device in the campaign file, then run lockstep submit" in " ".join(said.split())
    change(folder / "campaign.toml", device="cpu")
    write(folder / "site.toml", site)
    submit(folder)
    assert until_ended(folder)["num_complete"] == 1


def test_every_rank_sees_all_gpus_of_its_node(folder):
    change(folder / "campaign.toml", world_sizes=[1, 4], repeats=1, studies=["weak"])
    text = (folder / "campaign.toml").read_text().replace('device = "cpu"\n', "")
    write(folder / "campaign.toml", text)
    tools = folder / "tools"
    tools.mkdir()
    # In place of the image: what a rank would see there, told to its launch's log.
    told = 'echo "$SLURM_PROCID of $SLURM_NTASKS sees $CUDA_VISIBLE_DEVICES"'
    # The store only has to say that it is there: nobody will meet in it.
    store = 'case "$*" in *lockstep.ranks.store*) echo "node1:9" >"${@: -1}"; exec cat ;; esac'
    write(tools / "apptainer", f"#!/bin/bash\n{store}\n{told}\n")
    (tools / "apptainer").chmod(0o755)
    site = (folder / "site.toml").read_text().replace("gpus_per_node = 0\n", GPUS)
    before = f"shell_before = 'PATH=\"{tools}:$PATH\"'\n"
    write(folder / "site.toml", before + site.replace(str(IMAGE), str(folder / "site.toml")))
    submit(folder)
    until_ended(folder)
    launches = folder / "results" / "campaign" / "launches"
    said = {path.parent.name: path.read_text() for path in launches.glob("*/log.txt")}
    assert all(f"{rank} of 4 sees 0,1\n" in said["w4-r0"] for rank in range(4))
    assert "0 of 1 sees 0\n" in said["w1-r0"]


# A program that reads what its job staged, leaves a file beside it, and then takes its time.
STAGED = '''schema = 1
name = "campaign"
studies = ["command"]
world_sizes = [1]
repeats = 1
rounds = 1
warmup_rounds = 0
threads_per_rank = 1
[command]
line = """
cat $LOCKSTEP_SCRATCH/data/set/values
echo kept >$LOCKSTEP_SCRATCH/out/left
sleep {pause}"""
scaling = "weak"
[[command.metrics]]
name = "rate"
unit = "items/s"
regex = "^rate ([0-9]+)"
primary = true
[factors]
pause = [PAUSE]
[jobs]
allocation = "job"
'''


def stage(folder, pause):
    """Send a job whose node has a disk and a cache, and return the disk; its image is small."""
    disk = folder / "disk"
    write(folder / "site.toml", site_text().replace(str(IMAGE), str(need_base())))
    done(as_user("mkdir", "-p", disk, folder / "cache", folder / "set"))
    write(folder / "set" / "values", "rate 100\n")
    write(folder / "campaign.toml", STAGED.replace("PAUSE", str(pause)))
    keys = {"scratch": str(disk), "stage_in": [str(folder / "set")], "stage_image": True}
    change(folder / "site.toml", stage_cache=str(folder / "cache"), **keys)
    submit(folder)
    return disk


def left_behind(folder):
    """Return the files that the job brought back from its node's disk, by name."""
    found = (folder / "results" / "campaign" / "jobs").glob("out-*/*/left")
    return {path.name: path.read_text() for path in found}


def test_a_job_stages_data_and_image_in_and_what_its_ranks_left_out(folder):
    disk = stage(folder, pause=0)
    check_complete(folder, num_launches=1)
    assert left_behind(folder) == {"left": "kept\n"}
    assert list(disk.iterdir()) == []
    lines = (folder / "results" / "campaign" / "jobs" / "staging.jsonl").read_text().splitlines()
    (staged,) = map(json.loads, lines)
    assert (staged["cache_hits"], staged["cache_misses"]) == (0, 1)
    done(lockstep(folder, "status", "--collect", "results/campaign"))
    account = json.loads((folder / "results" / "campaign" / "accounting.json").read_text())
    assert all(row["stage_in_s"] > 0 and row["stage_out_s"] >= 0 for row in account["jobs"])

    change(folder / "campaign.toml", repeats=2)
    submit(folder)
    check_complete(folder, num_launches=2)
    lines = (folder / "results" / "campaign" / "jobs" / "staging.jsonl").read_text().splitlines()
    again = json.loads(lines[-1])
    assert (len(lines), again["cache_hits"], again["cache_misses"]) == (2, 1, 0)


def test_a_job_that_is_cancelled_stages_out_and_leaves_its_disk_clean(folder):
    disk = stage(folder, pause=300)
    until(folder, lambda _: list(disk.glob("*/out/left")))
    done(lockstep(folder, "cancel", "results/campaign"))
    assert set(states(until_ended(folder)).values()) == {"CANCELLED"}
    assert left_behind(folder) == {"left": "kept\n"}
    assert list(disk.iterdir()) == []


# Each rank says its number, and the first the rate: four ranks would be no faster than one.
PROGRAM = """schema = 1
name = "campaign"
studies = ["command"]
world_sizes = [1, 2, 4]
repeats = 1
rounds = 2
warmup_rounds = 0
threads_per_rank = 1
until_efficiency = 0.6
[command]
line = 'echo rank $SLURM_PROCID of $SLURM_NTASKS; [ $SLURM_PROCID != 0 ] || echo rate {rate}'
sanity = "^rank 1 of|^rank 0 of 1$"
scaling = "weak"
[[command.metrics]]
name = "rate"
unit = "items/s"
regex = "^rate ([0-9]+)"
primary = true
[factors]
rate = [100]
"""


def test_srun_starts_the_ranks_of_a_program_until_it_scales_no_more(folder):
    write(folder / "campaign.toml", PROGRAM)
    submit(folder)
    assert set(states(until_ended(folder)).values()) == {"COMPLETED"}, texts(folder)
    done(lockstep(folder, "status", "--collect", "results/campaign"))
    # Two ranks at the rate of one: 50 % efficiency, so that four are not begun.
    assert sorted(journals(folder)) == ["w1-r0", "w2-r0"]
    reported = done(lockstep(folder, "report", "results/campaign", "--json"))
    points = json.loads(reported)["points"]
    assert [point["parallel_efficiency"] for point in points] == [1.0, 0.5]


def test_an_array_over_a_script_of_ones_own_is_one_table_with_curves(folder):
    text = (ROOT / "examples" / "commands" / "sweep.toml").read_text()
    assert "repeats = 3" in text
    text = text.replace("repeats = 3", "repeats = 1").replace('"sweep"', '"campaign"')
    text = text.replace("python descent.py", f"python3 {folder}/descent.py")
    write(folder / "campaign.toml", text + '[jobs]\nallocation = "array"\n')
    shutil.copy(ROOT / "examples" / "commands" / "descent.py", folder)
    give(folder)
    submit(folder)
    check_complete(folder, num_launches=3)
    (row,) = status(folder)["jobs"]
    assert row["elements"] == {"COMPLETED": 3}
    reported = done(lockstep(folder, "report", "results/campaign", "--json"))
    found = {p["case"]: p["details"]["command"][0] for p in json.loads(reported)["points"]}
    losses = [found[f"descent.py[lr={lr}]"]["metrics"]["loss"] for lr in (0.1, 0.2, 0.5)]
    ends = [loss["values"][0] for loss in losses]
    assert ends == sorted(ends, reverse=True), ends
    assert all(len(loss["curves"][0]) == 20 for loss in losses)


TRAINING = """schema = 1
name = "campaign"
studies = ["train"]
world_sizes = [4]
repeats = 1
size = "smoke"
device = "cpu"
threads_per_rank = 1
[factors]
workload = ["mlp:width=64"]
data = ["digits"]
local_batch = [16]
optimizer = ["adam"]
lr = [0.001]
epochs = [2]
[jobs]
allocation = "job"
"""


@pytest.mark.parametrize("sizes", [[4], pytest.param([1, 2, 4], marks=pytest.mark.chaos)])
def test_training_runs_on_rungs_up_to_two_nodes(folder, sizes):
    write(folder / "campaign.toml", TRAINING)
    change(folder / "campaign.toml", world_sizes=sizes)
    submit(folder)
    check_complete(folder, num_launches=len(sizes))
    done(lockstep(folder, "status", "--collect", "results/campaign"))
    reported = done(lockstep(folder, "report", "results/campaign", "--json"))
    points = json.loads(reported)["points"]
    assert [(p["world_size"], p["num_nodes"]) for p in points] == [(n, 1 + n // 4) for n in sizes]
    # Ten digits: a guess is right once in ten times.
    assert all(point["validation_accuracy"] > 0.5 for point in points)
