"""What is to be proven on a GPU, run on the CPU: its commands work, and their results are read."""

import re
import subprocess
import sys

import pytest
import torch
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
