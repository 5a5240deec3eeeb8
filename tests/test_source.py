"""What a launch measured is not mixed with another model, another suite or another host."""

import sys

import pytest
from data.job_samples import write_lines
from data.report_samples import CASE, document, entry, provenance, record, write

from lockstep import workloads
from lockstep.core import journal
from lockstep.core.record import KEY, SCHEMA_VERSION
from lockstep.launch import preflight
from lockstep.report.load.reading import gather
from lockstep.workloads import source

# A user's own workload, whose width may be edited or imported.
MINE = """
import torch
from torch import nn
from lockstep.workloads import Workload

WIDTH = 8

def mine() -> Workload:
    def make_batch(num_items, device, generator):
        inputs = torch.randn(num_items, WIDTH, device=device, generator=generator)
        return inputs, torch.zeros(num_items, dtype=torch.long, device=device)

    return Workload("mine", lambda: nn.Linear(WIDTH, 2), make_batch, nn.functional.cross_entropy)
"""


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """Return the digest of a workload by the texts of its modules, in a folder of its own."""

    def make(name, **texts):
        folder = tmp_path / name
        folder.mkdir()
        for module, text in texts.items():
            (folder / f"{module}.py").write_text(text)
            monkeypatch.delitem(sys.modules, module, raising=False)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            return source.sha256(workloads.make("mine:mine"))

    return make


def test_a_digest_is_of_the_workload_s_text_and_its_model_wherever_it_lies(digest):
    first = digest("a", mine=MINE)
    assert digest("b", mine=MINE) == first
    assert digest("c", mine=MINE.replace("WIDTH = 8", "WIDTH = 64")) != first
    imported = MINE.replace("WIDTH = 8", "from sizes import WIDTH")
    narrow, wide = (digest(f"d{n}", mine=imported, sizes=f"WIDTH = {n}") for n in (8, 64))
    assert narrow != wide


def head(host="node1", resumed=False):
    """Return the line of a session on a host."""
    facts = provenance(suite_sha256="old") | {"ranks": [{"rank": 0, "host": host}]}
    return {
        "kind": "launch", "schema": SCHEMA_VERSION, "resumed": resumed, "expected": [CASE],
        "document": {"version": "5"},
        "launch": {"world_size": 1, "provenance": facts, "measured_with": {}},
    }  # fmt: skip


@pytest.mark.parametrize(("suite", "digests", "said"), [
    ("old", {CASE: "b" * 64}, r"the source code of workload mlp has changed since .*"
     r"measure into another folder \(workload_sha256 was a{12}, now b{12}\)"),
    ("new", {}, "journal.jsonl was measured with suite_sha256 old, but suite_sha256 is now new; "
     "Lockstep does not mix such results, so measure into another folder"),
])  # fmt: skip
def test_a_resume_with_another_source_is_refused(tmp_path, suite, digests, said):
    case = entry(CASE, record(workload_sha256="a" * 64))
    line = {"kind": "case", "case": CASE, "benchmark": case}
    path = write_lines(tmp_path / "journal.jsonl", head(), line)
    launch = provenance(suite_sha256="old")
    assert CASE in preflight.resumable(path, {}, launch, {CASE: "a" * 64}).done
    with pytest.raises(ValueError, match=said):
        preflight.resumable(path, {}, launch | {"suite_sha256": suite}, digests)


def test_a_launch_that_goes_on_elsewhere_says_which_host_measured_what(tmp_path):
    path = write_lines(tmp_path / "journal.jsonl", head("node-a"), head("node-b", resumed=True))
    sessions = journal.rebuild(path)[KEY]["sessions"]
    assert [session["rank_hosts"] for session in sessions] == [["node-a"], ["node-b"]]
    cases = {name: record(rank_hosts=[f"node-{name[-1]}"]) for name in ("test_a", "test_b")}
    write(tmp_path, document("w1-r0", 1, cases))
    for row in gather([tmp_path]).rows:
        assert any(flag.kind == "moved" for flag in row.flags)
