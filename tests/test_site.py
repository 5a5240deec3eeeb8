import re

import jsonschema
import pytest

from lockstep import content
from lockstep.slurm import site
from lockstep.slurm.site import OWN_VARIABLES

GOOD = """schema = 1
name = "here"
partition = "gpu"
gpus_per_node = 4
cpus_per_node = 64
time = "01:30:00"
"""
IMAGE = '[container]\nimage = "/images/lockstep.sif"\n'


def read(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text)
    return site.load(str(path))


@pytest.mark.parametrize("name", site.built_in())
def test_the_sites_that_ship_are_good(name):
    found = site.load(name)
    assert found.name == name
    jsonschema.validate(found.model_dump(mode="json", by_alias=True), site.Site.model_json_schema())


def test_a_site_without_a_container_names_its_suite(tmp_path):
    found = read(tmp_path, GOOD + 'modules = ["PyTorch/2.6"]\nsuite = "/home/me/lockstep"\n')
    assert found.container is None
    assert found.modules == ("PyTorch/2.6",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD, "neither container nor modules or venv is set"),
        (GOOD + 'venv = "/v"\nsuite = "/s"\n' + IMAGE, "container and venv exclude each other"),
        (GOOD + 'venv = "/v"\n', "need the key 'suite'"),
        (GOOD + 'partitoin = "gpu"\n' + IMAGE, "unknown key 'partitoin'; did you mean 'partition'"),
        (GOOD + IMAGE + 'bind = ["/a"]\n', "unknown key 'container.bind'; did you mean 'binds'"),
        (GOOD.replace("64", '"64"') + IMAGE, "cpus_per_node = '64': input should be a valid int"),
        (GOOD.replace("time", "tine") + IMAGE, "unknown key 'tine'; did you mean 'time'"),
        ("schema = 1\n" + IMAGE, "key 'name' is missing"),
        (GOOD.replace("= 1\n", "= 2\n") + IMAGE, "schema = 2: input should be 1"),
        (GOOD.replace("01:30:00", "90m") + IMAGE, "time = '90m' is not allowed; write the "),
        (GOOD + 'mem = "lots"\n' + IMAGE, "mem = 'lots' is not allowed; write the "),
        (GOOD + IMAGE.replace("/images/", ""), "not an absolute path"),
        (GOOD + IMAGE.replace("/images/", "FILL IN: the "), "not filled in yet"),
        (GOOD + 'account = "a\\n#SBATCH --nodes=99"\n' + IMAGE, "a line break or control"),
        (
            GOOD + 'account = "a b"\n' + IMAGE,
            "account = 'a b': a value for sbatch may",
        ),
        (GOOD + 'extra_directives = ["--nodes=9"]\n' + IMAGE, "did you mean --nodelist?"),
        (
            GOOD + 'extra_directives = ["--gpu-bind=per_task:1"]\n' + IMAGE,
            "does not allow this option",
        ),
        (GOOD + 'extra_directives = ["--acc=x"]\n' + IMAGE, "known: --acctg-freq, --begin, "),
        (GOOD.replace("01:30:00", "00:00:00") + IMAGE, "'00:00:00': shorter than a minute"),
        (GOOD.replace("01:30:00", "9999-00:00:00") + IMAGE, "time = '9999-00:00:00'"),
        (GOOD.replace('"01:30:00"', "90") + IMAGE, "time = 90"),
        (GOOD.replace("64", "0") + IMAGE, "cpus_per_node = 0"),
        (GOOD + 'scratch = "x"\n' + IMAGE, "scratch = 'x': not an absolute path"),
        (
            GOOD + 'scratch = "/s"\nstage_in = ["/a/set", "/b/set/"]\n' + IMAGE,
            "entries named 'set'",
        ),
        (GOOD + 'extra_directives = ["exclusive"]\n' + IMAGE, "not a long option"),
        (GOOD + IMAGE + '[env]\n"A B" = "1"\n', "not the name of a variable"),
        (GOOD + IMAGE + '[env]\nfailed = "0"\n', "sets this variable"),
        (GOOD + IMAGE + '[env]\nA = "a\\nb"\n', "env.A = "),
        (GOOD + 'shell_before = "echo a\\r\\necho b"\n' + IMAGE, "a carriage return or NUL"),
        (GOOD + IMAGE + '[env]\nSLURM_PROCID = "0"\n', "env.SLURM_PROCID: the job script or Slurm"),
        (GOOD + IMAGE.replace("/images/", "docker://"), "first build the image"),
        (GOOD.replace("= 4", "= 0") + 'gpu_type = "a"\n' + IMAGE, "but gpus_per_node is 0"),
        (GOOD + IMAGE + 'binds = ["/a,/b"]\n', "contains a comma"),
        ("schema = \n", "not a TOML file"),
        (GOOD + 'scratch = "$TMP DIR"\n' + IMAGE, "for example $TMPDIR"),
        (GOOD + 'directives = ["comment=x"]\n' + IMAGE, "not an option"),
        (GOOD + 'stage_in = ["/data"]\n' + IMAGE, "key 'scratch' is missing"),
        (GOOD + "stage_image = true\n" + IMAGE, "key 'scratch' is missing"),
        (
            GOOD + 'stage_image = true\nscratch = "/tmp"\nvenv = "/v"\nsuite = "/s"\n',
            "but there is no [container]",
        ),
        (GOOD + "cost_per_gpu_hour = 2\n" + IMAGE, "a cost needs a currency"),
        (GOOD + 'currency = "EUR"\n' + IMAGE, "a cost needs a currency"),
        (
            GOOD + "cost_per_gpu_hour = 2\ncost_per_node_hour = 2\n" + IMAGE,
            "exclude each other",
        ),
        (GOOD + "cost_per_gpu_hour = -2\n" + IMAGE, "greater than or equal to 0"),
        (GOOD + 'currency = "EUR"\ncost_per_gpu_hour = nan\n' + IMAGE, "cost_per_gpu_hour"),
        (GOOD + 'gpu_runtime = "hip"\n' + IMAGE, "input should be 'cuda' or 'rocm'"),
        (
            GOOD + 'gpu_runtime = "rocm"\n[container]\nruntime = "podman-hpc"\nimage = "a:1"\n',
            "does not support GPUs with rocm",
        ),
        (GOOD + 'interface = "$(ib)"\n' + IMAGE, "interface = '$(ib)' is not allowed; write the "),
        (GOOD + "max_array_size = 1\n" + IMAGE, "greater than or equal to 2"),
        (GOOD + 'template = "own.j2"\n' + IMAGE, "not an absolute path"),
        (
            GOOD + IMAGE + '[partitions.debug]\ntme = "00:10:00"\n',
            "unknown key 'partitions.debug.tme'; did you mean 'time'",
        ),
        (GOOD + IMAGE + '[partitions."a b"]\n', "a value for sbatch may contain only"),
    ],
)
def test_a_bad_site_file_is_refused_in_one_sentence(tmp_path, text, reason):
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'site.toml'}: ")
    assert reason.lower() in said.lower()
    assert "\n" not in said


@pytest.mark.parametrize("option", ["--exclusive", "--mail-type=END", "--hint=nomultithread"])
def test_what_sites_need_may_be_added(tmp_path, option):
    text = GOOD + f'extra_directives = ["{option}"]\n' + IMAGE
    assert read(tmp_path, text).extra_directives == (option,)


PARTITIONS = '[partitions.debug]\ntime = "00:10:00"\nmax_nodes = 2\n'


def test_a_site_goes_to_another_of_its_partitions(tmp_path):
    found = read(tmp_path, GOOD + IMAGE + PARTITIONS)
    assert found.limits == site.Partition()
    debug = found.in_partition("debug")
    assert (debug.partition, debug.limits.time, debug.limits.max_nodes) == ("debug", "00:10:00", 2)
    assert found.in_partition("gpu") == found
    with pytest.raises(ValueError, match=r"no partition 'fast'; choose from debug, gpu, or add"):
        found.in_partition("fast")


def test_every_variable_of_the_scripts_is_known():
    shared = content.ROOT / "slurm_templates"
    paths = [*(shared / "templates").glob("*.j2"), shared / "lib" / "job.sh"]
    text = "\n".join(path.read_text() for path in paths)
    found = set(re.findall(r"^([a-z_]+)=", text, re.MULTILINE))
    assert {"num_nodes", "scratch"} <= found
    assert {name for name in found if not OWN_VARIABLES.fullmatch(name)} == set()
