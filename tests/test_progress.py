from datetime import UTC, datetime

from lockstep.campaign.campaign import Campaign, Launch, plan
from lockstep.campaign.folder import Folder
from lockstep.campaign.progress import TimeLeft, estimate, short_names
from lockstep.core.journal import Journal
from lockstep.core.processes import hostname

CAMPAIGN = {"schema": 1, "name": "own", "studies": ["weak"], "world_sizes": [1, 2], "size": "smoke"}


def test_a_case_is_named_by_what_tells_it_from_the_others_of_its_test():
    one = "test_strong_scaling[workload=resnet18-global_batch=64]"
    small = "test_bucket_size[workload=resnet18-bucket_cap_mb=1-local_batch=32]"
    large = "test_bucket_size[workload=resnet18-bucket_cap_mb=25-local_batch=32]"
    assert short_names([one, small, large]) == {
        one: "strong_scaling workload=resnet18, global_batch=64",
        small: "bucket_size bucket_cap_mb=1",
        large: "bucket_size bucket_cap_mb=25",
    }


def test_names_stay_apart_where_two_factors_differ():
    cases = [f"test_x[a={a}-b={b}-c=0]" for a in (1, 2) for b in (1, 2)]
    names = short_names(cases)
    assert len(set(names.values())) == len(cases)
    assert names[cases[0]] == "x a=1, b=1"


def test_earlier_launches_tell_the_time_left_until_these_do():
    left = TimeLeft([Launch(1, 0), Launch(2, 0)], 0.0, {"w1-r0": 30.0, "w2-r0": 60.0})
    assert left.left_s(10.0) == 20 + 60
    left.end(20.0)
    assert left.left_s(30.0) == 50


def test_what_launches_take_is_told_by_those_like_them_on_this_host(tmp_path):
    """A case took 8 s, and the second launch began 30 s after the first had ended."""
    own = Campaign.model_validate(CAMPAIGN)
    before, launches = Folder(tmp_path / "before"), plan(own)
    before.path.mkdir()
    before.claim(own.model_copy(update={"name": "before"}), launches)
    assert estimate(own, tmp_path / "own", launches) is None
    for repeat, begun_s in enumerate((0.0, 190.0)):
        made = Journal(before.journal(f"w1-r{repeat}"))
        facts = {"world_size": 1, "provenance": {"ranks": [{"host": hostname()}]}}
        made.append({"kind": "launch", "schema": 1, "launch": facts, "time": stamp(begun_s)})
        for number in range(1, 21):
            at = stamp(begun_s + 8.0 * number)
            made.append({"kind": "skip", "case": str(number), "reason": "none", "time": at})
        made.close()
    broken = Folder(tmp_path / "broken")
    broken.path.mkdir()
    broken.claim(own.model_copy(update={"name": "broken"}), launches)
    broken.launch("w1-r0").mkdir(parents=True)
    broken.journal("w1-r0").write_text("no journal\n{}\n")
    needed = estimate(own, tmp_path / "own", launches)
    assert needed.source == before.path
    assert set(needed.launches.values()) == {30.0 + 8.0 * own.num_cases()}


def stamp(at_s):
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def test_the_time_left_falls_and_follows_the_launches_of_each_size():
    left = TimeLeft([Launch(size, repeat) for repeat in range(2) for size in (1, 2)], 0.0)
    assert left.left_s(5.0) is None
    left.share = 0.5
    assert left.left_s(10.0) == 20 * 4 - 10
    left.end(20.0)
    left.end(60.0)  # two ranks take twice as long
    assert left.left_s(60.0) == 20 + 40
    assert left.left_s(70.0) == 10 + 40
    assert left.left_s(100.0) == 40  # a launch that takes longer than its like
