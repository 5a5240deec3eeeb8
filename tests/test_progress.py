from datetime import UTC, datetime

from lockstep.campaign.campaign import Campaign, Launch, plan
from lockstep.campaign.folder import Folder
from lockstep.campaign.progress import TimeLeft, estimate
from lockstep.core.journal import Journal
from lockstep.core.processes import hostname

CAMPAIGN = {"schema": 1, "name": "own", "studies": ["weak"], "world_sizes": [1, 2], "size": "smoke"}


def test_what_launches_take_is_told_by_earlier_ones_on_this_host(tmp_path):
    """A case took 8 s, and the second launch began 30 s after the first had ended."""
    own, folder = Campaign.model_validate(CAMPAIGN), tmp_path / "own"
    launches, before = plan(own), Folder(folder / "replaced" / "then")
    assert estimate(own, folder, launches) == {}
    for repeat, begun_s in enumerate((0.0, 190.0)):
        made = Journal(before.journal(f"w1-r{repeat}"))
        facts = {"world_size": 1, "provenance": {"ranks": [{"host": hostname()}]}}
        made.append({"kind": "launch", "schema": 1, "launch": facts, "time": stamp(begun_s)})
        for number in range(1, 21):
            at = stamp(begun_s + 8.0 * number)
            made.append({"kind": "skip", "case": str(number), "reason": "none", "time": at})
        made.close()
    before.journal("w2-r0").parent.mkdir()
    before.journal("w2-r0").write_text("not JSON\n{}\n")
    needed = estimate(own, folder, launches)
    assert set(needed.values()) == {30.0 + 8.0 * own.num_cases()}


def stamp(at_s):
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def test_the_time_left_falls_and_follows_the_launches_of_each_size():
    left = TimeLeft([Launch(size, repeat) for repeat in range(2) for size in (1, 2)], 0.0)
    assert left.left_s(5.0) is None
    left.share = 0.5
    assert left.left_s(15.0) == 20 * 4 - 15
    left.end(20.0)
    left.end(60.0)  # two ranks take twice as long
    assert left.left_s(60.0) == 20 + 40
    assert left.left_s(70.0) == 10 + 40
    assert left.left_s(100.0) == 40  # a launch that takes longer than its like
