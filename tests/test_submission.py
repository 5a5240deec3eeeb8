"""Jobs submitted to a stand-in for sbatch, which records its arguments."""

import json
import shlex

import pytest
import stand_ins
from data.job_samples import CAMPAIGN_FILE as CAMPAIGN
from data.job_samples import write_journal
from stand_ins import StandIns

SHARED = "[jobs]\nshare_job = true\n"
JOBS = SHARED + 'allocation = "job"\npreflight = true\ncollect = true\n'
ARRAY = '[jobs]\nallocation = "array"\n'
SITE = """schema = 1
name = "the centre's"
partition = "gpu"
gpus_per_node = 4
cpus_per_node = 64
time = "01:30:00"
shell_before = "echo 'a \\"line\\"'"
[container]
image = "/images/lockstep.sif"
[env]
NCCL_DEBUG = "WARN"
"""
# Ids from 101 on, with the cluster's name as some sites have it; a refusal where there is one.
SQUEUE = '/bin/cat queue 2>/dev/null; exit "$(/bin/cat squeue_code 2>/dev/null || echo 0)"'
SBATCH = """number=$(/bin/grep -c ^sbatch bin/calls)
if [ -e refusal ] && [ "$number" -ge "$(/bin/cat refusal)" ]; then
    echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1
fi
echo "$((100 + number));cluster" """


@pytest.fixture
def folder(tmp_path):
    asked = StandIns(tmp_path / "bin")
    for name, body in (("squeue", SQUEUE), ("sbatch", SBATCH)):
        asked.act(name, f"cd {shlex.quote(str(tmp_path))}\n{body}")
    asked.say("sacctmgr", "normal\n")
    asked.say("scancel")
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    (tmp_path / "site.toml").write_text(SITE)
    return tmp_path


def lockstep(arguments, folder):
    return stand_ins.lockstep(arguments, folder, folder / "bin")


def submit(folder, jobs=SHARED, options=""):
    (folder / "campaign.toml").write_text(CAMPAIGN + jobs)
    return lockstep(f"submit campaign.toml --site site.toml {options}", folder)


def sbatch_calls(folder):
    """Return the arguments of each call of sbatch, without the comment that identifies a job."""
    lines = (folder / "bin" / "calls").read_text().splitlines()
    calls = [line.split()[1:] for line in lines if line.startswith("sbatch ")]
    return [[one for one in call if not one.startswith("--comment=")] for call in calls]


def recorded(folder):
    path = folder / "results/ladder/jobs/submitted.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(folder, name, *cases, flags=()):
    path = folder / "results/ladder/launches" / name / "journal.jsonl"
    write_journal(path, *cases, expected=["a"], flags=flags)


def test_jobs_are_sent_each_after_those_it_waits_for(folder):
    ended = submit(folder, JOBS)
    assert ended.returncode == 0, ended.stderr
    jobs, kill = f"{folder}/results/ladder/jobs", "--kill-on-invalid-dep=yes"
    assert sbatch_calls(folder) == [
        ["--parsable", f"{jobs}/ladder-preflight.sh"],
        ["--parsable", "--dependency=afterok:101", kill, f"{jobs}/ladder-w1.sh"],
        ["--parsable", "--dependency=afterok:102", kill, f"{jobs}/ladder-w8.sh"],
        ["--parsable", "--dependency=afterany:101:102:103", kill, f"{jobs}/ladder-collect.sh"],
    ]
    entries = recorded(folder)
    assert [(one["job"], one["kind"], one["after"]) for one in entries[::2]] == [
        ("ladder-preflight", "preflight", []),
        ("ladder-w1", "job", ["ladder-preflight"]),
        ("ladder-w8", "job", ["ladder-w1"]),
        ("ladder-collect", "collect", ["ladder-preflight", "ladder-w1", "ladder-w8"]),
    ]
    assert [one["id"] for one in entries[1::2]] == ["101", "102", "103", "104"]
    assert entries[2]["launches"] == ["w1-r0", "w1-r1"]


def test_a_resumed_campaign_takes_the_mended_site_where_it_is_given(folder):
    assert submit(folder).returncode == 0
    mended = SITE.replace("lockstep.sif", "mended.sif").replace("01:30:00", "00:30:00")
    (folder / "site.toml").write_text(mended)
    script = folder / "results/ladder/jobs/ladder.sh"
    assert lockstep("resume results/ladder", folder).returncode == 0
    assert "image=/images/lockstep.sif" in script.read_text()
    assert lockstep("resume results/ladder --site site.toml", folder).returncode == 0
    assert "image=/images/mended.sif" in script.read_text()
    assert "#SBATCH --time=00:30:00" in script.read_text()
    assert lockstep("resume results/ladder", folder).returncode == 0  # which is kept
    assert "image=/images/mended.sif" in script.read_text()


def test_an_array_is_one_job_and_its_elements_are_recorded_in_order(folder):
    ended = submit(folder, ARRAY, "--json")
    found = json.loads(ended.stdout)["jobs"]
    assert [(one["job"], one["id"]) for one in found] == [
        ("ladder-w1", "101"),
        ("ladder-w8", "102"),
    ]
    assert found[0]["output"].endswith("jobs/ladder-w1-101_0.out")
    entry = recorded(folder)[0]
    assert (entry["kind"], entry["launches"]) == ("array", ["w1-r0-p1", "w1-r1-p1"])
    script = (folder / "results/ladder/jobs/ladder-w1.sh").read_text()
    listed = [line.split()[0].strip("'") for line in script.splitlines() if line[4:6] == "'w"]
    assert listed == entry["launches"]


def test_a_refusal_ends_the_submission_and_is_recorded(folder):
    (folder / "refusal").write_text("2")
    ended = submit(folder, JOBS)
    assert ended.returncode == 2
    assert "Invalid qos specification" in ended.stderr
    assert "qos" in ended.stderr
    assert len(sbatch_calls(folder)) == 2
    assert "refused" in recorded(folder)[-1]
    assert ended.stdout.startswith("ladder-preflight: job 101")
    assert ended.stderr.endswith(
        "; the jobs submitted before this one were cancelled: ladder-preflight\n"
    )
    assert "scancel 101" in (folder / "bin" / "calls").read_text().splitlines()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("submit campaign.toml --site site.toml", 2),
        ("resume results/ladder", 2),
        ("resume results/ladder --dry-run", 0),
    ],
)
def test_jobs_that_may_still_write_are_waited_for_and_a_dry_run_names_them(folder, command, code):
    assert submit(folder).returncode == 0
    (uuid,) = [one["uuid"] for one in recorded(folder) if "job" in one]
    elements = "".join(
        f"{row}|None|1|me|{uuid}\n" for row in ("101_0|111|RUNNING", "101_[1-9]|101|PENDING")
    )
    (folder / "queue").write_text(f"{elements}6|6|RUNNING|None|1|me|other\n")
    ended = lockstep(command, folder)
    assert ended.returncode == code
    said = "job 101 of me (RUNNING), job 101 of me (PENDING) may still write into"
    assert said in ended.stderr
    assert "lockstep cancel" in ended.stderr
    assert len(sbatch_calls(folder)) == 1


def test_a_script_of_the_folder_that_was_sent_by_hand_is_waited_for(folder):
    script = f"{folder}/results/ladder/jobs/ladder.sh"
    others = (
        f"7|7|RUNNING|None|1|me|(null)|{folder}/results/other/jobs/x.sh\n8|8|RUNNING|None|1|me|||\n"
    )
    (folder / "queue").write_text(others)
    assert submit(folder).returncode == 0
    (folder / "queue").write_text(f"{others}9|9|PENDING|Priority|1|me|(null)|{script} x\n")
    ended = submit(folder)
    assert (ended.returncode, len(sbatch_calls(folder))) == (2, 1)
    assert "job 9 of me (PENDING) may still write into" in ended.stderr


def test_a_resumed_campaign_needs_neither_file_and_measures_what_is_missing(folder):
    assert submit(folder, JOBS, "--debug-comm").returncode == 0
    script = folder / "results/ladder/jobs/ladder-w8.sh"
    assert "export NCCL_DEBUG=INFO" in script.read_text()
    for name in ("w1-r0", "w1-r1", "w8-r0"):
        measured(folder, name, "a")
    (folder / "campaign.toml").unlink()
    (folder / "site.toml").unlink()
    ended = lockstep("resume results/ladder", folder)
    assert ended.returncode == 0, ended.stderr
    sent = [sorted(one["launches"]) for one in recorded(folder) if one.get("kind") == "job"]
    assert sent == [["w1-r0", "w1-r1"], ["w8-r0", "w8-r1"], ["w8-r1"]]
    # What was said while one looked for a fault is not said again.
    assert "export NCCL_DEBUG=WARN" in script.read_text()


def test_a_resumed_campaign_stays_without_what_was_left_out_below_a_floor(folder):
    assert submit(folder, JOBS).returncode == 0
    path = folder / "results/ladder/campaign.json"
    left_out = [{"world_size": 8, "num_gpus": None, "kind": "below_floor"}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"left_out": left_out}))
    assert lockstep("resume results/ladder", folder).returncode == 0
    sent = [one["launches"] for one in recorded(folder)[8:] if one.get("kind") == "job"]
    assert sent == [["w1-r0", "w1-r1"]]
    claimed = json.loads(path.read_text())
    assert claimed["left_out"] == left_out
    assert {one["world_size"] for one in claimed["launches"]} == {1}


@pytest.mark.parametrize(("command", "code"), [("plan", 0), ("submit --dry-run", 2), ("submit", 2)])
def test_results_measured_otherwise_are_named_by_a_plan_and_refused_by_submit(
    folder, command, code
):
    assert submit(folder).returncode == 0
    measured(folder, "w1-r0", "a")
    campaign = folder / "campaign.toml"
    campaign.write_text(f'precision = "bf16"\n{campaign.read_text()}')
    verb, *options = command.split()
    ended = lockstep(f"{verb} campaign.toml --site site.toml {' '.join(options)}", folder)
    assert (ended.returncode, ended.stdout == "") == (code, code == 2)
    assert "precision" in ended.stderr


def test_resume_with_nothing_missing_sends_nothing(folder):
    assert submit(folder).returncode == 0
    for name in ("w1-r0", "w1-r1", "w8-r0", "w8-r1"):
        measured(folder, name, "a")
    ended = lockstep("resume results/ladder", folder)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "Nothing is missing.")
    assert len(sbatch_calls(folder)) == 1


def test_what_is_flagged_is_set_aside_and_measured_again(folder):
    assert submit(folder).returncode == 0
    measured(folder, "w1-r0", "a")
    for name in ("w1-r1", "w8-r0", "w8-r1"):
        measured(folder, name, "a", flags=["oversubscribed"] if name == "w8-r0" else [])
    results = folder / "results/ladder"
    dry = lockstep("resume results/ladder --flagged --dry-run", folder)
    assert "# set aside: w8-r0\n" in dry.stdout
    assert "\nlockstep_launch w8-r0 8 0\n" in dry.stdout
    assert not (results / "launches-set-aside").exists()
    ended = lockstep("resume results/ladder --flagged", folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("1 flagged launch.")
    assert recorded(folder)[-2]["launches"] == ["w8-r0"]
    (kept,) = (results / "launches-set-aside").iterdir()
    assert kept.name.startswith("w8-r0-")
    assert (kept / "journal.jsonl").exists()
    assert not (results / "launches/w8-r0").exists()


def test_nothing_is_set_aside_for_jobs_that_cannot_be_made(folder):
    assert submit(folder).returncode == 0
    measured(folder, "w8-r0", "a", flags=["oversubscribed"])
    path = folder / "results/ladder/jobs/site.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"max_ranks_per_node": 3}))  # 8 ranks do not fill its nodes
    ended = lockstep("resume results/ladder --flagged", folder)
    assert ended.returncode == 2
    assert "which take 3 ranks each" in ended.stderr
    assert not (folder / "results/ladder/launches-set-aside").exists()


@pytest.mark.parametrize("file", ["campaign.json", "jobs/site.json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}'])
def test_a_record_that_is_broken_is_one_sentence(folder, file, text):
    assert submit(folder).returncode == 0
    (folder / "results/ladder" / file).write_text(text)
    ended = lockstep("resume results/ladder", folder)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_profile_is_sent_apart_and_leaves_the_site_to_resume_as_it_was(folder):
    assert submit(folder).returncode == 0
    before = (folder / "results/ladder/jobs/site.json").read_text()
    ended = submit(folder, options="--profile ncu --debug-comm")
    assert ended.stdout.startswith("ladder-ncu: job 102"), ended.stderr
    assert (recorded(folder)[2]["kind"], recorded(folder)[2]["launches"]) == ("profile", [])
    assert (folder / "results/ladder/jobs/site.json").read_text() == before


def test_a_budget_is_not_for_a_profile(folder):
    ended = submit(folder, options="--profile ncu --budget 3")
    assert (ended.returncode, "exclude each other" in ended.stderr) == (2, True)
