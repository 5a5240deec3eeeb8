import re

import jsonschema
import pytest

from lockstep import content
from lockstep.slurm import site
from lockstep.slurm.site import OWN_VARIABLES

HEAD = """schema = 1
name = "here"
partition = "gpu"
gpus_per_node = 4
cpus_per_node = 64
time = "01:30:00"
"""
IMAGE = '[container]\nimage = "/images/lockstep.sif"\n'
SUITE = 'venv = "/v"\nsuite = "/s"\n'


def read(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text)
    return site.load(str(path))


@pytest.mark.parametrize("name", site.built_in())
def test_the_sites_that_ship_are_good(name):
    loaded = site.load(name, is_draft=True)
    assert loaded.name == name
    schema = site.Site.model_json_schema()
    jsonschema.validate(loaded.model_dump(mode="json", by_alias=True), schema)


# A replaced text of the first lines, or lines after them -> the reason
OF_HEAD = [
    ('name = "here"', "", "key 'name' is missing"),
    ("schema = 1", "schema = 2", "schema = 2: input should be 1"),
    ("64", '"64"', "cpus_per_node = '64': input should be a valid int"),
    ("01:30:00", "90m", "time = '90m' is not allowed; time is the "),
    ("01:30:00", "00:00:00", "'00:00:00': the time limit must be at least"),
    ("node = 4", 'node = 0\ngpu_type = "a"', "but gpus_per_node is 0"),
]
OF_KEYS = [
    ('mem = "lots"', "mem = 'lots' is not allowed; mem is the "),
    ('account = "a\\n#SBATCH --nodes=99"', "a line break or control"),
    ('extra_directives = ["--nodes=9"]', "did you mean --nodelist?"),
    ('extra_directives = ["exclusive"]', "not a long option"),
    ('scratch = "x"', "scratch = 'x': the path is not absolute"),
    ('scratch = "/s"\nstage_in = ["/a/set", "/b/set/"]', "entries named 'set'"),
    ('stage_in = ["/data"]', "key 'scratch' is missing"),
    ('shell_before = "echo a\\r\\necho b"', "a carriage return or NUL"),
    ('interface = "$(ib)"', "interface = '$(ib)' is not allowed; interface is the "),
    ('venv = "/v"\nsuite = "/s"', "container and venv exclude each other"),
    ('currency = "EUR"', "a cost needs a currency"),
    ("cost_per_gpu_hour = 2\ncost_per_node_hour = 2", "exclude each other"),
    ('currency = "EUR"\ncost_per_gpu_hour = nan', "cost_per_gpu_hour"),
]
OF_TABLES = [
    ("", "container, modules and venv are all missing"),
    ('venv = "/v"\n', "need the key 'suite'"),
    (f'stage_image = true\nscratch = "/tmp"\n{SUITE}', "but there is no [container]"),
    (IMAGE + 'bind = ["/a"]\n', "unknown key 'container.bind'; did you mean 'binds'"),
    (IMAGE.replace("/images/", "docker://"), "build the image first"),
    (
        'gpu_runtime = "rocm"\n[container]\nruntime = "podman-hpc"\nimage = "a:1"\n',
        "does not support GPUs with rocm",
    ),
    (IMAGE + '[env]\n"A B" = "1"\n', "not a valid name of a variable"),
    (IMAGE + '[env]\nfailed = "0"\n', "sets this variable"),
    (IMAGE + '[partitions.debug]\ntme = "1"\n', "'partitions.debug.tme'; did you mean 'time'"),
]
BAD = [
    *((HEAD.replace(old, new) + IMAGE, reason) for old, new, reason in OF_HEAD),
    *((f"{HEAD}{keys}\n{IMAGE}", reason) for keys, reason in OF_KEYS),
    *((HEAD + tables, reason) for tables, reason in OF_TABLES),
    ("schema = \n", "the file is not valid TOML"),
]


@pytest.mark.parametrize(("text", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_site_file_is_refused_in_one_sentence(tmp_path, text, reason):
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'site.toml'}: ")
    assert reason.lower() in message.lower()
    assert "\n" not in message


def test_a_site_goes_to_another_of_its_partitions(tmp_path):
    limits = '[partitions.debug]\ntime = "00:10:00"\nmax_nodes = 2\n'
    loaded = read(tmp_path, HEAD + IMAGE + limits)
    assert loaded.limits == site.Partition()
    debug = loaded.choose_partition("debug")
    assert (debug.partition, debug.limits.time, debug.limits.max_nodes) == ("debug", "00:10:00", 2)
    assert loaded.choose_partition("gpu") == loaded
    with pytest.raises(ValueError, match=r"no partition 'fast'; choose from debug, gpu, or add"):
        loaded.choose_partition("fast")
    clash = 'gpu_types = ["x", "y"]\n' + IMAGE + '[partitions.gpu]\nconstraint = "z"\n'
    assert read(tmp_path, HEAD + clash).features == "z"


def test_every_variable_of_the_scripts_is_known():
    shared = content.ROOT / "slurm_templates"
    paths = [*(shared / "templates").glob("*.j2"), shared / "lib" / "job.sh"]
    text = "\n".join(path.read_text() for path in paths)
    names = set(re.findall(r"^([a-z_]+)=", text, re.MULTILINE))
    assert {"num_nodes", "scratch"} <= names
    assert {name for name in names if not OWN_VARIABLES.fullmatch(name)} == set()
