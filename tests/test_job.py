import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from bench.campaign import Campaign, plan
from slurm_templates.job import directive, environment, jobs, render
from slurm_templates.site import Site

GOLDEN = Path(__file__).parent / "data" / "golden"
REWRITE = "LOCKSTEP_REWRITE_GOLDEN"
CAMPAIGN = {
    "schema": 1,
    "name": "ladder",
    "studies": ["strong", "weak"],
    "world_sizes": [1, 2, 4, 8],
    "repeats": 2,
    "size": "node",
    "global_batch": 1024,
}
CONTAINER = {"image": "/images/lockstep.sif", "binds": ["/scratch"], "args": ["--no-home"]}
SITE = {
    "schema": 1,
    "name": "here",
    "partition": "gpu",
    "account": "project",
    "gpus_per_node": 4,
    "gpu_type": "h100",
    "cpus_per_node": 64,
    "mem": "480G",
    "time": "02:00:00",
    "env": {"NCCL_DEBUG": "WARN"},
    "extra_directives": ["--exclusive"],
    "shell_before": "ulimit -l unlimited",
}
CPU = {"gpus_per_node": 0, "gpu_type": None, "max_ranks_per_node": 2, "cpus_per_node": 8}
NATIVE = {
    "modules": ["CUDA/12.6", "Python 3"],
    "venv": "/home/me/my venv",
    "suite": "/home/me/lockstep",
    "scratch": "/scratch/me",
    "shell_after": "rm -r /scratch/me/data",
}
FOLDER = Path("/results/ladder")
# name of the golden script -> site, campaign's changes, mode, which of the jobs
GOLDENS = {
    "ladder-gpu-container": (SITE | {"container": CONTAINER}, {}, "ladder", 0),
    "ladder-gpu-modules": (SITE | NATIVE, {}, "ladder", 0),
    "ladder-cpu-container": (SITE | CPU | {"container": CONTAINER}, {"device": "cpu"}, "ladder", 0),
    "job-gpu-container": (SITE | {"container": CONTAINER}, {}, "job", 3),
}


def campaign_of(**changes):
    return Campaign.model_validate(CAMPAIGN | changes)


def site_of(**changes):
    return Site.model_validate(SITE | {"container": CONTAINER} | changes)


def script_of(name):
    site, changes, mode, index = GOLDENS[name]
    site = Site.model_validate(site)
    return render(jobs(campaign_of(**changes), site, FOLDER, mode)[index], site)


@pytest.mark.parametrize("name", GOLDENS)
def test_a_script_equals_its_golden_file(name):
    path = GOLDEN / f"{name}.sh"
    if os.environ.get(REWRITE):
        path.write_text(script_of(name))
    assert script_of(name) == path.read_text(), f"if that is meant: {REWRITE}=1 pytest {__file__}"


@pytest.mark.parametrize("name", GOLDENS)
def test_bash_reads_a_script(name):
    ended = subprocess.run(["bash", "-n"], input=script_of(name), text=True, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize("name", GOLDENS)
def test_shellcheck_finds_nothing(name):
    if shutil.which("shellcheck") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no shellcheck is installed; tests/testbed/install does it")
        pytest.skip("no shellcheck is installed")
    # What a site loads is its own.
    command = ["shellcheck", "--exclude=SC1090,SC1091", "-"]
    ended = subprocess.run(
        command, input=script_of(name), capture_output=True, text=True, check=False
    )
    assert ended.stdout == ""


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
    assert job.steps[0].shape[:3] == (
        f"--nodes={nodes}",
        f"--ntasks={world_size}",
        f"--ntasks-per-node={on_node}",
    )
    assert f"--nodes={nodes}" in job.directives
    assert f"--ntasks-per-node={on_node}" in job.directives


def test_hours_are_those_of_the_limit():
    (job,) = jobs(campaign_of(), site_of(), FOLDER)
    assert (job.time_s, job.node_hours, job.gpu_hours) == (7200, 4.0, 16.0)
    by_size = jobs(campaign_of(), site_of(), FOLDER, "job")
    assert [(one.name, one.gpu_hours) for one in by_size] == [
        ("ladder-w1", 2.0),
        ("ladder-w2", 4.0),
        ("ladder-w4", 8.0),
        ("ladder-w8", 16.0),
    ]


def test_a_ladder_keeps_the_order_of_the_campaign():
    (job,) = jobs(campaign_of(repeats=5), site_of(), FOLDER)
    assert [step.name for step in job.steps] == [one.name for one in plan(campaign_of(repeats=5))]


def test_every_world_size_gets_the_same_threads_and_the_device_is_said():
    for step in jobs(campaign_of(), site_of(), FOLDER)[0].steps:
        assert "--threads-per-rank=16" in step.options
        assert "--device=cuda" in step.options


def test_gpus_are_asked_by_node_never_by_task():
    script = script_of("ladder-gpu-container")
    assert "#SBATCH --gpus-per-node=h100:4" in script
    assert " --nv " in script
    assert "--gpus-per-task" not in script


def test_a_measurement_of_cpus_asks_for_no_gpu():
    (job,) = jobs(campaign_of(device="cpu"), site_of(), FOLDER)
    script = render(job, site_of())
    assert job.gpu_hours == 0
    assert "gpus-per-node" not in script
    assert "--nv" not in script


def test_nothing_missing_needs_no_job():
    assert jobs(campaign_of(), site_of(), FOLDER, launches=[]) == []


@pytest.mark.parametrize(
    ("changes", "site_changes", "reason"),
    [
        ({"device": "cuda"}, {"gpus_per_node": 0, "gpu_type": None}, "has gpus_per_node = 0"),
        ({"world_sizes": [6], "studies": ["weak"]}, {}, "6 does not fill .* choose 4 or 8"),
        ({"threads_per_rank": 17}, {}, "4 ranks of 17 threads do not fit on the 64 CPUs"),
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
    with pytest.raises(ValueError, match="is not allowed in a value for sbatch"):
        directive("job-name", value)


def test_a_space_in_a_directive_is_quoted():
    assert directive("output", "/a b/c") == '--output="/a b/c"'


# srun runs the command as one rank would; the last one of the chain writes down what it was told.
STUBS = {
    "scontrol": "echo node1; echo node2",
    "sha256sum": "echo 0123abcd x",
    "srun": """
        while [ "${1#--}" != "$1" ]; do shift; done
        export SLURM_PROCID=0 SLURM_NTASKS=1; exec "$@" """,
    "apptainer": """
        [ "$1" = exec ] || exit 9; shift
        while [ "${1#--}" != "$1" ]; do printf '%s\\0' "$1" >>"$SEEN.binds"; shift; done
        printf '%s\\0' "$1" >>"$SEEN.binds"; shift; exec "$@" """,
    "python3": """
        printf '%s\\0' "$@" >>"$SEEN.arguments"; env -0 >"$SEEN.environment"
        eval "${STUB_DO:-}"
        exit "${STUB_CODE:-0}" """,
}


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    for name, body in STUBS.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def execute(script, stubs, folder, **environ):
    """Run a script as a job of two nodes, and return how it ended."""
    return subprocess.run(
        ["bash", "-c", script, "job"],
        cwd=folder,
        env={
            "PATH": f"{stubs}:/usr/bin:/bin",
            "SEEN": str(folder / "seen"),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "STRANGE": "host",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def seen(folder, what):
    return (folder / f"seen.{what}").read_bytes().decode().split("\0")[:-1]


def small(**changes):
    return campaign_of(world_sizes=[1], repeats=1, studies=["weak"], **changes)


def test_a_script_starts_what_was_meant(stubs, tmp_path):
    (job,) = jobs(small(), site_of(), tmp_path / "results")
    (tmp_path / "results").mkdir()
    ended = execute(render(job, site_of(shell_before="")), stubs, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert seen(tmp_path, "binds") == [
        *("--cleanenv", "--nv", f"--bind={tmp_path}/results", "--bind=/scratch", "--no-home"),
        "/images/lockstep.sif",
    ]
    assert seen(tmp_path, "arguments") == [
        *("-m", "pytest", "/opt/lockstep/bench", *job.steps[0].options)
    ]
    found = dict(line.split("=", 1) for line in seen(tmp_path, "environment"))
    handed = {name.removeprefix("APPTAINERENV_") for name in found if "APPTAINERENV" in name}
    assert {"SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR", "MASTER_PORT"} <= handed
    assert {"LOCKSTEP_LAUNCHER", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"} <= handed
    assert "STRANGE" not in handed
    assert found["APPTAINERENV_MASTER_ADDR"] == "node1"
    assert 20000 <= int(found["APPTAINERENV_MASTER_PORT"]) < 30200
    assert found["APPTAINERENV_LOCKSTEP_IMAGE_SHA256"] == "0123abcd"


def test_a_failed_launch_fails_the_job_and_not_the_next_launch(stubs, tmp_path):
    (job,) = jobs(campaign_of(), site_of(), tmp_path)
    ended = execute(render(job, site_of(shell_before="")), stubs, tmp_path, STUB_CODE="3")
    assert ended.returncode == 1
    assert ended.stdout.count("srun ended with 3") == len(job.steps) == 8
    assert "for the other cases" not in ended.stdout


def test_a_launch_with_nothing_left_is_complete(stubs, tmp_path):
    (job,) = jobs(small(), site_of(), tmp_path)
    script = render(job, site_of(shell_before=""))
    assert execute(script, stubs, tmp_path, STUB_CODE="5").returncode == 1
    (tmp_path / "launches" / "w1-r0" / "journal.jsonl").write_text("{}\n")
    assert execute(script, stubs, tmp_path, STUB_CODE="5").returncode == 0


def test_after_the_warning_no_launch_begins(stubs, tmp_path):
    (job,) = jobs(campaign_of(), site_of(), tmp_path)
    site = site_of(shell_before="kill -USR1 $$")
    ended = execute(render(job, site), stubs, tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.count("not started, for the time is nearly over") == 8
    assert not (tmp_path / "seen.arguments").exists()


def test_the_warning_does_not_end_the_launch_that_runs(stubs, tmp_path):
    (job,) = jobs(campaign_of(), site_of(), tmp_path)
    script = render(job, site_of(shell_before=""))
    ended = execute(script, stubs, tmp_path, STUB_DO="kill -USR1 $PPID; sleep 0.3")
    assert ended.returncode == 1
    assert ended.stdout.count("srun ended with 0") == 1
    assert ended.stdout.count("not started") == 7


def test_after_a_failed_case_the_others_are_measured(stubs, tmp_path):
    (job,) = jobs(small(), site_of(), tmp_path)
    journal = tmp_path / "launches" / "w1-r0" / "journal.jsonl"
    # A session and one case that fails, three times; then nothing is left.
    records = 'printf "session\\ncase\\n" >>"$JOURNAL"; [ $(wc -l <"$JOURNAL") -lt 8 ] || exit 5'
    script = render(job, site_of(shell_before=""))
    facts = {"STUB_DO": records, "STUB_CODE": "1", "JOURNAL": str(journal)}
    ended = execute(script, stubs, tmp_path, **facts)
    assert ended.returncode == 1
    assert ended.stdout.count("srun for the other cases ended with 1") == 2
    assert ended.stdout.count("srun for the other cases ended with 5") == 1
    assert seen(tmp_path, "arguments").count("--skip-failed") == 3


HOSTILE = st.text(
    st.one_of(
        st.sampled_from(list(" '\"`$();&|<>*?[]{}#!~\\=%,:-\n\t\r")),
        st.characters(codec="utf-8", min_codepoint=1),
    ),
    min_size=1,
    max_size=12,
)
HARMFUL = ["$(touch BROKEN)", "`touch BROKEN`", "'; touch BROKEN; '", '"; touch BROKEN; "',
           "x\ntouch BROKEN", "a b", "-x", "{{ 7 }}", "{% raw %}", "\\"]  # fmt: skip


# field of a site -> what a hostile text makes of it
FIELDS = {
    "name": lambda text: {"name": text},
    "env": lambda text: {"env": {"OWN": text}},
    "image": lambda text: {"container": CONTAINER | {"image": f"/{text}"}},
    "binds": lambda text: {"container": CONTAINER | {"binds": [f"/{text}"]}},
    "args": lambda text: {"container": CONTAINER | {"args": [f"--{text}"]}},
    "suite": lambda text: {"suite": f"/{text}"},
    "account": lambda text: {"account": text},
    "extra_directives": lambda text: {"extra_directives": [f"--{text}"]},
}


def arrives(field, text, site, folder):
    """Return whether the text reached the ranks, or Apptainer, as it was given."""
    binds, environment = seen(folder, "binds"), seen(folder, "environment")
    return {
        "name": f"--label=site={text}" in seen(folder, "arguments"),
        "env": {f"OWN={text}", f"APPTAINERENV_OWN={text}"} <= set(environment),
        "image": binds[-1] == f"/{text}",
        "binds": f"--bind=/{text}" in binds,
        "args": f"--{text}" in binds,
        "suite": f"--bind=/{text}" in binds and f"/{text}/bench" in seen(folder, "arguments"),
    }.get(field, True)


def check_hostile(field, text, stubs, here):
    """Execute the script of a site with a hostile text, and return False where it is refused."""
    (here / "results").mkdir()
    try:
        site = site_of(**{"shell_before": "", **FIELDS[field](text)})
        (job,) = jobs(small(), site, here / "results")
    except ValueError:
        return False
    script = render(job, site)
    ended = execute(script, stubs, here)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert list(here.rglob("BROKEN")) == []
    assert script.count("\n#SBATCH ") == len(job.directives)
    assert arrives(field, text, site, here)
    return True


@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=HOSTILE)
def test_a_hostile_site_is_refused_or_does_only_what_was_meant(
    field, text, stubs, tmp_path_factory
):
    check_hostile(field, text, stubs, tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", HARMFUL)
def test_harmful_texts_do_no_harm(field, text, stubs, tmp_path):
    refused = "\n" in text or field in ("account", "extra_directives")
    executed = check_hostile(field, text, stubs, tmp_path)
    assert executed is not refused or text == "-x"


@pytest.mark.parametrize("text", ["$(touch BROKEN) `b`", "(a) [b] {c} & | ; <d>", "it is -x !"])
def test_a_hostile_folder_is_refused_or_does_only_what_was_meant(text, stubs, tmp_path):
    folder = tmp_path / text
    folder.mkdir()
    try:
        (job,) = jobs(small(), site_of(shell_before=""), folder)
    except ValueError:
        assert "$" in text
        return
    ended = execute(render(job, site_of(shell_before="")), stubs, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"--bind={folder}" in seen(tmp_path, "binds")
    assert (folder / "launches" / "w1-r0" / "log.txt").exists()


def test_the_templates_hold_nothing_undefined():
    with pytest.raises(UndefinedError, match="'absent' is undefined"):
        environment().from_string("{{ absent }}").render()
