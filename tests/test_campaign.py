"""Campaign files: what they may say, and which launches follow."""

import json
from collections import Counter

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.campaign import campaign
from lockstep.campaign.campaign import Campaign, Launch

GIVEN = {"schema": 1, "name": "test", "studies": ["strong"], "world_sizes": [1, 2], "size": "smoke"}
TOML = """
schema = 1
name = "test"
studies = ["strong"]
world_sizes = [1, 2]
size = "smoke"
"""


def make(**changes):
    return Campaign.model_validate(GIVEN | changes)


@pytest.fixture
def file(tmp_path):
    def written(text):
        path = tmp_path / "campaign.toml"
        path.write_text(text)
        return str(path)

    return written


def test_the_schema_takes_what_we_ship_and_refuses_what_we_refuse():
    validator = jsonschema.Draft202012Validator(Campaign.model_json_schema())
    assert set(campaign.built_in()) == {
        *("ladder", "laptop", "nodes", "rates", "rungs", "sensitivity", "smoke")
    }
    for name in campaign.built_in():
        loaded = campaign.load(name)
        assert loaded.name == name
        validator.validate(loaded.facts())
    for wrong in ({"wolrd": 1}, {"size": "huge"}, {"repeats": 0}, {"name": "../x"}):
        assert not validator.is_valid(GIVEN | wrong)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"world_size": 3}, "'world_size'; did you mean 'world_sizes'"),
        ({"repeats": 0}, "repeats = 0"),
        ({"case_budget": "900"}, "case_budget"),
        ({"precision": "fp31"}, "did you mean 'fp32'"),
        ({"device": "tpu"}, "device = 'tpu'"),
        ({"seed": 2**70}, "seed"),
        ({"world_sizes": [1, 2, 1]}, "1 is named twice"),
        *[({"world_sizes": [n]}, r"world_sizes\.0") for n in (0, True, 10**9)],
        ({"studies": ["stron"]}, r"studies\.0"),
        ({"tests": ["benchmarks"]}, "either studies"),
        ({"studies": ["train"], "on_oom": "halve"}, "on_oom works only in the studies strong"),
        ({"schema": 2}, "schema = 2"),
        ({"name": "a b;$(x)"}, "name"),
        ({"jobs": {"max_runing": 2}}, r"'jobs\.max_runing'; did you mean 'max_running'"),
        ({"jobs": {"max_running": 2}}, "max_running"),
        ({"jobs": {"time": "1:00:00", "launch_time": "0:05:00"}}, "launch_time"),
        *[({key: None}, f"'{key}' is missing") for key in ("schema", "name", "world_sizes")],
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(file, change, names):
    facts = {key: value for key, value in (GIVEN | change).items() if value is not None}
    jobs = facts.pop("jobs", {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in facts.items()]
    lines += ["[jobs]", *(f"{key} = {json.dumps(value)}" for key, value in jobs.items())]
    path = file("\n".join(lines))
    with pytest.raises(ValueError, match=names) as refusal:
        campaign.load(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


def test_tests_are_named_absolutely_for_jobs_that_start_elsewhere(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    given = ["benchmarks", "benchmarks::test_a"]
    loaded = campaign.load(file(TOML), studies=[], tests=given)
    assert loaded.tests == tuple(f"{tmp_path}/{name}" for name in given)
    with pytest.raises(ValueError, match="--tests: gone does not exist in the current"):
        campaign.load(file(TOML), studies=[], tests=["gone"])


LADDERS = st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True)


@given(LADDERS, st.integers(1, 6), st.integers(0, 99))
def test_each_repeat_visits_every_world_size_once(world_sizes, repeats, seed):
    planned = campaign.plan(make(world_sizes=world_sizes, repeats=repeats, seed=seed))
    assert Counter(planned) == Counter(Launch(n, r) for n in world_sizes for r in range(repeats))
    for repeat in range(repeats):
        block = planned[repeat * len(world_sizes) : (repeat + 1) * len(world_sizes)]
        assert {launch.repeat for launch in block} == {repeat}


@given(LADDERS, st.integers(0, 99), st.randoms())
def test_the_order_follows_the_seed_alone(world_sizes, seed, random):
    shuffled = random.sample(world_sizes, len(world_sizes))
    first = campaign.plan(make(world_sizes=world_sizes, seed=seed))
    assert first == campaign.plan(make(world_sizes=shuffled, seed=seed))
    # A campaign that is given more repeats begins as it did.
    assert campaign.plan(make(world_sizes=world_sizes, seed=seed, repeats=5))[: len(first)] == first


def test_what_was_measured_otherwise_differs():
    stored = make().facts()
    changes = {"size": "laptop", "seed": 1, "device": "cpu", "threads_per_rank": 2, "rounds": 9}
    differences = campaign.differences(stored, make(**changes))
    assert differences == {key: (stored[key], value) for key, value in changes.items()}
    grown = make(world_sizes=[1, 2, 4], repeats=9, studies=["strong", "weak"], order_seed=1)
    assert campaign.differences(stored, grown) == {}


def test_a_program_may_go_on_where_an_earlier_version_knew_fewer_keys():
    metric = {"name": "loss", "unit": "nats", "regex": "loss (.*)"}
    own = {"studies": ["command"], "command": {"line": "./solve", "metrics": [metric]}}
    program, stored = make(**own), make(**own).facts()
    del stored["command"]["metrics"][0]["curve"]
    assert campaign.differences(stored, program) == {}
    stored["command"]["metrics"][0]["unit"] = "bits"
    assert list(campaign.differences(stored, program)) == ["command"]


@pytest.mark.parametrize(
    ("world_sizes", "before", "cores", "threads"),
    [([1, 2], None, 8, 4), ([1], None, 8, 8), ([1, 16], None, 8, 1), ([1, 2, 4], 8, 8, 8)],
)
def test_threads_are_equal_at_every_world_size(world_sizes, before, cores, threads):
    settled = campaign.set_threads(make(world_sizes=world_sizes), before, cores)
    assert settled.threads_per_rank == threads
    assert campaign.set_threads(make(threads_per_rank=3), 2, cores).threads_per_rank == 3


def test_a_launch_cut_by_case_holds_every_case_once(file):
    chosen = campaign.load(file(TOML))
    parts = campaign.plan(chosen, by_case=True)
    assert len(parts) == len(campaign.plan(chosen)) * chosen.num_cases()
    assert len({launch.name for launch in parts}) == len(parts)
    assert {launch.num_parts for launch in parts} == {chosen.num_cases()}
