"""`lockstep demo`: a recorded campaign becomes the full page without torch."""

import gzip
import json
import re

import pytest
from commands import lockstep
from launched import ROOT, environ

from lockstep.report.load import recorded

FACTS = {"kind": "links", "num_nodes": 2, "rate_bit_per_s": 1e9}
TUTORIAL, README = ROOT / "docs" / "tutorial.md", ROOT / "README.md"
# Importing it ends with an error, as where it is not installed.
NO_TORCH = "raise ImportError('no torch here')\n"


@pytest.fixture
def recording(measured, tmp_path):
    path = tmp_path / "made.json.gz"
    path.write_bytes(recorded.pack(measured / "fp32", FACTS))
    return path


def test_the_page_of_a_recording_is_made_without_torch_and_says_what_it_is(recording, tmp_path):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "torch.py").write_text(NO_TORCH)
    path = f"{tmp_path / 'stub'}:{ROOT}"
    variables = environ(ROOT) | {"PYTHONPATH": path}
    ended = lockstep("demo", "--recording", recording, cwd=tmp_path, env=variables)
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "results" / "demo" / "report.html").read_text()
    assert "2 nodes simulated on one machine, with links of 1000 Mbit/s" in page
    assert json.loads((tmp_path / "results/demo/campaign.json").read_text())["recorded"] == FACTS


@pytest.mark.slow
def test_the_demo_that_ships_prints_what_the_tutorial_shows(tmp_path):
    ended = lockstep("demo", cwd=tmp_path, env=environ(ROOT))
    blocks = re.findall(r"^```text\n(.*?)^```", TUTORIAL.read_text(), re.M | re.S)
    assert len(blocks) == 2
    assert [block for block in blocks if block not in ended.stdout] == []
    (claim,) = re.findall(r"^Two simulated nodes give .*$", README.read_text(), re.M)
    for shown in ("1.58x", "101 ms", "254 ms"):
        assert shown in claim and shown in re.sub(r"\s+", " ", ended.stdout)


def test_a_recording_keeps_the_results_and_is_the_same_bytes_each_time(
    recording, measured, tmp_path
):
    assert recording.read_bytes() == recorded.pack(measured / "fp32", FACTS)
    recorded.unpack(recording, tmp_path / "demo")
    recorded.unpack(recording, tmp_path / "demo")
    for path in (measured / "fp32").glob("launches/*/result.json"):
        copy = tmp_path / "demo" / path.relative_to(measured / "fp32")
        assert json.loads(copy.read_text()) == json.loads(path.read_text())
    stale = tmp_path / "demo" / "launches" / "w9-r0" / "result.json"  # of an earlier recording
    stale.parent.mkdir()
    stale.write_text("{}")
    recorded.unpack(recording, tmp_path / "demo")
    assert not stale.parent.exists()
    assert recorded.pack(tmp_path / "demo", FACTS) == recording.read_bytes()


@pytest.mark.parametrize(
    "document", [{"campaign": {"recorded": {}}, "launches": {"../w1": {}}}, []]
)
def test_what_is_no_recording_is_refused(document, tmp_path):
    path = tmp_path / "other.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(ValueError, match="not a recorded campaign"):
        recorded.unpack(path, tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_a_folder_of_something_else_is_left_as_it_is(recording, tmp_path):
    with pytest.raises(ValueError, match="holds files that lockstep demo did not write"):
        recorded.unpack(recording, tmp_path)
