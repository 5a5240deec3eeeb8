import json
import os

import pytest
from data.job_samples import write_lines
from data.report_samples import CASE, document, one_launch, record, strong_tree, write

from lockstep.core.journal import write_result
from lockstep.core.record import KEY
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load.gaps import gaps
from lockstep.report.load.reading import load
from lockstep.report.page.content_of_page import page


def write_journal(folder, content, **header):
    """Write the journal of a launch that was killed before its last case."""
    own = content[KEY]
    launch = {k: own[k] for k in ("launch", "campaign", "started", "world_size", "provenance")}
    head = {"kind": "launch", "resumed": False, "schema": own["schema"], "launch": launch}
    head |= {"expected": [CASE, "never reached"], "document": {}} | header
    ended = [{"kind": "case", "case": b["name"], "benchmark": b} for b in content["benchmarks"]]
    write_lines(folder / "journal.jsonl", head, *ended)


@pytest.mark.parametrize("journal_s", [0, 1, 2])  # a copy has any times
def test_a_launch_resumed_and_killed_is_read_from_its_journal(tmp_path, journal_s):
    path = write(tmp_path, one_launch())
    more = document("w1-r0", 1, {CASE: record(), "measured later": record()})
    write_journal(path.parent, more)
    os.utime(path.with_name("journal.jsonl"), (journal_s, journal_s))
    os.utime(path, (1, 1))
    assert [row.case for row in load([tmp_path]).rows] == [CASE, "measured later"]


@pytest.mark.parametrize("journal_s", [0, 1, 2])
def test_a_result_is_preferred_to_a_journal_that_holds_no_more(tmp_path, journal_s):
    path = tmp_path / "launches" / "w1-r0" / "result.json"
    write_journal(path.parent, one_launch())
    write_result(path.with_name("journal.jsonl"), path)
    os.utime(path.with_name("journal.jsonl"), (journal_s, journal_s))
    os.utime(path, (1, 1))
    assert [launch.path for launch in load([tmp_path]).launches] == [path]


@pytest.mark.parametrize("journal", ["not read", '{"kind": "case", but no JSON\n' * 2])
def test_a_result_is_read_beside_a_journal_that_cannot_be(tmp_path, journal):
    path = write(tmp_path, one_launch())
    path.with_name("journal.jsonl").write_text(journal)
    assert [launch.path for launch in load([tmp_path]).launches] == [path]


def test_a_launch_whose_result_was_cut_is_read_from_its_journal_or_left_out(tmp_path):
    strong_tree(tmp_path)
    whole = load([tmp_path])
    assert whole.unread == []
    first, second = sorted(tmp_path.glob("launches/*/result.json"))[:2]
    for path in (first, second):
        os.truncate(path, 100)
    write_journal(first.parent, one_launch())
    os.utime(first.parent / "journal.jsonl", (0, 0))  # older than the result that was cut
    found = load([tmp_path])
    assert len(found.launches) == len(whole.launches) - 1
    assert first.parent.name in [launch.path.parent.name for launch in found.launches]
    why = str(*found.unread)
    assert why.startswith(f"{second}: the file is not valid JSON, and may be truncated: ")
    shown = str(page(evaluate(found), 0.7))
    assert "A file is not in this report, because it cannot be read: " in shown


def test_a_folder_of_campaigns_or_sessions_names_them(tmp_path):
    write_journal(tmp_path / "pytest" / "20261120T120000Z", one_launch())
    strong_tree(tmp_path / "first")
    for folder, name in ((tmp_path, "first"), (tmp_path / "pytest", "20261120T120000Z")):
        with pytest.raises(
            ValueError, match=f"holds no result; give a folder of .*: {folder / name}$"
        ):
            load([folder])


@pytest.mark.parametrize(
    ("campaign", "sentence"),
    [("[]", "must hold one JSON object"), ('{"schema": 7}', "schema 7"),
     ("{", "truncated"),
     ('{"schema": 1, "launches": [{"name": 4}]}', r"launches\[0\].name is 4")],
)  # fmt: skip
def test_a_broken_campaign_file_is_refused(tmp_path, campaign, sentence):
    write(tmp_path, one_launch())
    (tmp_path / "campaign.json").write_text(campaign)
    with pytest.raises(ValueError, match=sentence) as caught:
        load([tmp_path])
    assert "campaign.json" in str(caught.value)


def planned(root, started, *launches):
    """Write a campaign of one case, planned at two sizes, twice each."""
    for name in launches:
        write(root, document(name, int(name[1]), {CASE: record(world_size=int(name[1]))},
                             started=started))  # fmt: skip
    names = ("w1-r0", "w1-r1", "w2-r0", "w2-r1")
    plan = [{"name": name, "world_size": int(name[1])} for name in names]
    content = {"schema": 1, "name": "demo", "launches": plan}
    (root / "campaign.json").write_text(json.dumps(content))
    return root


def test_what_one_campaign_lacks_another_does_not_make_up_for(tmp_path):
    a = planned(tmp_path / "a", "2026-11-20T12:00:00+00:00", "w1-r0", "w1-r1", "w2-r0")
    b = planned(tmp_path / "b", "2026-11-21T12:00:00+00:00", "w1-r0", "w1-r1", "w2-r0", "w2-r1")
    (gap,) = gaps(load([a, b]))
    assert (gap.kind, gap.world_size) == ("not-run", 2)
    assert gap.launch not in {launch.name for launch in load([a, b]).launches}
    (gap,) = gaps(load([a, a, a / "launches"]))
    assert (gap.kind, gap.launch) == ("not-run", "w2-r1")
    assert load([a, a]).campaign["name"] == "demo"
