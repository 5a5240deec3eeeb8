"""Campaign files: what they may say, and which launches follow."""

import json
import re
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.campaign import campaign
from lockstep.campaign.campaign import Campaign, Launch

SCHEMA = Path(campaign.__file__).with_name("campaign.schema.json")
REGENERATE = (
    "python -c 'import json; from lockstep.campaign.campaign import Campaign; "
    "print(json.dumps(Campaign.model_json_schema(), indent=1))' "
    "> lockstep/campaign/campaign.schema.json"
)
GIVEN = {
    "schema": 1,
    "name": "test",
    "studies": ["strong"],
    "world_sizes": [1, 2],
    "size": "smoke",
}
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


def test_the_published_schema_is_the_models():
    published = json.loads(SCHEMA.read_text())
    assert published == Campaign.model_json_schema(), f"to write it again: {REGENERATE}"


def test_the_schema_takes_what_we_ship_and_refuses_what_we_refuse():
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    assert set(campaign.built_in()) == {"ladder", "laptop", "sensitivity", "smoke"}
    for name in campaign.built_in():
        loaded = campaign.load(name)
        assert loaded.name == name
        validator.validate(loaded.facts())
    for wrong in ({"wolrd": 1}, {"size": "huge"}, {"repeats": 0}, {"name": "../x"}):
        assert not validator.is_valid(GIVEN | wrong)


def test_a_file_is_read(file):
    loaded = campaign.load(file(TOML + "rounds = 5\nworkload = 'mlp'\n"))
    assert loaded.world_sizes == (1, 2)
    assert (loaded.repeats, loaded.seed, loaded.device) == (3, 0, None)
    size = loaded.measured_size()
    assert (size.rounds, size.workload, size.bucket_workload) == (5, "mlp", "mlp")
    assert loaded.num_cases() == 1


def test_options_win_over_the_file_and_none_leaves_it(file):
    loaded = campaign.load(file(TOML), repeats=7, world_sizes=[4], name=None)
    assert (loaded.repeats, loaded.world_sizes, loaded.name) == (7, (4,), "test")


def test_a_campaign_survives_its_own_facts():
    original = make(repeats=2, precision="bf16", threads_per_rank=3)
    assert Campaign.model_validate(json.loads(json.dumps(original.facts()))) == original


def test_cases_of_one_launch():
    smoke = campaign.load("smoke")
    # strong, weak, 4 precisions, 4 caps, 3 accumulations, 5 loaders, 5 collectives at 2 sizes
    assert smoke.num_cases() == 1 + 1 + 4 + 4 + 3 + 5 + 10


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("world_size = 3", r"unknown key 'world_size'; did you mean 'world_sizes'\?$"),
        ("Repeats = 3", r"unknown key 'Repeats'; did you mean 'repeats'\?$"),
        ("colour = 'red'", r"unknown key 'colour'; known keys: schema, name, studies, "),
        ("repeats = true", r"repeats = true: input should be a valid integer$"),
        ("repeats = '3'", r"repeats = '3': input should be a valid integer$"),
        ("repeats = 2.0", r"repeats = 2\.0: input should be a valid integer$"),
        ("repeats = 0", r"repeats = 0: input should be greater than or equal to 1$"),
        ("seed = -1", r"seed = -1: input should be greater than or equal to 0$"),
        ("warmup_rounds = -1", r"warmup_rounds = -1: input should be greater than or equal to 0$"),
        ("device = 'tpu'", r"device = 'tpu': input should be 'cpu' or 'cuda'$"),
        ("precision = 'fp8'", r"precision = 'fp8': input should be 'fp32', 'tf32', "),
        ("workload = 3", r"workload = 3 is not allowed; write the model of every training study$"),
        ("global_batch = 65", r"global_batch=65 does not divide by world_size=2; choose 64 or 66"),
        ("rounds =", r"not a TOML file: .*line 7"),
        ("repeats = 1\nrepeats = 2", r"not a TOML file: "),
    ],
)
def test_a_wrong_line_is_refused_in_one_sentence(file, line, sentence):
    path = file(TOML + line + "\n")
    with pytest.raises(ValueError, match=sentence) as refusal:
        campaign.load(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"world_sizes": [1, 2, 1]}, r"world_sizes = \[1, 2, 1\]: 1 stands twice$"),
        ({"studies": ["strong", "strong"]}, r"'strong' stands twice$"),
        ({"world_sizes": []}, r"world_sizes = \[\]: .* at least 1 item"),
        ({"world_sizes": [0]}, r"world_sizes\.0 = 0: input should be greater than or equal to 1$"),
        ({"world_sizes": [1, True]}, r"world_sizes\.1 = true: input should be a valid integer$"),
        ({"world_sizes": 2}, r"world_sizes = 2: input should be a list$"),
        ({"studies": "strong"}, r"studies = 'strong': input should be a list$"),
        ({"studies": ["stron"]}, r"studies\.0 = 'stron': input should be 'strong', "),
        ({"schema": 2}, r"schema = 2: input should be 1$"),
        ({"schema": "1"}, r"schema = '1': input should be 1$"),
        ({"name": "a\nb"}, r"name = 'a\\nb' is not allowed; write the "),
        ({"name": "a\n"}, r"name = 'a\\n' is not allowed; write the "),
        ({"name": "../up"}, r"name = '\.\./up' is not allowed; write the "),
        ({"name": "a/b"}, r"name = 'a/b' is not allowed; "),
        ({"name": ".."}, r"name = '\.\.' is not allowed; "),
        ({"name": "--help"}, r"name = '--help' is not allowed; "),
        ({"name": ""}, r"name = '' is not allowed; "),
        ({"name": "x" * 65}, r"name = 'x+' is not allowed; "),
        ({"world_sizes": [1, 3]}, r"global_batch=64 does not divide by world_size=3; choose 63 or"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(file, change, sentence):
    with pytest.raises(ValueError, match=sentence) as refusal:
        campaign.load(file(TOML), **change)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["schema", "name", "world_sizes", "size"])
def test_a_missing_key_is_named(file, key):
    text = "\n".join(line for line in TOML.splitlines() if not line.startswith(f"{key} ="))
    with pytest.raises(ValueError, match=f"campaign.toml: key '{key}' is missing$"):
        campaign.load(file(text))


@pytest.mark.parametrize("change", [{"studies": []}, {"tests": ["benchmarks"]}])
def test_a_campaign_has_either_studies_or_tests(file, change):
    with pytest.raises(ValueError, match=r"give either studies, such as .*, or tests = "):
        campaign.load(file(TOML), **change)


def test_tests_are_named_absolutely_for_jobs_that_start_elsewhere(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    given = ["benchmarks", "benchmarks::test_a"]
    loaded = campaign.load(file(TOML), studies=[], tests=given)
    assert loaded.tests == tuple(f"{tmp_path}/{name}" for name in given)
    with pytest.raises(ValueError, match=r"tests: there is no file or folder gone; "):
        campaign.load(file(TOML), studies=[], tests=["gone"])


def test_a_misspelt_key_is_named_although_the_right_one_is_then_missing(file):
    with pytest.raises(ValueError, match=r"unknown key 'studys'; did you mean 'studies'\?$"):
        campaign.load(file(TOML.replace("studies", "studys")))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.toml: No such file .* built-in one: ladder, "):
        campaign.load(str(tmp_path / "nowhere.toml"))
    with pytest.raises(ValueError, match="Is a directory; give a campaign file"):
        campaign.load(str(tmp_path))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\x00")
    with pytest.raises(ValueError, match=r"binary\.toml: not a TOML file: "):
        campaign.load(str(binary))


def test_a_world_size_that_no_strong_case_needs_is_taken(file):
    loaded = campaign.load(file(TOML), studies=["collective"], world_sizes=[1, 3])
    assert loaded.world_sizes == (1, 3)


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


def test_the_order_is_random():
    orders = {
        tuple(launch.world_size for launch in campaign.plan(make(repeats=1, seed=seed)))
        for seed in range(20)
    }
    assert orders == {(1, 2), (2, 1)}


def test_a_launch_is_named_by_its_world_size_and_repeat():
    assert Launch(4, 2).name == "w4-r2"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"size": "laptop"}, "size"),
        ({"global_batch": 128}, "global_batch"),
        ({"seed": 1}, "seed"),
        ({"device": "cpu"}, "device"),
        ({"threads_per_rank": 2}, "threads_per_rank"),
        ({"rounds": 9}, "rounds"),
    ],
)
def test_what_was_measured_otherwise_differs(changes, key):
    stored = make().facts()
    assert campaign.differences(stored, make(**changes)) == {key: (stored[key], changes[key])}


def test_more_launches_or_cases_are_no_difference():
    grown = make(world_sizes=[1, 2, 4], repeats=9, studies=["strong", "weak"])
    assert campaign.differences(make().facts(), grown) == {}


@pytest.mark.parametrize(
    ("world_sizes", "cores", "threads"), [([1, 2], 8, 4), ([1], 8, 8), ([1, 16], 8, 1)]
)
def test_threads_are_equal_at_every_world_size(world_sizes, cores, threads):
    settled = campaign.with_threads(make(world_sizes=world_sizes), None, cores)
    assert settled.threads_per_rank == threads
    assert campaign.with_threads(make(threads_per_rank=3), 2, cores).threads_per_rank == 3


def test_a_ladder_that_grows_keeps_the_threads_of_its_ranks():
    assert campaign.with_threads(make(world_sizes=[1, 2, 4]), 8, cores=8).threads_per_rank == 8


def test_a_launch_cut_by_case_holds_every_case_once(file):
    chosen = campaign.load(file(TOML))
    parts = campaign.plan(chosen, by_case=True)
    assert len(parts) == len(campaign.plan(chosen)) * chosen.num_cases()
    assert len({launch.name for launch in parts}) == len(parts)
    assert {launch.num_parts for launch in parts} == {chosen.num_cases()}


def test_a_part_is_named_so_that_names_sort_by_it():
    assert Launch(2, 0, 3, 27).name == "w2-r0-p03"
    assert list(campaign.own_options(Launch(2, 0, 3, 27))) == [
        "--label=launch=w2-r0-p03",
        "--label=repeat=0",
        "--part=3/27",
    ]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('allocation = "node"', "jobs.allocation = 'node': input should be 'ladder', 'job' or"),
        ("max_runing = 2", "unknown key 'jobs.max_runing'; did you mean 'max_running'?"),
        ("max_running = 2", "max_running is for allocation = \"array\", not 'ladder'"),
        ('time = "1 hour"', "jobs.time = '1 hour' is not allowed; write the "),
        ('time = "00:00:59"', "jobs.time = '00:00:59': shorter than a minute"),
        ('time = "1:00:00"\nlaunch_time = "0:05:00"', "time and launch_time both set"),
    ],
)
def test_a_wrong_table_of_jobs_is_refused_in_one_sentence(file, table, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        campaign.load(file(f"{TOML}[jobs]\n{table}\n"))
