"""Batch scripts: as they read, and as they run with stand-ins for Slurm, Apptainer and Python."""

import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from data.job_samples import CONTAINER, campaign_of, site_of, small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from lockstep.campaign.campaign import common_options, own_options
from lockstep.slurm.submit.job import jobs, profile, settle
from lockstep.slurm.submit.script import LIBRARY, environment, library, render
from lockstep.vocabulary.record import SCHEMA_VERSION

ROOT = Path(__file__).parents[1]
LIBRARY_FILE = ROOT / "slurm_templates" / LIBRARY
GOLDEN = ROOT / "tests" / "data" / "golden"
REWRITE = "LOCKSTEP_REWRITE_GOLDEN"
CPU = {"gpus_per_node": 0, "gpu_type": None, "max_ranks_per_node": 2, "cpus_per_node": 8}
NATIVE = {
    "container": None,
    "modules": ["CUDA/12.6", "Python 3"],
    "venv": "/home/me/my venv",
    "suite": "/home/me/lockstep",
    "scratch": "/scratch/me",
    "shell_after": "rm -r /scratch/me/data",
}
STAGED = {
    "scratch": "/local/my jobs",
    "stage_image": True,
    "stage_in": ["/data/set", "/data/other set"],
    "gpu_runtime": "rocm",
    "interface": "hsn0",
}
FOLDER = Path("/results/ladder")
ALL = {"preflight": True, "collect": True}
APART = {"share_job": False}
# name of the golden script -> site's changes, campaign's, profiler, which of the jobs
GOLDENS = {
    "ladder-gpu-container": ({}, {}, None, 0),
    "ladder-gpu-modules": (NATIVE, {}, None, 0),
    "ladder-cpu-container": (CPU, {"device": "cpu", "jobs": APART}, None, 0),
    "ladder-staged": (STAGED, {}, None, 0),
    "job-gpu-container": ({}, {"jobs": APART | {"allocation": "job"}}, None, 3),
    "array-gpu-container": ({}, {"jobs": {"allocation": "array", "max_running": 2}}, None, 1),
    "preflight-gpu-container": ({}, {"jobs": ALL}, None, 0),
    "collect-gpu-container": ({}, {"jobs": ALL}, None, 2),
    "profile-nsys": ({}, {}, "nsys", 0),
    "profile-ncu": ({}, {}, "ncu", 0),
}


def golden_job(name, folder=FOLDER, site=None):
    site_changes, changes, profiler, index = GOLDENS[name]
    site, campaign = site or site_of(**site_changes), campaign_of(**changes)
    if profiler:
        return profile(campaign, site, folder, profiler), site
    return jobs(campaign, site, folder)[index], site


def script_of(name):
    return render(*golden_job(name))


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


def shellcheck(*arguments):
    if shutil.which("shellcheck") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no shellcheck is installed; tests/testbed/install does it")
        pytest.skip("no shellcheck is installed")
    # What a site loads is its own.
    command = ["shellcheck", "--exclude=SC1090,SC1091", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("name", GOLDENS)
def test_shellcheck_finds_nothing_in_a_script(name):
    # What a script sets the library uses, and the other way round.
    assert shellcheck("--exclude=SC2034,SC2154", GOLDEN / f"{name}.sh") == ""


def test_shellcheck_finds_nothing_in_the_library_and_a_script_that_sources_it(tmp_path):
    source = f'. "$results/jobs/{LIBRARY}"'
    script = script_of("ladder-staged")
    assert script.count(source) == 1
    path = tmp_path / "script.sh"
    path.write_text(script.replace(source, f"# shellcheck source={LIBRARY_FILE}\n{source}"))
    assert shellcheck("--external-sources", LIBRARY_FILE, path) == ""


def test_the_golden_files_are_all_of_a_script():
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(GOLDENS)


def test_gpus_are_asked_by_node_never_by_task():
    script = script_of("ladder-gpu-container")
    assert "#SBATCH --gpus-per-node=h100:4" in script
    assert " --nv " in script
    assert "--gpus-per-task" not in script


def test_modules_are_purged_only_where_there_are_some():
    native = {"container": None, "suite": "/suite", "venv": "/venv"}
    purged = []
    for modules in ([], ["PyTorch/2.6"]):
        site = site_of(**native, modules=modules)
        purged.append("\nmodule purge " in render(jobs(small(), site, FOLDER)[0], site))
    assert purged == [False, True]


def test_a_measurement_of_cpus_asks_for_no_gpu():
    (job,) = jobs(campaign_of(device="cpu"), site_of(), FOLDER)
    script = render(job, site_of())
    assert job.gpus_per_node == 0
    assert "gpus-per-node" not in script
    assert "--nv" not in script


def test_rocm_needs_another_flag_and_other_variables():
    script = script_of("ladder-staged")
    assert " --rocm " in script
    assert " --nv " not in script
    assert " ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES)\n" in script


def test_the_interface_is_said_to_both_backends_unless_the_site_says_otherwise():
    site = site_of(interface="ib0", env={"GLOO_SOCKET_IFNAME": "eth0"})
    script = render(jobs(campaign_of(), site, FOLDER)[0], site)
    assert "export NCCL_SOCKET_IFNAME=ib0\n" in script
    assert "export GLOO_SOCKET_IFNAME=eth0\n" in script


def test_debug_output_is_on_demand_alone():
    quiet, loud = site_of(), site_of().with_debug_output()
    scripts = [render(jobs(campaign_of(), site, FOLDER)[0], site) for site in (quiet, loud)]
    assert ["NCCL_DEBUG_SUBSYS=ALL" in script for script in scripts] == [False, True]
    assert "export NCCL_DEBUG=INFO\n" in scripts[1]


OWN_TEMPLATE = """{% extends "base.sh.j2" %}
{% block before %}
{{ super() }}
echo {{ site.name | sh }} >&2
{% endblock %}
"""


def own_template(folder, text):
    path = folder / "site.sh.j2"
    path.write_text(text)
    return site_of(template=str(path), shell_before="")


@pytest.mark.parametrize("name", GOLDENS)
def test_a_site_replaces_a_block_of_every_template(tmp_path, name):
    site = own_template(tmp_path, OWN_TEMPLATE)
    job, _ = golden_job(name)
    plain = render(job, site_of(shell_before=""))
    made = render(job, site)
    assert "echo here >&2\n" in made
    assert [line for line in made.split("\n") if line and line != "echo here >&2"] == [
        line for line in plain.split("\n") if line
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{% block before %}", "Unexpected end of template"),
        ('{% extends "base.sh.j2" %}{% block before %}{{ absent }}{% endblock %}', "is undefined"),
        ('{% extends "gone.sh.j2" %}', "gone.sh.j2"),
        ('{% extends "base.sh.j2" %}{% block before %}{{ 1 / 0 }}{% endblock %}', "division"),
        ('{% extends "site.sh.j2" %}', "extends itself"),
    ],
)
def test_a_broken_template_is_one_sentence(tmp_path, text, reason):
    site = own_template(tmp_path, text)
    with pytest.raises(ValueError, match=reason) as caught:
        render(jobs(small(), site, FOLDER)[0], site)
    assert re.match(rf"{tmp_path}/site\.sh\.j2(:\d+)?: ", str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% block before %}\n{{ absent }}\n{% endblock %}", ":3: .*'absent' is undefined"),
        ("{% block before %}\n{% if %}\n{% endblock %}", ":3: not a template over base.sh.j2: "),
        ("{% block before %}\nif true; then\n{% endblock %}", " makes a script that bash does not"),
    ],
)
def test_a_template_is_told_where_it_is_wrong(tmp_path, text, said):
    site = own_template(tmp_path, '{% extends "base.sh.j2" %}\n' + text)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/site\.sh\.j2{said}"):
        render(jobs(small(), site, FOLDER)[0], site)


def test_a_template_without_a_first_line_for_the_shell_is_refused(tmp_path):
    site = own_template(tmp_path, "echo")
    with pytest.raises(ValueError, match=r"makes a script whose first line is not #!/bin/bash$"):
        render(jobs(small(), site, FOLDER)[0], site)


def test_a_template_that_is_not_there_is_one_sentence():
    site = site_of(template="/gone.sh.j2")
    with pytest.raises(ValueError, match=r"^/gone\.sh\.j2: No such file or directory; change temp"):
        render(jobs(small(), site, FOLDER)[0], site)


def seconds_per_launch(repeats, allocation):
    campaign = campaign_of(repeats=repeats, jobs={"allocation": allocation})
    began = time.process_time()
    made = jobs(campaign, site_of(), FOLDER)
    scripts = [render(job, site_of()) for job in made]
    assert max(map(len, scripts)) < 1_000_000  # Slurm's max_script_size is 4 MB by default
    return (time.process_time() - began) / sum(len(job.launches) for job in made)


@pytest.mark.slow
@pytest.mark.parametrize(("allocation", "cases"), [("ladder", 1), ("array", 2)])
def test_ten_times_the_launches_take_no_longer_each(allocation, cases):
    def least(num_launches):
        repeats = num_launches // 4 // cases
        return min(seconds_per_launch(repeats, allocation) for _ in range(3))

    assert least(10_000) <= 2 * least(1_000)


# srun runs the command as one rank would; the last one of the chain writes down what it was told.
STUBS = {
    "scontrol": "echo node1; echo node2",
    "sha256sum": """
        [ "$#" -eq 0 ] || echo read >>"$SEEN.hashed"
        echo 0123abcd -""",
    "stat": "echo facts",
    "srun": """
        printf '%s\\0' "$@" >>"$SEEN.srun"
        if [ -n "${SAID:-}" ] && [ "${*: -1}" = true ]; then
            echo "srun: error: $SAID" >&2; exit 1
        fi
        if [ -n "${DEAF:-}" ] && [[ "$*" == *" stay "* ]]; then trap '' USR2; exec /bin/sleep 60; fi
        while [ "${1#--}" != "$1" ]; do shift; done
        all() { kill -USR2 $(ps -o pid= --ppid "$task"); sleep 0.05; kill -USR2 "$task"; }
        trap '[ -z "$task" ] || all 2>/dev/null' USR2  # as Slurm: every process of a task
        trap 'kill "$task"' TERM
        export SLURM_PROCID=0 SLURM_NTASKS=1 SLURMD_NODENAME=node1
        "$@" & task=$!
        wait "$task"; rc=$?
        while kill -0 "$task" 2>/dev/null; do wait "$task"; rc=$?; done
        [ "$rc" -ne 140 ] || { wait "$task"; rc=$?; }
        exit "$rc" """,
    "apptainer": """
        [ "$1" = exec ] || exit 9; shift
        [[ "$*" != *lockstep.world.store* && "$*" != *lockstep.campaign.next* ]] || {
            while [ "$1" != python3 ]; do shift; done; exec "$@"
        }
        while [ "${1#--}" != "$1" ]; do printf '%s\\0' "$1" >>"$SEEN.binds"; shift; done
        printf '%s\\0' "$1" >>"$SEEN.binds"; shift; exec "$@" """,
    "nsys": """
        printf '%s\\0' nsys "$@" >>"$SEEN.tool"; shift
        while [ "${1#--}" != "$1" ]; do shift; done; exec "$@" """,
    "ncu": """
        printf '%s\\0' ncu "$@" >>"$SEEN.tool"
        while [ "${1#--}" != "$1" ]; do shift; done; exec "$@" """,
    "sacct": """
        echo sacct "$@" >>"$SEEN.sacct"; echo 'JobID|JobIDRaw|State'
        echo '7.batch|7.batch|RUNNING'
        [ "$(wc -l <"$SEEN.sacct")" -gt "${BEHIND:-0}" ] || echo '17_1|18|COMPLETING'
        exit "${SACCT_CODE:-0}" """,
    "python3": """
        if [ "${2:-}" = lockstep.world.store ]; then
            printf '%s\\0' "$@" >>"$SEEN.store"
            [ -z "${NO_STORE:-}" ] || { echo "$NO_STORE"; exit 3; }
            echo "$4:4711" >"$6"
            echo $$ >"$SEEN.store-pid"
            exec cat
        fi
        if [ "${2:-}" = lockstep.campaign.next ]; then
            eval "${STUB_NEXT:-}"
            PYTHONPATH=@ROOT exec @PYTHON "$@"
        fi
        printf '%s\\0' "$@" >>"$SEEN.arguments"; env -0 >"$SEEN.environment"
        eval "${STUB_DO:-}"
        [ "${STUB_CODE:-0}" -eq 0 ] || exit "$STUB_CODE"
        for one; do [[ $one != --journal=* ]] || echo "$LAUNCH" >>"${one#*=}"; done """,
}
STUBS["python3"] = STUBS["python3"].replace("@ROOT", str(ROOT)).replace("@PYTHON", sys.executable)
# How a session begins its part of a journal; here of a launch that has no case to measure.
LAUNCH = {"kind": "launch", "schema": SCHEMA_VERSION, "resumed": False, "expected": []}
LAUNCH |= {"document": {}, "launch": {}}


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    for name, body in STUBS.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def environ_of(stubs, folder, **environ):
    return {
        "PATH": f"{stubs}:/usr/bin:/bin",
        "SEEN": str(folder / "seen"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "STRANGE": "host",
        "LAUNCH": json.dumps(LAUNCH),
        **environ,
    }


def execute(script, stubs, folder, **environ):
    """Run a script as a job of two nodes, and return how it ended."""
    return subprocess.run(
        ["bash", "-c", script, "job"],
        cwd=folder,
        env=environ_of(stubs, folder, **environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def made(folder, old="", new=""):
    """Make a campaign's folder as rendering does, with one change in the library, and return it."""
    path = folder / "jobs" / LIBRARY
    path.parent.mkdir(parents=True, exist_ok=True)
    assert old in library()
    path.write_text(library().replace(old, new))
    return folder


def seen(folder, what):
    return (folder / f"seen.{what}").read_bytes().decode().split("\0")[:-1]


def ended_as(folder, job_id="7"):
    """Return what a job left about its end."""
    return json.loads((folder / "jobs" / f"exit-{job_id}.json").read_text())


def measured(folder):
    """Return what each pytest was told of its launch."""
    told = [one for one in seen(folder, "arguments") if one.startswith("--label=launch=")]
    return [one.removeprefix("--label=launch=") for one in told]


def plain(**changes):
    return site_of(**{"shell_before": ""} | changes)


def test_a_script_starts_what_was_meant(stubs, tmp_path):
    results = made(tmp_path / "results")
    (job,) = jobs(small(), plain(), results)
    ended = execute(render(job, plain()), stubs, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert seen(tmp_path, "binds") == [
        *(
            "--cleanenv",
            "--no-eval",
            "--nv",
            f"--bind={tmp_path}/results",
            "--bind=/scratch",
            "--no-home",
        ),
        "/images/lockstep.sif",
    ]
    campaign = settle(small(), plain())
    told = seen(tmp_path, "arguments")
    assert told[:3] == ["-m", "pytest", "/opt/lockstep/bench"]
    assert sorted(told[3:]) == sorted(
        [
            *common_options(campaign),
            *own_options(job.launches[0]),
            *("--label=site=here", "--resume", f"--stop-file={results}/jobs/stop-7"),
            f"--journal={results}/launches/w1-r0/journal.jsonl",
        ]
    )
    found = dict(line.split("=", 1) for line in seen(tmp_path, "environment"))
    handed = {name.removeprefix("APPTAINERENV_") for name in found if "APPTAINERENV" in name}
    assert {"SLURM_PROCID", "SLURM_NTASKS"} <= handed
    assert {"LOCKSTEP_LAUNCHER", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"} <= handed
    assert "STRANGE" not in handed
    assert found["APPTAINERENV_LOCKSTEP_IMAGE_SHA256"] == "0123abcd"
    left = ended_as(results)
    assert left.pop("ended").endswith("Z")
    left_over = {"stopped": False, "lost": "", "mend": ""}
    assert left == {"job_id": "7", "job": job.name, "exit_code": 0} | left_over


def test_what_the_site_s_lines_export_reaches_the_image_or_is_recorded(stubs, tmp_path):
    lines = """
        export NCCL_IB_HCA='mlx5_0 mlx5_1' FI_PROVIDER=cxi UCX_TLS=rc RCCL_MSCCL_ENABLE=0
        export GLOO_SOCKET_IFNAME=ib0 HSA_ENABLE_SDMA=0
        export MY_TOOL=x OMP_PROC_BIND=true PATH=$PATH:/opt/tool
        UNSEEN=1"""
    site = plain(shell_before=lines, env={"MY_OWN": "1"})
    (job,) = jobs(small(), site, made(tmp_path / "results"))
    ended = execute(render(job, site), stubs, tmp_path, OMP_PROC_BIND="false", OMP_PLACES="cores")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = dict(line.split("=", 1) for line in seen(tmp_path, "environment"))
    handed = {n.removeprefix("APPTAINERENV_"): v for n, v in found.items() if "APPTAINERENV_" in n}
    assert handed["NCCL_IB_HCA"] == "mlx5_0 mlx5_1"
    assert {"FI_PROVIDER", "UCX_TLS", "RCCL_MSCCL_ENABLE", "HSA_ENABLE_SDMA"} <= set(handed)
    assert {"GLOO_SOCKET_IFNAME", "MY_OWN"} <= set(handed)
    assert sorted(handed["LOCKSTEP_DROPPED"].split()) == ["MY_TOOL", "OMP_PROC_BIND", "PATH"]


def test_an_image_is_read_once_for_all_jobs(stubs, tmp_path):
    (job,) = jobs(small(), plain(), made(tmp_path))
    for _ in range(2):
        assert execute(render(job, plain()), stubs, tmp_path).returncode == 0
    assert (tmp_path / "seen.hashed").read_text() == "read\n"
    (tmp_path / "jobs" / "image.sha256").write_text("old\nother facts\n")
    assert execute(render(job, plain()), stubs, tmp_path).returncode == 0
    assert (tmp_path / "seen.hashed").read_text() == "read\nread\n"


def with_real_stat(stubs, folder):
    """Return a PATH on which files are looked at as they are."""
    (folder / "tools").mkdir()
    shutil.copy("/usr/bin/stat", folder / "tools")
    return f"{folder / 'tools'}:{stubs}:/usr/bin:/bin"


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_image_that_is_gone_ends_the_job(stubs, tmp_path, world_size):
    (job,) = jobs(small(world_sizes=[world_size]), plain(), made(tmp_path))
    path = with_real_stat(stubs, tmp_path)
    ended = execute(render(job, plain()), stubs, tmp_path, PATH=path, SLURMD_NODENAME="node1")
    assert ended.returncode == 78
    assert ended.stderr.endswith(" image /images/lockstep.sif not found on host node1\n")
    assert ended.stderr.count("\n") == 1
    assert ended_as(tmp_path)["exit_code"] == 78
    assert ended_as(tmp_path)["mend"] == "container.image"
    assert not (tmp_path / "seen.arguments").exists()


def test_an_image_that_goes_away_is_one_line_of_each_node(stubs, node):
    image = node / "image.sif"
    container = CONTAINER | {"image": str(image)}
    (job,) = jobs(small(), plain(container=container), made(node / "results"))
    script = render(job, plain(container=container)).replace(
        "\nlockstep_launch", "\nrm $image\nlockstep_launch"
    )
    ended = execute(script, stubs, node, PATH=with_real_stat(stubs, node))
    assert ended.returncode == 1
    said = (node / "results/launches/w1-r0/log.txt").read_text()
    assert said == f"lockstep: error: container.image {image} not found on host node1\n"
    assert "srun ended with 78; what follows cannot be told\n" in ended.stdout
    assert ended_as(node / "results")["mend"] == "container.image"


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("key", "lacks"), [("container.binds", "data set"), ("suite", "my suite")])
def test_what_a_node_lacks_is_recorded_by_its_key(stubs, node, key, lacks, world_size):
    path = str(node / lacks)
    own = {"suite": path} if key == "suite" else {}
    binds = [str(node / "set"), *([f"{path}:/data:ro"] if not own else [])]
    container = CONTAINER | {"image": str(node / "image.sif"), "binds": binds}
    site = plain(container=container, **own)
    (job,) = jobs(small(world_sizes=[world_size]), site, made(node / "results"))
    ended = execute(render(job, site), stubs, node, PATH=with_real_stat(stubs, node))
    assert ended.returncode == 1
    assert ended_as(node / "results")["mend"] == key
    assert not (node / "seen.arguments").exists()
    assert not list((node / "results/jobs").glob(".mend-*"))


def test_an_image_that_is_not_as_it_was_built_is_not_run(stubs, node):
    container = CONTAINER | {"image": str(node / "image.sif")}
    (job,) = jobs(small(), plain(container=container), made(node / "results"))
    script = render(job, plain(container=container))
    record = node / "image.sif.json"
    record.write_text('{\n "sha256": "0123abcd",\n "size_bytes": 8\n}\n')
    assert execute(script, stubs, node).returncode == 0
    record.write_text(record.read_text().replace("0123", "ffff"))
    (node / "seen.arguments").unlink()
    ended = execute(script, stubs, node)
    assert ended.returncode == 78
    assert f"{record} records ffffabcd; build it again, or remove" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (node / "seen.arguments").exists()


def two_ranks(folder, **changes):
    """Return the script of one launch of two ranks."""
    (job,) = jobs(small(world_sizes=[2], **changes), plain(), made(folder))
    return render(job, plain())


def met_in(folder):
    """Return the store and the prefix in it that the last step's ranks were told."""
    found = dict(line.split("=", 1) for line in seen(folder, "environment"))
    return found["LOCKSTEP_STORE"], found["LOCKSTEP_STORE_PREFIX"]


def test_ranks_meet_in_a_store_that_serves_the_whole_job(stubs, tmp_path):
    (job,) = jobs(campaign_of(), plain(), made(tmp_path))
    told = 'echo "$LOCKSTEP_STORE $LOCKSTEP_STORE_PREFIX" >>"$SEEN.met"'
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_DO=told)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert seen(tmp_path, "store")[:4] == ["-m", "lockstep.world.store", "--host", "node1"]
    assert len(seen(tmp_path, "store")) == 6
    met = [line.split() for line in (tmp_path / "seen.met").read_text().splitlines()]
    assert {store for store, _ in met} == {"node1:4711"}
    assert len({prefix for _, prefix in met}) == len(job.launches) == 8
    found = dict(line.split("=", 1) for line in seen(tmp_path, "environment"))
    assert found["APPTAINERENV_LOCKSTEP_STORE_PREFIX"] == found["LOCKSTEP_STORE_PREFIX"]
    assert list((tmp_path / "jobs").glob(".store*")) == []


def test_a_store_that_died_is_started_again_before_the_next_step(stubs, tmp_path):
    (job,) = jobs(campaign_of(repeats=1), plain(), made(tmp_path))
    kills = 'kill "$(cat "$SEEN.store-pid")"; sleep 0.2'
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_DO=kills)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert seen(tmp_path, "store").count("lockstep.world.store") == len(job.launches)


def test_a_store_that_does_not_come_ends_the_job_with_what_it_said(stubs, tmp_path):
    ended = execute(two_ranks(tmp_path), stubs, tmp_path, NO_STORE="FATAL: no such image")
    assert ended.returncode == 1
    assert "the store where ranks meet does not serve on node1; it said:\n" in ended.stdout
    assert "FATAL: no such image\n" in ended.stdout
    assert not (tmp_path / "seen.arguments").exists()
    assert ended_as(tmp_path)["exit_code"] == 1


def test_the_store_ends_with_the_script_also_where_that_is_killed(stubs, tmp_path):
    process = subprocess.Popen(
        ["bash", "-c", two_ranks(tmp_path), "job"],
        cwd=tmp_path,
        env=environ_of(stubs, tmp_path, STUB_DO='echo $$ >"$SEEN.rank"; exec sleep 60'),
        stdout=subprocess.PIPE,
    )
    until(lambda: (tmp_path / "seen.rank").exists())
    (store,) = [child for child in children(process.pid) if command_of(child) == ["cat"]]
    process.kill()
    process.wait()
    until(lambda: command_of(store) != ["cat"])
    assert command_of(store) != ["cat"]
    os.kill(int((tmp_path / "seen.rank").read_text()), signal.SIGTERM)
    process.stdout.close()


def until(holds):
    """Wait until something holds."""
    give_up = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def test_a_failed_launch_fails_the_job_and_not_the_next_launch(stubs, tmp_path):
    (job,) = jobs(campaign_of(), plain(), made(tmp_path))
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_CODE="3")
    assert ended.returncode == 1
    assert ended.stdout.count("srun ended with 3") == len(job.launches) == 8
    assert ended_as(tmp_path)["exit_code"] == 1


def test_after_the_warning_no_launch_begins(stubs, tmp_path):
    site = plain(shell_before="kill -USR1 $$")
    (job,) = jobs(campaign_of(), site, made(tmp_path))
    ended = execute(render(job, site), stubs, tmp_path)
    assert ended.returncode == 75
    assert ended.stdout.count("not started, for the time is nearly over") == 8
    assert not (tmp_path / "seen.arguments").exists()
    assert ended_as(tmp_path)["stopped"] is True


def test_the_warning_tells_the_ranks_and_lets_their_launch_end(stubs, tmp_path):
    (job,) = jobs(campaign_of(), plain(), made(tmp_path))
    script = render(job, plain()).replace("set -euo", "export BATCH=$$; set -euo", 1)
    # A rank that ends in order, with 75, once it finds the stop file.
    ranks = 'kill -USR1 "$BATCH"; until [ -e jobs/stop-7 ]; do sleep 0.05; done; exit 75'
    ended = execute(script, stubs, tmp_path, STUB_DO=ranks)
    assert ended.returncode == 75
    assert ended.stdout.count("srun ended with 75") == 1
    assert ended.stdout.count("not started") == 7


def test_a_stop_file_of_the_user_stops_the_job_as_well(stubs, tmp_path):
    (job,) = jobs(campaign_of(), plain(), made(tmp_path))
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_DO="touch jobs/stop-7; exit 75")
    assert ended.returncode == 75
    assert ended.stdout.count("not started, for there is a stop file") == 7


def test_after_a_node_is_lost_no_launch_begins(stubs, tmp_path):
    (job,) = jobs(campaign_of(), plain(), made(tmp_path))
    said = "Task launch for StepId=7.1 failed on node node2: timeout"
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_CODE="1", SAID=said)
    assert ended.returncode == 1
    assert ended.stdout.count("srun ended with 1") == 1
    assert ended.stdout.count("not started, for node2 answers no more") == 7
    left = ended_as(tmp_path)
    assert (left["exit_code"], left["stopped"], left["lost"]) == (1, False, "node2")


def test_a_node_that_is_busy_is_not_lost(stubs, tmp_path):
    (job,) = jobs(campaign_of(), plain(), made(tmp_path))
    said = "Unable to create step for job 7: Job/step already completing or completed"
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_CODE="1", SAID=said)
    assert ended.returncode == 1
    assert ended.stdout.count("srun ended with 1") == 8
    assert "not all nodes answer: srun: error: Unable" in ended.stdout
    assert ended_as(tmp_path)["lost"] == ""
    told = seen(tmp_path, "srun")
    beside = {"--overlap", "--mem=0", "--gres=none"}  # what a step before it still holds
    assert beside <= set(told[: told.index("true")])


def test_a_stop_file_that_was_left_stops_nothing(stubs, tmp_path):
    (job,) = jobs(small(), plain(), made(tmp_path))
    (tmp_path / "jobs" / "stop-7").touch()
    code = "[ ! -e jobs/stop-7 ] || exit 1"
    assert execute(render(job, plain()), stubs, tmp_path, STUB_DO=code).returncode == 0


# Lines of a journal.
FRESH = json.dumps(LAUNCH | {"expected": ["a", "b"]})
RESUMED = json.dumps(LAUNCH | {"expected": ["a", "b"], "resumed": True, "skips_failed": True})
IN_FLIGHT = '{"kind": "begin", "case": "a"}'
GOOD, GOOD_B = (f'{{"kind": "case", "case": "{case}", "benchmark": {{}}}}' for case in "ab")
BAD = '{"kind": "fail", "case": "a", "reason": "because"}'


def run_sessions(stubs, folder, *sessions):
    """Return how a job of one launch ended, and what each of its sessions was told beside."""
    (job,) = jobs(small(), plain(), made(folder))
    (folder / "sessions").mkdir()
    for number, (lines, said, code) in enumerate(sessions):
        own = folder / "sessions" / str(number)
        own.with_suffix(".lines").write_text("".join(f"{line}\n" for line in lines))
        own.with_suffix(".said").write_text(said)
        own.with_suffix(".next").write_text(str(code))
    journal = folder / "launches" / "w1-r0" / "journal.jsonl"
    body = """
        for next in sessions/*.next; do break; done
        own=${next%.next}; mv "$next" "$own.done"
        cat "$own.lines" >>"$JOURNAL"; cat "$own.said"; exit "$(cat "$own.done")" """
    ended = execute(render(job, plain()), stubs, folder, STUB_DO=body, JOURNAL=str(journal))
    assert ended.stderr == ""
    assert list((folder / "sessions").glob("*.next")) == []
    told = seen(folder, "arguments")
    return ended, [one for one in told if one.startswith(("--skip-failed", "--after"))]


def test_after_a_step_that_ended_badly_the_other_cases_are_measured(stubs, tmp_path):
    said = "srun: error: node2: task 1: Killed\nsrun: error: node1: task 0: Terminated\n"
    ended, told = run_sessions(
        stubs,
        tmp_path,
        ([FRESH, IN_FLIGHT], said, 137),
        ([RESUMED, BAD], "lockstep: rank 1 on node1: rank 0 is lost\n" + said, 70),
        ([RESUMED, GOOD_B], "", 1),
    )
    assert ended.returncode == 1  # a case has failed
    assert told == [
        "--skip-failed",
        "--after=node2: task 1: Killed",
        "--skip-failed",
        "--after=rank 1 on node1: rank 0 is lost",
    ]
    assert "w1-r0: srun ended with 70: rank 1 on node1: rank 0 is lost\n" in ended.stdout


def test_a_step_without_progress_is_the_launch_s_last(stubs, tmp_path):
    ended, told = run_sessions(stubs, tmp_path, ([FRESH, IN_FLIGHT], "", 137), ([RESUMED], "", 78))
    assert (ended.returncode, told[0]) == (1, "--skip-failed")


def test_the_job_ends_as_its_journals_say_and_not_as_srun_does(stubs, tmp_path):
    ended, _ = run_sessions(stubs, tmp_path, ([FRESH, BAD, GOOD, GOOD_B], "", 134))
    assert ended.returncode == 0
    assert ended_as(tmp_path)["exit_code"] == 0


def test_what_follows_is_asked_again_and_what_an_image_prints_before_it_is_left_out(
    stubs, tmp_path
):
    (job,) = jobs(small(), plain(), made(tmp_path))
    noise = "echo welcome; [ -e asked ] || { touch asked; exit 1; }"
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_NEXT=noise)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_site_s_own_functions_and_ours_are_apart(stubs, tmp_path):
    names = ("say", "begin", "enter", "launch", "step", "finish", "after", "end")
    site = plain(shell_before="\n".join(f"{name}() {{ exit 9; }}" for name in names))
    (job,) = jobs(small(), site, made(tmp_path))
    assert execute(render(job, site), stubs, tmp_path).returncode == 0


def test_a_step_that_srun_calls_well_ended_badly_if_a_case_was_in_flight(stubs, tmp_path):
    ended, told = run_sessions(
        stubs, tmp_path, ([FRESH, GOOD_B, IN_FLIGHT], "", 0), ([RESUMED, BAD], "", 5)
    )
    assert ended.returncode == 1
    assert told == ["--skip-failed", "--after=srun ended with 0"]


def test_a_journal_that_cannot_be_read_fails_its_launch_alone(stubs, tmp_path):
    (job,) = jobs(campaign_of(repeats=1), plain(), made(tmp_path))
    spoil = 'case "$*" in *w1-r0*) echo spoilt >launches/w1-r0/journal.jsonl; exit 4 ;; esac'
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_DO=spoil)
    assert ended.returncode == 1
    assert len(measured(tmp_path)) == len(job.launches)
    assert "w1-r0: srun ended with 4: " in ended.stdout


def test_a_log_that_was_flooded_keeps_its_beginning_and_its_end(stubs, tmp_path):
    (job,) = jobs(small(), plain(), made(tmp_path))
    flood = "echo first; head -c 70000000 /dev/zero | tr '\\0' x; echo; echo last"
    assert execute(render(job, plain()), stubs, tmp_path, STUB_DO=flood).returncode == 0
    text = (tmp_path / "launches" / "w1-r0" / "log.txt").read_text()
    assert text.startswith("first\nxxx")
    assert "\nlockstep: of 70000012 bytes all but the first and last 1048576 are left out\n" in text
    assert text.endswith("x\nlast\n")
    assert len(text) < 2_200_000


@pytest.mark.parametrize(
    ("after", "code"), [("echo bye", 0), ("false", 1), ("false\necho bye", 1), ("exit 9", 1)]
)
def test_the_lines_after_run_and_count(stubs, tmp_path, after, code):
    site = plain(shell_after=f"echo last\n{after}")
    (job,) = jobs(small(), site, made(tmp_path))
    ended = execute(render(job, site), stubs, tmp_path)
    assert (ended.returncode, "last\n" in ended.stdout) == (code, True)
    assert ended_as(tmp_path)["exit_code"] == code


def test_the_end_is_on_record_before_what_slurm_may_cut(stubs, tmp_path):
    site = plain(shell_after="cp jobs/exit-7.json jobs/before.json")
    (job,) = jobs(small(), site, made(tmp_path))
    assert execute(render(job, site), stubs, tmp_path).returncode == 0
    # Cut here, it has not ended well.
    assert json.loads((tmp_path / "jobs" / "before.json").read_text())["exit_code"] == 1
    assert ended_as(tmp_path)["exit_code"] == 0


# What `module` is to a job's shell: a function that changes its variables.
MODULE = """() {
    echo "$@" >>"$SEEN.modules"
    if [ "$1" = load ]; then
        [ "$2" != absent ] && export PYTHONPATH=$ROOM/$2 OF_NO_USE=$unset_by_all
    fi
}"""


def modules_run(stubs, folder, *modules, before="ROOM=/sw", module=MODULE):
    site = plain(container=None, modules=modules, suite="/suite", shell_before=before)
    (job,) = jobs(small(), site, made(folder))
    return execute(render(job, site), stubs, folder, **{"BASH_FUNC_module%%": module})


def test_what_modules_put_on_the_path_stays_behind_the_suite(stubs, tmp_path):
    before = "module use /own; ROOM=/sw${unset_as_well}"
    ended = modules_run(stubs, tmp_path, "torch", before=before)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "PYTHONPATH=/suite:/sw/torch" in seen(tmp_path, "environment")
    # What the site's own lines load is not purged.
    assert (tmp_path / "seen.modules").read_text() == "purge\nuse /own\nload torch\n"


def test_a_purge_that_fails_keeps_no_job_from_measuring(stubs, tmp_path):
    sticky = MODULE.replace("() {", '() { [ "$1" != purge ] || return 1;')
    ended = modules_run(stubs, tmp_path, "torch", module=sticky)
    assert ended.returncode == 0
    assert (
        "lockstep: module purge ended with 1; the modules are loaded all the same" in ended.stdout
    )


def test_a_module_that_cannot_be_loaded_ends_the_job(stubs, tmp_path):
    ended = modules_run(stubs, tmp_path, "absent")
    assert ended.returncode == 1
    assert "lockstep: module absent cannot be loaded\n" in ended.stdout
    assert ended_as(tmp_path)["exit_code"] == 1
    assert ended_as(tmp_path)["mend"] == "modules"
    assert not (tmp_path / "seen.arguments").exists()


def test_what_an_outer_job_asked_for_is_not_for_the_steps(stubs, tmp_path):
    names = ("MEM_PER_CPU", "GPUS_PER_TASK", "TRES_PER_TASK", "GPU_BIND", "DISTRIBUTION")
    names += ("GPUS", "CLUSTERS")
    outer = {f"SLURM_{name}": "outer" for name in (*names, "MEM_PER_GPU", "CPU_BIND_TYPE")}
    outer["PYTHONPATH"] = "outer"
    (job,) = jobs(small(), plain(), made(tmp_path))
    assert execute(render(job, plain()), stubs, tmp_path, **outer).returncode == 0
    assert not [one for one in seen(tmp_path, "environment") if one.endswith("=outer")]


@pytest.mark.parametrize("before", ["false", "exit 3"])
def test_the_lines_after_also_run_where_a_job_fails_early(stubs, tmp_path, before):
    site = plain(shell_before=before, shell_after="echo last", scratch=str(tmp_path))
    (job,) = jobs(small(), site, made(tmp_path))
    ended = execute(render(job, site), stubs, tmp_path)
    assert ended.stdout == "last\n"
    assert ended_as(tmp_path)["exit_code"] == ended.returncode != 0
    assert ended_as(tmp_path)["mend"] == "shell_before"


def test_an_element_of_an_array_makes_its_launch(stubs, tmp_path):
    campaign = campaign_of(jobs={"allocation": "array"}, world_sizes=[2])
    (job,) = jobs(campaign, plain(), made(tmp_path))
    script = render(job, plain())
    for number in range(job.num_elements):
        ids = {"SLURM_ARRAY_JOB_ID": "20", "SLURM_ARRAY_TASK_ID": str(number)}
        ended = execute(script, stubs, tmp_path, SLURM_JOB_ID=f"2{number}", **ids)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended_as(tmp_path, f"20_{number}")["job_id"] == f"20_{number}"
    assert measured(tmp_path) == [launch.name for launch in job.launches]
    told = seen(tmp_path, "arguments")
    for launch in job.launches:
        assert set(own_options(launch)) <= set(told)
    assert told.count("--part=1/2") == 2
    assert f"--stop-file={tmp_path}/jobs/stop-20_3" in told


def test_two_jobs_meet_apart(stubs, tmp_path):
    met = set()
    for job_id in ("41", "42"):
        execute(two_ranks(tmp_path), stubs, tmp_path, SLURM_JOB_ID=job_id)
        met.add(met_in(tmp_path)[1])
    assert len(met) == 2


def test_a_preflight_asks_every_node_and_then_every_rank(stubs, tmp_path):
    job, _ = golden_job("preflight-gpu-container", made(tmp_path))
    ended = execute(render(job, plain()), stubs, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "every node: ended with 0" in ended.stdout
    assert "every rank: ended with 0" in ended.stdout
    assert "--benchmark-disable" in seen(tmp_path, "arguments")
    assert "--nodes=2" in seen(tmp_path, "srun")
    assert not (tmp_path / "launches").exists()


def test_a_preflight_fails_where_the_ranks_do(stubs, tmp_path):
    job, _ = golden_job("preflight-gpu-container", made(tmp_path))
    ended = execute(render(job, plain()), stubs, tmp_path, STUB_CODE="78")
    assert ended.returncode == 1
    assert "every rank: ended with 78" in ended.stdout


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_profiler_is_around_the_rank_and_not_around_srun(stubs, tmp_path, tool):
    job = profile(small(), plain(), made(tmp_path), tool)
    ended = execute(render(job, plain()), stubs, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert seen(tmp_path, "srun").index("apptainer") < seen(tmp_path, "srun").index(tool)
    output = {"nsys": "--output", "ncu": "--export"}[tool]
    folder = tmp_path / "profiles" / f"{tool}-7" / "w1-r0"
    # The other cases after one that failed are a step of their own, and write beside it.
    own = f"{output}={folder}/step-%q{{SLURM_STEP_ID}}-rank-%q{{SLURM_PROCID}}"
    assert own in seen(tmp_path, "tool")
    assert f"--journal={folder}/journal.jsonl" in seen(tmp_path, "arguments")
    assert not (tmp_path / "launches").exists()


def test_a_collect_job_asks_accounting_outside_the_image(stubs, tmp_path):
    job, _ = golden_job("collect-gpu-container", made(tmp_path))
    lines = ['{"uuid": "a"}', '{"uuid": "a", "id": "17"}', '{"uuid": "b", "id": "18"}']
    (tmp_path / "jobs" / "submitted.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "jobs" / "slurm-9_2.out").write_text("")  # of an array that was sent by hand
    ended = execute(render(job, plain()), stubs, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "seen.sacct").read_text().endswith(" --jobs=9,17,18\n")
    assert "7.batch|7.batch|RUNNING\n" in (tmp_path / "jobs" / "sacct.txt").read_text()
    assert "accounting has no end" not in ended.stdout
    told = seen(tmp_path, "arguments")
    command = ["-m", "lockstep"]
    assert told == [*command, "collect", str(tmp_path), *command, "report", str(tmp_path)]
    assert "--nv" not in seen(tmp_path, "binds")


def collect_late(stubs, folder, behind):
    job, _ = golden_job("collect-gpu-container", made(folder, "in 0 1 2 4 8 15;", "in 0 0 0;"))
    (folder / "jobs" / "submitted.jsonl").write_text('{"uuid": "a", "id": "17"}\n')
    ended = execute(render(job, plain()), stubs, folder, BEHIND=str(behind))
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout, (folder / "seen.sacct").read_text().count("\n")


def test_a_collect_job_asks_again_until_accounting_has_heard_of_the_end(stubs, tmp_path):
    said, asked = collect_late(stubs, tmp_path, behind=1)
    assert ("accounting has no end" in said, asked) == (False, 2)
    assert "COMPLETING" not in (tmp_path / "jobs" / "sacct.txt").read_text()


def test_a_collect_job_says_of_which_job_accounting_has_no_end(stubs, tmp_path):
    said, asked = collect_late(stubs, tmp_path, behind=9)
    assert asked == 3
    assert "no end yet of 17_1; run lockstep collect again" in said


def test_a_collect_job_without_what_lockstep_needs_says_where_to_collect(stubs, tmp_path):
    site = plain(container=None, venv="/dev/null/..", suite="/suite")
    site = site.model_copy(update={"venv": None, "modules": ()})
    job = jobs(small(jobs=ALL), site, made(tmp_path))[2]
    ended = execute(render(job, site), stubs, tmp_path, STUB_CODE="1")
    assert ended.returncode == 0
    assert "run lockstep collect on a login node" in ended.stdout
    assert seen(tmp_path, "arguments")[0] == "-c"


def test_a_preflight_copies_neither_data_nor_the_image(stubs, node):
    site = staged(node)
    job, _ = golden_job("preflight-gpu-container", node / "results", site)
    ended = execute(render(job, site), stubs, node, STUB_DO='ls "$LOCKSTEP_SCRATCH"/* >&2')
    assert (ended.returncode, ended.stderr) == (0, "")
    assert seen(node, "binds")[-1] == f"{node}/image.sif"
    assert not {str(node / "set"), f"{node}/my scratch/lockstep-7/image.sif"} & set(
        seen(node, "srun")
    )
    assert list((node / "my scratch").iterdir()) == []


def test_a_collect_job_stages_nothing(stubs, node):
    site = staged(node)
    job, _ = golden_job("collect-gpu-container", node / "results", site)
    ended = execute(render(job, site), stubs, node)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (node / "results/jobs/staging.jsonl").exists()
    assert list((node / "my scratch").iterdir()) == []


@pytest.mark.parametrize("sent", [None, '{"uuid": "a", "id": "17"}\n'])
def test_a_collect_job_without_an_answer_keeps_what_it_had(stubs, tmp_path, sent):
    job, _ = golden_job("collect-gpu-container", made(tmp_path))
    (tmp_path / "jobs" / "sacct.txt").write_text("before\n")
    if sent:
        (tmp_path / "jobs" / "submitted.jsonl").write_text(sent)
    ended = execute(render(job, plain()), stubs, tmp_path, SACCT_CODE="1")
    assert ended.returncode == 0
    assert "sacct gives no answer" in ended.stdout
    assert (tmp_path / "jobs" / "sacct.txt").read_text() == "before\n"


@pytest.fixture
def node(tmp_path):
    """A node's scratch, a data set and an image."""
    (tmp_path / "my scratch").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one").write_text("data")
    (tmp_path / "image.sif").write_text("an image")
    made(tmp_path / "results")
    return tmp_path


def staged(node, **changes):
    image = CONTAINER | {"image": str(node / "image.sif")}
    facts = {"scratch": str(node / "my scratch"), "stage_in": [str(node / "set")]}
    return plain(**facts | {"stage_image": True, "container": image} | changes)


# What a rank does on a node: it reads what was staged, and leaves a file.
RANK = 'cat "$LOCKSTEP_SCRATCH/data/set/one"; echo left >"$LOCKSTEP_SCRATCH/out/profile"; '


def staging_of(node):
    return json.loads((node / "results" / "jobs" / "staging.jsonl").read_text())


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("3", 1)])
def test_a_job_stages_in_and_out_also_where_it_fails(stubs, node, code, expected):
    site = staged(node)
    (job,) = jobs(small(), site, node / "results")
    ended = execute(render(job, site), stubs, node, STUB_DO=RANK, STUB_CODE=code)
    assert (ended.returncode, ended.stderr) == (expected, "")
    own = f"{node}/my scratch/lockstep-7"
    assert seen(node, "binds")[-2:] == ["--no-home", f"--bind={own}", f"{own}/image.sif"][1:]
    assert f"--data-root={own}/data" in seen(node, "arguments")
    assert (node / "results/launches/w1-r0/log.txt").read_text() == "data"
    assert (node / "results/jobs/out-7/node1/profile").read_text() == "left\n"
    assert list((node / "my scratch").iterdir()) == []
    assert set(staging_of(node)) == {"job_id", "stage_in_s", "stage_out_s"}
    assert 0 < staging_of(node)["stage_in_s"] < 60
    assert (node / "image.sif").exists()


def test_a_copy_of_the_image_that_differs_ends_the_job(stubs, node):
    site = staged(node)
    (job,) = jobs(small(), site, node / "results")
    (node / "results/jobs/image.sha256").write_text("ffff\nfacts\n")
    ended = execute(render(job, site), stubs, node)
    assert ended.returncode == 1
    assert "differs: 0123abcd, not ffff" in ended.stderr
    assert "staging in failed" in ended.stdout
    assert list((node / "my scratch").iterdir()) == []
    assert not (node / "seen.arguments").exists()
    assert staging_of(node)["stage_in_s"] is None


def test_a_link_is_no_scratch_of_the_job_s(stubs, node):
    site = staged(node)
    (job,) = jobs(small(), site, node / "results")
    (node / "elsewhere").mkdir()
    (node / "my scratch/lockstep-7").symlink_to(node / "elsewhere")
    ended = execute(render(job, site), stubs, node)
    assert ended.returncode == 1
    assert "lockstep-7 is another's" in ended.stderr
    assert list((node / "elsewhere").iterdir()) == []


def test_a_keeper_that_hears_nothing_does_not_hold_the_job(stubs, node):
    site = staged(node)
    (job,) = jobs(small(), site, made(node / "results", '"$tries" -lt 150', '"$tries" -lt 3'))
    ended = execute(render(job, site), stubs, node, STUB_DO=RANK, DEAF="1")
    assert ended.returncode == 0
    assert (node / "results/jobs/out-7/node1/profile").read_text() == "left\n"
    assert list((node / "my scratch").iterdir()) == []


def test_staging_needs_no_bash_5(stubs, node):
    site = staged(node)
    (job,) = jobs(small(), site, node / "results")
    script = "unset EPOCHREALTIME EPOCHSECONDS SRANDOM\n" + render(job, site)
    ended = execute(script, stubs, node)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert 0 < staging_of(node)["stage_in_s"] < 60


def test_data_that_is_not_there_ends_the_job(stubs, node):
    site = staged(node, stage_in=["/nowhere"])
    (job,) = jobs(small(), site, node / "results")
    ended = execute(render(job, site), stubs, node)
    assert ended.returncode == 1
    assert "'/nowhere': No such file" in ended.stderr
    assert list((node / "my scratch").iterdir()) == []


def test_a_job_that_is_ended_still_stages_out(stubs, node):
    site = staged(node, shell_after="echo last")
    (job,) = jobs(campaign_of(), site, node / "results")
    process = subprocess.Popen(
        ["bash", "-c", render(job, site), "job"],
        cwd=node,
        env=environ_of(stubs, node, STUB_DO=RANK + "sleep 60"),
        stdout=subprocess.PIPE,
        text=True,
    )
    left = node / "my scratch/lockstep-7/out/profile"
    give_up = time.monotonic() + 20
    while not left.exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert "last\n" in process.communicate(timeout=20)[0]
    assert process.returncode == 143
    assert (node / "results/jobs/out-7/node1/profile").read_text() == "left\n"
    assert list((node / "my scratch").iterdir()) == []
    exit_facts = ended_as(node / "results")
    assert (exit_facts["exit_code"], exit_facts["stopped"]) == (143, True)
    assert len(measured(node)) == 1


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


# field of a site -> what a hostile text makes of it, in a folder of the test's
FIELDS = {
    "name": lambda text, _: {"name": text},
    "env": lambda text, _: {"env": {"OWN": text}},
    "image": lambda text, _: {"container": CONTAINER | {"image": f"/{text}"}},
    "binds": lambda text, _: {"container": CONTAINER | {"binds": [f"/{text}"]}},
    "args": lambda text, _: {"container": CONTAINER | {"args": [f"--{text}"]}},
    "suite": lambda text, _: {"suite": f"/{text}"},
    "account": lambda text, _: {"account": text},
    "interface": lambda text, _: {"interface": text},
    "extra_directives": lambda text, _: {"extra_directives": [f"--{text}"]},
    "scratch": lambda text, here: {"scratch": f"{here}/s/{text}"},
    "stage_in": lambda text, here: {"scratch": f"{here}/s", "stage_in": [f"{here}/in/{text}"]},
}


def arrives(field, text, site, here):
    """Return whether the text reached the ranks, Apptainer or a node, as it was given."""
    binds, environment = seen(here, "binds"), seen(here, "environment")
    own = f"{here}/s/{text}/lockstep-7"
    return {
        "name": lambda: f"--label=site={text}" in seen(here, "arguments"),
        "env": lambda: {f"OWN={text}", f"APPTAINERENV_OWN={text}"} <= set(environment),
        "image": lambda: binds[-1] == f"/{text}",
        "binds": lambda: f"--bind=/{text}" in binds,
        "args": lambda: f"--{text}" in binds,
        "suite": lambda: f"--bind=/{text}" in binds,
        "scratch": lambda: f"--bind={own}" in binds and f"LOCKSTEP_SCRATCH={own}" in environment,
        "stage_in": lambda: site.stage_in[0] in seen(here, "srun"),
    }.get(field, lambda: True)()


def check_hostile(field, text, stubs, here):
    """Execute the script of a site with a hostile text, and return False where it is refused."""
    made(here / "results")
    try:
        site = plain(**FIELDS[field](text, here))
        (job,) = jobs(small(), site, here / "results")
    except ValueError:
        return False
    if not all(is_made(Path(path)) for path in site.stage_in):
        return False
    script = render(job, site)
    ended = execute(script, stubs, here)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert list(here.rglob("BROKEN")) == []
    assert script.count("\n#SBATCH ") == len(job.directives)
    assert arrives(field, text, site, here)
    return True


def is_made(path):
    """Make a file to stage in, and return whether a file can have that name."""
    try:
        path.parent.mkdir(parents=True)
        path.touch(exist_ok=False)
    except (OSError, ValueError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=HOSTILE)
def test_a_hostile_site_is_refused_or_does_only_what_was_meant(
    field, text, stubs, tmp_path_factory
):
    check_hostile(field, text, stubs, tmp_path_factory.mktemp("hostile"))


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", HARMFUL)
def test_harmful_texts_do_no_harm(field, text, stubs, tmp_path):
    refused = "\n" in text or field in ("account", "extra_directives", "interface")
    executed = check_hostile(field, text, stubs, tmp_path)
    assert executed is not refused or text == "-x"


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDENS)
def test_no_template_lets_a_text_do_harm(name, stubs, tmp_path):
    text = "'; $(touch BROKEN); `touch BROKEN` \""
    changes = {"shell_before": ""}
    for field in ("name", "env", "binds", "args", "suite", "scratch"):
        changes |= FIELDS[field](text, tmp_path)
    site = plain(**changes)
    job, _ = golden_job(name, made(tmp_path / "results"), site)
    ids = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
    ended = execute(render(job, site), stubs, tmp_path, **ids)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(tmp_path.rglob("BROKEN")) == []
    assert f"OWN={text}" in seen(tmp_path, "environment")


@pytest.mark.parametrize("text", ["$(touch BROKEN) `b`", "(a) [b] {c} & | ; <d>", "it is -x !"])
def test_a_hostile_folder_is_refused_or_does_only_what_was_meant(text, stubs, tmp_path):
    folder = tmp_path / text
    folder.mkdir()
    try:
        (job,) = jobs(small(), plain(), made(folder))
    except ValueError:
        assert "$" in text
        return
    ended = execute(render(job, plain()), stubs, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"--bind={folder}" in seen(tmp_path, "binds")
    assert (folder / "launches" / "w1-r0" / "log.txt").exists()


def test_the_templates_hold_nothing_undefined():
    with pytest.raises(UndefinedError, match="'absent' is undefined"):
        environment().from_string("{{ absent }}").render()


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
