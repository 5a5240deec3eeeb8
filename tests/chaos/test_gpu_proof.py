"""What is to be proven on a GPU, run on the CPU: its commands work, and their results are read."""

import json
import re
import subprocess
import sys

import gpu_proof
import pytest
import torch
from data.profile_samples import write_ncu, write_sqlite
from launched import ROOT

SCRIPT = ROOT / "tests" / "validation" / "gpu_proof.py"


@pytest.mark.chaos
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there; run make gpu-proof")
def test_without_a_gpu_every_claim_waits_for_one(tmp_path):
    command = [sys.executable, SCRIPT, "--to", tmp_path, "--minutes"]
    cut = subprocess.run([*command, "0.1"], capture_output=True, text=True, check=False)
    assert (cut.returncode, "machine is left" in cut.stdout) == (1, True), cut.stderr
    ended = subprocess.run([*command, "30"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    verdicts = re.findall(r"\| ([^|]*) \|$", (tmp_path / "claims.md").read_text(), re.MULTILINE)[1:]
    assert set(verdicts) == {"waits for a GPU"}
    assert (tmp_path / "bundle.tar.gz").exists()


def test_what_nsight_records_is_judged(tmp_path, monkeypatch):
    write_sqlite(tmp_path / "step.sqlite")
    assert gpu_proof.judge_ranges(tmp_path)[1]
    write_ncu(tmp_path / "log-1.txt")
    assert gpu_proof.judge_roofline(tmp_path) == ("0.404, 0.896", True)
    assert not gpu_proof.judge_kernels(tmp_path)[1]
    monkeypatch.setattr(gpu_proof, "NCU_KERNELS", 3)
    assert gpu_proof.judge_kernels(tmp_path)[1]
    write_ncu(tmp_path / "log-1.txt", "GPU of the future")
    assert not gpu_proof.judge_roofline(tmp_path)[1]


def test_samples_and_links_of_a_launch_are_judged(tmp_path):
    (folder := tmp_path / "precision" / "launches" / "w1-r0" / "telemetry").mkdir(parents=True)
    names = ("gpu_utilisation", "memory_utilisation", "gpu_memory_bytes", "power_w")
    lines = [",".join(("time_s", "case", *names, "temperature_c"))]
    lines += [f"{1.2 * second:.3f},a,0.9,0.4,8e9,600,50" for second in range(30)]
    (folder / "journal-rank-0.csv").write_text("\n".join(lines))
    assert gpu_proof.judge_samples(tmp_path) == ("29 rows in 34.8 s", True)
    assert gpu_proof.judge_use(tmp_path)[1]
    result, links = (
        folder.parent / "result.json",
        {"gpu_topology": ["GPU0 X"], "nvlink": ["26 GB/s"]},
    )
    for known, holds in ((links, True), (links | {"nvlink": None}, False)):
        result.write_text(json.dumps({"lockstep": {"provenance": known}}))
        assert gpu_proof.judge_links(tmp_path)[1] == holds
