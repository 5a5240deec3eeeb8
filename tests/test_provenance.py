import hashlib
import json
import os

import pytest
import torch
from launched import git

from lockstep.core import record
from lockstep.launch import preflight
from lockstep.machine import provenance

UNKNOWN = {"git_commit": None, "git_dirty": None}


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


def test_a_checkout_gives_its_commit_and_is_dirty_once_a_file_is_changed(
    checkout, tmp_path, monkeypatch
):
    (checkout / "result.json").write_text("{}")
    expected = {"git_commit": git(checkout, "rev-parse", "HEAD"), "git_dirty": False}
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in another repository's hook
    assert provenance.git_facts(checkout) == expected
    (checkout / "code.py").write_text("x = 2\n")
    assert provenance.git_facts(checkout) == expected | {"git_dirty": True}
    (inside := checkout / "venv").mkdir()  # an installation has no commit of the checkout around
    assert provenance.git_facts(inside) == UNKNOWN


def test_a_checkout_of_another_owner_is_read_all_the_same(checkout):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    for path in [checkout, *checkout.rglob("*")]:
        os.chown(path, 12345, 12345)
    assert provenance.git_facts(checkout)["git_dirty"] is False


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
    facts = provenance.launch_facts(0, ["pytest"])
    assert facts["git_commit"] is None
    assert facts["lockstep_version"]


@pytest.mark.parametrize(
    ("text", "commit", "dirty"),
    [
        ("a1" * 20 + "\n", "a1" * 20, False),
        ("a1" * 20 + "-dirty\n", "a1" * 20, True),
        ("unknown\n", None, None),
    ],
)
def test_the_file_an_image_holds_names_the_commit_it_was_built_of(
    tmp_path, monkeypatch, text, commit, dirty
):
    monkeypatch.setenv("LOCKSTEP_COMMIT", "c3" * 20)  # the file comes before the variable
    (tmp_path / "COMMIT").write_text(text)
    assert provenance.git_facts(tmp_path) == {"git_commit": commit, "git_dirty": dirty}


def test_the_environment_keeps_what_steers_communication_and_no_secret():
    kept = {
        "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "0,1", "UCX_TLS": "rc", "FI_PROVIDER": "cxi",
        "HSA_ENABLE_SDMA": "0", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    }  # fmt: skip
    secret = ("TORCH_HUB_TOKEN", "NCCL_API_KEY", "GLOO_secret", "MKL_PASSWORD", "WANDB_API_KEY")
    left_out = {"HOME": "/home/a"} | dict.fromkeys(secret, "s3cret")
    assert provenance.environment(left_out | kept) == kept


@pytest.mark.parametrize(
    ("environ", "dropped", "kinds"),
    [
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, [], ["debug-detail"]),
        ({"NCCL_DEBUG": "TRACE"}, [], ["nccl-log"]),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,coll"}, [], ["nccl-log"]),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}, [], []),
        ({}, ["PATH", "OMP_PROC_BIND"], ["dropped-environment"]),
    ],
)
def test_settings_that_slow_or_miss_a_launch_are_flags(environ, dropped, kinds):
    facts = {"ranks": [], "device_names": [], "git_dirty": False, "environment": environ}
    flags = list(preflight.launch_flags(facts | {"dropped_environment": dropped}))
    assert [flag.kind for flag in flags] == kinds
    if dropped:
        assert flags[0].values == {"names": ["OMP_PROC_BIND"]}


HASHED = hashlib.sha256(b"image").hexdigest()


@pytest.mark.parametrize(
    ("variables", "digest"),
    [
        ({"APPTAINER_CONTAINER": "image.sif"}, HASHED),
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


def test_a_cpu_launch_claims_no_gpu_software():
    rank = provenance.rank_facts(0, 0, torch.device("cpu"))
    assert (rank["device"], rank["gpu_uuid"], rank["driver"]) == ("cpu", None, None)
    assert rank["cores"] == sorted(os.sched_getaffinity(0))
    launch = provenance.launch_facts(7, ["pytest", "bench/"])
    merged = provenance.launch_provenance(launch, [rank])
    assert set(record.POOLING_FACTS) <= set(merged)
    assert [merged[name] for name in provenance.GPU_FACTS] == [None] * 6
    assert merged["torch"] == torch.__version__
    assert (merged["seed"], merged["command"]) == (7, ["pytest", "bench/"])
    assert merged["device_names"] == [rank["device_name"]]
    assert merged["memory_bytes"] > 0
    assert json.loads(json.dumps(merged)) == merged


@pytest.mark.parametrize(("names", "backend", "gb_per_s"), [
    (["NVIDIA H200"] * 2, "nccl", 450), (["NVIDIA H200", "NVIDIA A40"], "nccl", None),
])  # fmt: skip
def test_the_link_of_gpus_is_that_of_their_sheet_and_each_driver_is_named(names, backend, gb_per_s):
    ranks = [
        {"rank": r, "device": f"cuda:{r}", "device_name": name, "driver": f"56{len(name)}"}
        for r, name in enumerate(names)
    ]
    merged = provenance.launch_provenance({"backend": backend, "cuda": "12.4"}, ranks)
    assert merged["gpu_link_gb_per_s"] == gb_per_s
    assert merged["device_names"] == sorted({*names})
    assert merged["driver"] == ", ".join(sorted({rank["driver"] for rank in ranks}))
    assert (merged["cuda"], merged["ranks"]) == ("12.4", ranks)


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
    assert provenance.hide_secrets(given) == shown
    shown = provenance.hide_secrets(["--journal=/home/me/j", "/home/me2"])
    assert shown == ["--journal=~/j", "/home/me2"]
