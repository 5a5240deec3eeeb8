"""Batch scripts as they read."""

import os
import subprocess
from pathlib import Path

import pytest
from cluster import need
from data.job_samples import CONTAINER, campaign_of, site_of, small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_runs import JobRun, made, plain

from lockstep.slurm.submit.job import jobs, profile
from lockstep.slurm.submit.script import LIBRARY, render

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
PREPARE = {"name": "prepare", "command": "echo 'it is' prepared", "folder": "/usr/lib"}
# name of the golden script -> site's changes, campaign's, profiler, which of the jobs
GOLDENS = {
    "ladder-gpu-modules": (NATIVE, {}, None, 0),
    "ladder-cpu-container": (CPU, {"device": "cpu", "jobs": APART}, None, 0),
    "ladder-staged": (STAGED, {}, None, 0),
    "job-pyxis": (
        {"container": CONTAINER | {"runtime": "pyxis", "image": "/images/a.sqsh", "args": []}},
        {"jobs": APART | {"allocation": "job"}},
        None,
        3,
    ),
    "job-podman-hpc": (
        {"container": {"runtime": "podman-hpc", "image": "lockstep:1", "args": ["--nccl"]}},
        {"jobs": APART | {"allocation": "job"}},
        None,
        3,
    ),
    "ladder-torchrun": (CPU | {"launcher": "torchrun"}, {"device": "cpu"}, None, 0),
    "array-gpu-container": ({}, {"jobs": {"allocation": "array", "max_running": 2}}, None, 1),
    "preflight-gpu-container": ({}, {"jobs": ALL}, None, 0),
    "collect-gpu-container": ({}, {"jobs": ALL}, None, 2),
    "stage-gpu-container": ({}, {"jobs": {"stage": [PREPARE]}}, None, 0),
    "profile-nsys": ({}, {}, "nsys", 0),
    "profile-ncu": ({}, {}, "ncu", 0),
    "profile-torch": ({}, {}, "torch", 0),
}


# one of each template
OF_EACH_KIND = (
    *("ladder-staged", "job-pyxis", "array-gpu-container", "preflight-gpu-container"),
    *("collect-gpu-container", "stage-gpu-container", "profile-nsys"),
)


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


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"gpu_type": None, "gpu_types": ["a100", "h100"]}, "#SBATCH --constraint=[a100|h100]"),
        (
            {"cpu_bind": "verbose,cores", "mpi": "pmix", "srun_options": ["--label"]},
            "srun_options=('--cpu-bind=verbose,cores' --mpi=pmix --label)",
        ),
        ({"modules": ["Apptainer 1.3"]}, "module load 'Apptainer 1.3' || lockstep_fail "),
        ({"container": CONTAINER | {"runtime": "singularity"}}, "in_image=(singularity exec "),
        ({"scratch": "$TMPDIR/my own"}, 'scratch="${TMPDIR:?the site file uses '),
        ({"interface": "a", "env": {"GLOO_SOCKET_IFNAME": "b"}}, "export GLOO_SOCKET_IFNAME=b"),
    ],
)
def test_keys_of_a_site_are_in_its_scripts(keys, line):
    site = plain(**keys)
    script = render(jobs(small(), site, FOLDER)[0], site)
    assert f"\n{line}" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "gpus-per-node" not in script or site.gpu_request == "gpus-per-node"


def test_an_image_sees_a_node_s_own_folders_only_where_its_job_stages():
    local = {"scratch": "/local/jobs", "stage_cache": "/local/cache", "stage_in": ["/data"]}
    site = plain(container={"runtime": "podman-hpc", "image": "lockstep:1"}, **local)
    for job in jobs(campaign_of(jobs=ALL), site, FOLDER):
        assert ("--volume=/local" in render(job, site)) is (job.kind != "collect")


def shellcheck(*arguments):
    need("shellcheck")
    # What a site loads is its own.
    command = ["shellcheck", "--exclude=SC1090,SC1091", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_a_shell_reads_every_script():
    names = [GOLDEN / f"{name}.sh" for name in GOLDENS]
    assert set(names) == set(GOLDEN.glob("*.sh"))
    for name in names:
        subprocess.run(["bash", "-n", name], check=True)
    # What a script sets the library uses, and the other way round.
    assert shellcheck("--exclude=SC2034,SC2154", *names) == ""


def test_shellcheck_finds_nothing_in_the_library_and_a_script_that_sources_it(tmp_path):
    source = f'. "$results/jobs/{LIBRARY}"'
    script = script_of("ladder-staged")
    assert script.count(source) == 1
    path = tmp_path / "script.sh"
    path.write_text(script.replace(source, f"# shellcheck source={LIBRARY_FILE}\n{source}"))
    assert shellcheck("--external-sources", LIBRARY_FILE, path) == ""


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


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_site_replaces_a_block_of_every_template(tmp_path, name):
    site = own_template(tmp_path, OWN_TEMPLATE)
    job, _ = golden_job(name)
    plain = render(job, site_of(shell_before=""))
    made = render(job, site)
    assert "echo here >&2\n" in made
    assert [line for line in made.split("\n") if line and line != "echo here >&2"] == [
        line for line in plain.split("\n") if line
    ]


def block(text):
    return f'{{% extends "base.sh.j2" %}}\n{{% block before %}}\n{text}\n{{% endblock %}}'


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{% block before %}", r":1: "),
        (block("{% if %}"), r":3: "),
        ('{% extends "site.sh.j2" %}', ":1: .*extend base.sh.j2"),
        (block("if true; then"), ": bash cannot parse the resulting script"),
        (None, ": No such file"),
    ],
)
def test_a_broken_template_is_refused_with_its_place_in_one_line(tmp_path, text, place):
    site = own_template(tmp_path, text or "")
    if text is None:
        Path(site.template).unlink()
    with pytest.raises(ValueError, match=rf"^{tmp_path}/site\.sh\.j2{place}") as caught:
        render(jobs(small(), site, FOLDER)[0], site)
    assert "\n" not in str(caught.value)


# Texts of strangers in a site: each script does only what it was meant to.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(list(" '\"`$();&|<>*?[]{}#!~\\=%,:-\n\t\r")),
        st.characters(codec="utf-8", min_codepoint=1),
    ),
    min_size=1,
    max_size=12,
)
# field of a site -> its value with a hostile text in a folder, and the word that must arrive
FIELDS = {
    "name": (lambda text, _: text, "arguments", "--label=site={}"),
    "env": (lambda text, _: {"OWN": text}, "environment", "OWN={}"),
    "suite": (lambda text, _: f"/{text}", "binds", "--bind=/{}"),
    "scratch": (lambda text, here: f"{here}/s/{text}", "binds", "--bind={1}/s/{0}/lockstep-7"),
    "stage_in": (lambda text, here: [f"{here}/in/{text}"], "srun", "{1}/in/{0}"),
    "binds": (lambda text, _: [f"/b/{text}"], "binds", "--bind=/b/{}"),
    "args": (lambda text, _: [f"--{text}"], "binds", "--{}"),
    "image": (lambda text, _: f"/i/{text}", "binds", "/i/{}"),
}
OF_CONTAINER = ("binds", "args", "image")


def hostile_site(text, here):
    """Return a site with a text in each field that takes it, and the names of these fields."""
    changes, fields = {}, []
    for name, (value, _, _) in FIELDS.items():
        more = {name: value(text, here)}
        if name in OF_CONTAINER:
            more = {"container": dict(site_of().container) | changes.get("container", {}) | more}
        try:
            plain(**changes | more)
            for file in map(Path, more.get("stage_in", ())):
                file.parent.mkdir(parents=True)
                file.touch(exist_ok=False)
        except (OSError, ValueError):
            continue
        changes |= more
        fields.append(name)
    return plain(**changes), fields


def check_hostile(text, here, make_job):
    """Run a job of a site with a hostile text, and return which fields took it."""
    site, fields = hostile_site(text, here)
    run = JobRun(here, made(here / "results"))
    spec = make_job(site, run.results)
    script = render(spec, site)
    ids = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
    ended = run.execute(script, **ids if spec.kind == "array" else {})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(here.rglob("BROKEN")) == []
    assert script.count("\n#SBATCH ") == len(spec.directives)
    if spec.kind == "ladder":
        for name in fields:
            _, what, word = FIELDS[name]
            assert word.format(text, here) in run.seen(what), name
    return fields


def one_launch(site, results):
    return jobs(small(), site, results)[0]


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(text=TEXTS)
def test_a_hostile_site_is_refused_or_does_only_what_was_meant(text, tmp_path_factory):
    check_hostile(text, tmp_path_factory.mktemp("hostile"), one_launch)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_no_template_lets_a_text_do_harm(name, tmp_path):
    text = "'; $(touch BROKEN); `touch BROKEN` \"{{ 7 }} {% raw %} -x \\"
    fields = check_hostile(text, tmp_path, lambda site, made: golden_job(name, made, site)[0])
    assert set(fields) == set(FIELDS)
    assert hostile_site("x\ntouch BROKEN", tmp_path)[1] == []


@pytest.mark.parametrize("name", ["(a) [b] {c} & | ; <d>", "$(touch BROKEN) `b`"])
def test_a_hostile_folder_is_refused_or_does_only_what_was_meant(name, tmp_path):
    results = tmp_path / name
    results.mkdir()
    if "$" in name:
        with pytest.raises(ValueError, match="has a special meaning to sbatch or Apptainer"):
            one_launch(plain(), results)
        return
    run = JobRun(tmp_path, made(results))
    ended = run.run()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"--bind={results}" in run.seen("binds")
    assert (results / "launches" / "w1-r0" / "log.txt").exists()
