import hashlib
import json
import os
import shutil
import socket

import pytest
from launched import git

from lockstep import content
from lockstep.core import record
from lockstep.launch import preflight
from lockstep.machine import provenance

UNKNOWN = {"git_commit": None, "git_dirty": None}
# In CI a missing git is a failure.
HAS_GIT = pytest.mark.skipif(
    shutil.which("git") is None and os.environ.get("CI") != "true", reason="git is not on PATH"
)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCKSTEP_COMMIT", raising=False)
    root = tmp_path / "suite"
    root.mkdir()
    (root / "code.py").write_text("x = 1\n")
    git(root, "init", "--quiet")
    git(root, "add", "code.py")
    git(root, "commit", "--quiet", "-m", "Start")
    return root


@HAS_GIT
def test_a_checkout_gives_its_commit_and_is_dirty_once_a_file_is_changed(checkout):
    (checkout / "result.json").write_text("{}")
    expected = {"git_commit": git(checkout, "rev-parse", "HEAD"), "git_dirty": False}
    assert provenance.git_facts(checkout) == expected
    (checkout / "code.py").write_text("x = 2\n")
    assert provenance.git_facts(checkout) == expected | {"git_dirty": True}


@HAS_GIT
def test_a_hook_of_another_repository_does_not_lead_astray(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert len(provenance.git_facts(checkout)["git_commit"]) == 40


@HAS_GIT
def test_an_installation_inside_another_checkout_borrows_no_commit(checkout):
    inside = checkout / "venv"
    inside.mkdir()
    assert provenance.git_facts(inside) == {"git_commit": None, "git_dirty": None}


@HAS_GIT
def test_a_checkout_of_another_owner_is_read_all_the_same(checkout):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    for path in [checkout, *checkout.rglob("*")]:
        os.chown(path, 12345, 12345)
    assert provenance.git_facts(checkout)["git_dirty"] is False


@HAS_GIT
@pytest.mark.parametrize(
    ("file", "dirty"),
    [("code.py", False), ("changed.py", True), ("test_new.py", True), (".venv/model.py", None)],
)
def test_own_code_is_of_its_repository_s_commit_unless_git_ignores_it(checkout, file, dirty):
    (checkout / ".gitignore").write_text(".venv\n")
    (checkout / ".venv").mkdir()
    for name in ("changed.py", ".venv/model.py"):
        (checkout / name).write_text("x = 1\n")
    git(checkout, "add", "changed.py", ".gitignore")
    git(checkout, "commit", "--quiet", "-m", "Add")
    if file in ("changed.py", "test_new.py"):
        (checkout / file).write_text("x = 2\n")
    commit = None if dirty is None else git(checkout, "rev-parse", "HEAD")
    known = provenance.project_facts(checkout / file)
    assert known == {"project_commit": commit, "project_dirty": dirty}


def test_without_git_the_image_names_the_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LOCKSTEP_COMMIT", "abc1234")
    assert provenance.git_facts(tmp_path) == {"git_commit": "abc1234", "git_dirty": False}
    monkeypatch.delenv("LOCKSTEP_COMMIT")
    assert provenance.git_facts(tmp_path) == UNKNOWN


@pytest.mark.parametrize(
    ("text", "commit", "dirty"),
    [
        ("a1" * 20 + "\n", "a1" * 20, False),
        ("a1" * 20 + "-dirty\n", "a1" * 20, True),
        ("", None, None),
        ("unknown\n", None, None),
        ("a1" * 20 + "\n" + "b2" * 20, None, None),
    ],
)
def test_the_file_an_image_holds_names_the_commit_it_was_built_of(
    tmp_path, monkeypatch, text, commit, dirty
):
    monkeypatch.setenv("LOCKSTEP_COMMIT", "c3" * 20)  # the file comes before the variable
    (tmp_path / "COMMIT").write_text(text)
    assert provenance.git_facts(tmp_path) == {"git_commit": commit, "git_dirty": dirty}


@HAS_GIT
def test_a_checkout_bound_into_an_image_is_not_taken_for_the_images_suite(checkout, monkeypatch):
    head = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("LOCKSTEP_COMMIT", "b2" * 20)
    assert provenance.git_facts(checkout) == {"git_commit": head, "git_dirty": False}
    monkeypatch.setenv("PATH", "")
    assert provenance.git_facts(checkout) == UNKNOWN


def test_the_environment_keeps_what_steers_communication_and_no_secret():
    kept = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "UCX_TLS": "rc",
        "FI_PROVIDER": "cxi",
        "HSA_ENABLE_SDMA": "0",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    }
    left_out = {
        "HOME": "/home/a",
        "TORCH_HUB_TOKEN": "s3cret",
        "NCCL_API_KEY": "s3cret",
        "GLOO_secret": "s3cret",
        "MKL_PASSWORD": "s3cret",
        "WANDB_API_KEY": "s3cret",
    }
    assert provenance.environment(left_out | kept) == kept


@pytest.mark.parametrize(
    ("environ", "kinds"),
    [
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, ["debug-detail"]),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, []),
        ({"NCCL_DEBUG": "TRACE"}, ["nccl-log"]),
        ({"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "ALL"}, ["nccl-log"]),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,coll"}, ["nccl-log"]),
        ({"NCCL_DEBUG": "INFO"}, []),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}, []),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}, []),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, []),
    ],
)
def test_checks_and_logs_of_every_collective_are_flags(environ, kinds):
    facts = {"ranks": [], "device_names": [], "git_dirty": False, "environment": environ}
    assert [flag.kind for flag in preflight.launch_flags(facts)] == kinds


def test_what_steers_torch_and_did_not_reach_the_image_is_a_flag():
    facts = {"ranks": [], "device_names": [], "git_dirty": False, "environment": {}}
    facts["dropped_environment"] = ["PATH", "OMP_PROC_BIND"]
    (found,) = preflight.launch_flags(facts)
    assert (found.kind, found.values) == ("dropped-environment", {"names": ["OMP_PROC_BIND"]})


def test_slurm_facts_are_those_of_the_job_and_empty_outside_one():
    job = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_STEP_ID": "0"}
    job |= {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "1"}
    assert provenance.slurm_facts(job | {"SLURM_CONF": "/etc/slurm.conf"}) == job
    assert provenance.slurm_facts({"HOME": "/"}) == {}


HASHED = hashlib.sha256(b"image").hexdigest()


@pytest.mark.parametrize(
    ("variables", "digest"),
    [
        ({"APPTAINER_CONTAINER": "image.sif"}, HASHED),
        ({"SINGULARITY_CONTAINER": "image.sif"}, HASHED),
        # The job script's own hash counts, inside a container only.
        ({"APPTAINER_CONTAINER": "gone.sif", "LOCKSTEP_IMAGE_SHA256": "f" * 64}, "f" * 64),
        ({"LOCKSTEP_IMAGE_SHA256": "f" * 64}, None),
        ({"APPTAINER_CONTAINER": "."}, None),  # a sandbox cannot be read
    ],
)
def test_the_image_is_hashed_where_the_job_script_did_not(tmp_path, monkeypatch, variables, digest):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.sif").write_bytes(b"image")
    facts = provenance.image_facts(variables)
    assert facts["image_sha256"] == digest
    assert facts["image_path"] in (None, *variables.values())


@pytest.mark.parametrize(
    ("number", "text"), [(None, None), (8902, "8.9.2"), (91002, "9.10.2"), (90100, "9.1.0")]
)
def test_cudnn_numbers_read_as_versions(number, text):
    assert provenance._cudnn_version(number) == text


def test_a_missing_package_has_no_version():
    assert provenance.package_version("no-such-distribution") is None
    assert provenance.package_version("pytest") == pytest.__version__


def test_a_rank_on_this_cpu_is_described():
    import torch

    facts = provenance.rank_facts(3, 1, torch.device("cpu"))
    assert (facts["rank"], facts["local_rank"], facts["device"]) == (3, 1, "cpu")
    assert facts["host"] == socket.gethostname()
    assert facts["pid"] == os.getpid()
    assert facts["cores"] == sorted(os.sched_getaffinity(0))
    assert facts["num_threads"] == torch.get_num_threads()
    assert facts["device_name"]
    assert facts["gpu_uuid"] is None
    assert facts["driver"] is None


def test_a_cpu_launch_claims_no_gpu_software():
    import torch

    rank = provenance.rank_facts(0, 0, torch.device("cpu"))
    launch = provenance.launch_facts(7, ["pytest", "bench/"])
    merged = provenance.launch_provenance(launch, [rank])
    assert set(record.POOLING_FACTS) <= set(merged)
    assert [merged[name] for name in provenance.GPU_FACTS] == [None] * 4
    assert merged["torch"] == torch.__version__
    assert (merged["seed"], merged["command"]) == (7, ["pytest", "bench/"])
    assert merged["device_names"] == [rank["device_name"]]
    assert merged["memory_bytes"] > 0
    assert json.loads(json.dumps(merged)) == merged


def test_drivers_that_differ_are_all_named():
    launch = {"torch": "2.6.0", "cuda": "12.4", "cudnn": "9.1.0", "nccl": "2.21.5", "driver": "550"}
    ranks = [
        {"rank": r, "device": f"cuda:{r}", "device_name": name, "driver": driver}
        for r, (name, driver) in enumerate([("NVIDIA H200", "560.1"), ("NVIDIA A40", "550.2")])
    ]
    merged = provenance.launch_provenance(launch, ranks)
    assert merged["driver"] == "550.2, 560.1"
    assert merged["device_names"] == ["NVIDIA A40", "NVIDIA H200"]
    assert merged["cuda"] == "12.4"
    assert merged["ranks"] == ranks


def test_the_version_is_that_of_this_checkout():
    pyproject = (content.IMPORTABLE_FROM / "pyproject.toml").read_text()
    assert f'version = "{provenance.lockstep_version()}"' in pyproject


def test_without_git_a_launch_is_still_described(monkeypatch):
    import torch  # noqa: F401, what is read below must be importable

    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("LOCKSTEP_COMMIT", raising=False)
    facts = provenance.launch_facts(0, ["pytest"])
    assert facts["git_commit"] is None
    assert facts["lockstep_version"]


def test_ranks_share_the_cores_of_their_host_whether_each_is_bound_or_not():
    def rank(host, *cores):
        return {"host": host, "cores": list(cores)}

    bound = [rank("a", 0, 1), rank("a", 2, 3), rank("b", 0, 1)]
    assert [preflight.cores_beside(bound, number) for number in range(3)] == [4, 4, 2]
    assert preflight.cores_beside([rank("a", 0, 1), rank("a", 0, 1)], 1) == 2


def test_the_command_line_keeps_no_secret_and_no_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    given = ["pytest", "--label=token=a", "--api-key", "b", "--label", "password=c=d"]
    shown = ["pytest", "--label=token=***", "--api-key", "***", "--label", "password=***"]
    assert provenance.without_secrets(given) == shown
    assert provenance.without_secrets(["--journal=/home/me/j", "/home/me2"]) == [
        "--journal=~/j",
        "/home/me2",
    ]


def test_what_is_measured_by_is_all_there():
    rooms = [content.PACKAGE / room for room in provenance.MEASURING_ROOMS]
    assert [room for room in rooms if not (room.is_file() or list(room.glob("*.py")))] == []
