"""What `lockstep init` writes: from many clusters' own words, on a laptop, and on the testbed."""

import os
import shlex
from pathlib import Path

import pytest
import stand_ins
from data.job_samples import site_of
from hypothesis import given
from hypothesis import strategies as st

from lockstep.before.doctor import cluster_checks
from lockstep.before.doctor.machine_checks import Subject
from lockstep.before.init import init_cli
from lockstep.before.init.drafts import Surroundings, choose, cluster_campaign, ladder, site_file
from lockstep.campaign import campaign as campaigns
from lockstep.slurm import associations
from lockstep.slurm import cluster as clusters
from lockstep.slurm import site as sites
from lockstep.slurm.associations import Accounts

# As Slurm 22.05 prints them; what a case does not change is as on a plain cluster.


def node(
    name, gres="(null)", *, cpus="CPUEfctv=128 CPUTot=128", features="(null)", state="IDLE",
    partitions="gpu",
):  # fmt: skip
    return f"""NodeName={name} Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 {cpus} CPULoad=0.49
   AvailableFeatures={features}
   Gres={gres}
   OS=Linux 5.14.0-284.el9.x86_64 #1 SMP PREEMPT_DYNAMIC Thu Jan 1 00:00:00 UTC 2026
   RealMemory=512000 AllocMem=0 FreeMem=17382 Sockets=2 Boards=1
   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions={partitions}
   CfgTRES=cpu=128,mem=512000M,billing=128,gres/gpu=4
   Reason=a comment that says Gres=gpu:liar:99 [root@2026-01-01T00:00:00]

"""


def partition(
    name="gpu", *, accounts="ALL", default="NO", max_nodes="UNLIMITED", max_time="1-00:00:00",
):  # fmt: skip
    return f"""PartitionName={name}
   AllowGroups=ALL AllowAccounts={accounts} AllowQos=ALL
   AllocNodes=ALL Default={default} QoS=N/A
   MaxNodes={max_nodes} MaxTime={max_time} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   State=UP TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE

"""


def cluster(*texts, storage="accounting_storage/slurmdbd", name="here"):
    config = f"""Configuration data as of 2026-11-21T09:14:01
AccountingStorageType   = {storage}
ClusterName             = {name}
MaxArraySize            = 1001
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at head is UP
"""
    parts = [[text for text in texts if text.startswith(kind)] for kind in ("Partition", "Node")]
    return clusters.parse(config, *map("".join, parts))


def around(**changes):
    usual = {
        "interfaces": ("eth0",), "images": (Path("/images/lockstep.sif"),), "has_apptainer": True,
        "venv": None, "modules": (), "suite": Path("/home/me/lockstep"), "scratch": None,
        "num_cores": 4, "num_gpus": 0,
    }  # fmt: skip
    return Surroundings(**usual | changes)


MANY = [node(f"n{i}", "gpu:a100:4(S:0-3)") for i in range(40)]
ONE_NODE = [partition(max_nodes=1), *MANY]
# cluster -> what the site file says of it, and the campaign's ladder
CLUSTERS = {
    "typed GPUs with sockets": (
        [partition(default="YES"), *MANY],
        {"partition": "gpu", "gpus_per_node": 4, "gpu_type": None, "cpus_per_node": 128},
        [1, 2, 4, 8, 16],
    ),
    "AMD": (
        [partition("standard-g", max_time="2-00:00:00", max_nodes=1024),
         *[node(f"nid{i}", "gpu:mi250x:8(S:0-7)", partitions="standard-g") for i in (1, 2)]],
        {"gpus_per_node": 8, "gpu_runtime": "rocm", "time": "02:00:00"}, [1, 2, 4, 8, 16],
    ),
    "no GPUs": (
        [partition("batch"), node("n1", partitions="batch"), node("n2", partitions="batch")],
        {"gpus_per_node": 0, "max_ranks_per_node": 2, "gpu_type": None}, [1, 2, 4],
    ),
    "several partitions, the default without GPUs": (
        [partition("cpu", default="YES"), partition("gpu", max_time="08:00:00"),
         partition("devel", max_time="00:30:00", max_nodes=1), partition("other"),
         node("c1", partitions="cpu"), node("v1", "gpu:v100:2", partitions="other"),
         *[node(f"g{i}", "gpu:h100:4(S:0-1),nvme:1", partitions="gpu,devel") for i in (1, 2)]],
        {"partition": "gpu", "gpus_per_node": 4,
         "partitions": {"gpu": ("08:00:00", 2), "devel": ("00:30:00", 1)}},
        [1, 2, 4, 8],
    ),
    "mixed types": (
        [partition(), *[node(f"a{i}", "gpu:a100:4(S:0-1)") for i in range(5)],
         node("h1", "gpu:h100:8(S:0-1)")],
        {"gpus_per_node": 4, "gpu_type": "a100", "constraint": None}, [1, 2, 4, 8, 16],
    ),
    "mixed processors": (
        [partition(), *[node(f"a{i}", "gpu:a100:4", features="rome,ib") for i in range(3)],
         node("b1", "gpu:a100:4", cpus="CPUTot=192", features="genoa,ib")],
        {"cpus_per_node": 128, "constraint": "rome", "gpu_type": None}, [1, 2, 4, 8],
    ),
    "a partition for others": (
        [partition("a", accounts="physics,chemistry"), partition("b", accounts="mine"),
         node("n1", "gpu:8", partitions="a"), node("n2", "gpu:4", partitions="b")],
        {"partition": "b", "account": "mine"}, [1, 2, 4],
    ),
}  # fmt: skip
# User, default account, account, partition, default QOS, QOS, and limits.
OWN = associations.parse("me|mine|mine|||normal,high||||\nme|mine|theirs|||normal||||\n")


def load(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return (sites if name == "site.toml" else campaigns).load(str(path))


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_s_words_become_files_that_load(name, tmp_path):
    texts, facts, world_sizes = CLUSTERS[name]
    found = cluster(*texts)
    text = site_file(found, OWN, around())
    site = load(tmp_path, "site.toml", text)
    limits = {name: (limit.time, limit.max_nodes) for name, limit in site.partitions.items()}
    assert {key: (dict(site) | {"partitions": limits})[key] for key in facts} == facts
    campaign = load(tmp_path, "campaign.toml", cluster_campaign(found, OWN))
    assert list(campaign.world_sizes) == world_sizes
    known = set(sites.Site.model_fields) | set(sites.Container.model_fields) | {"NCCL_DEBUG"}
    off = [line[2:].partition(" = ")[0] for line in text.splitlines() if line.startswith("# ")]
    keys = {key for key in off if key.isidentifier()}
    assert {"qos", "reservation", "scratch", "binds"} <= keys <= known, "keys in comments"


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:2(S:0,1),nvme:1(S:0)", ("a100", 2)),
        ("gpu:v100:1(S:0),gpu:a100:3(S:1)", ("a100", 3)),
        ("gpu:a100:no_consume:4", ("a100", 4)),
        ("gpu:1g.5gb:7(IDX:0-6)", ("1g.5gb", 7)),
        ("shard:8,mps:400", (None, 0)),
    ],
)
def test_gres_is_read_in_all_its_forms(gres, gpus):
    assert clusters.parse_gres(gres) == gpus


@given(st.integers(1, 16), st.integers(1, 64))
def test_a_ladder_grows_and_fills_its_nodes(ranks_per_node, num_nodes):
    found = ladder(ranks_per_node, num_nodes)
    assert found[0] == 1
    assert found == sorted(set(found))
    assert ranks_per_node in found
    assert found[-1] <= ranks_per_node * num_nodes
    assert all(size < ranks_per_node or size % ranks_per_node == 0 for size in found)


@pytest.mark.parametrize(
    ("storage", "accounts", "line"),
    [
        ("(null)", Accounts(), '# account = "PROJECT"'),
        ("accounting_storage/slurmdbd", OWN, 'account = "mine" # or theirs'),
    ],
)
def test_a_user_s_default_account_is_proposed_and_the_others_named(storage, accounts, line):
    here = cluster(*ONE_NODE, storage=storage)
    assert here.keeps_accounts == (accounts is OWN)
    assert line in " ".join(site_file(here, accounts, around()).split())


@pytest.mark.parametrize(
    ("state", "is_here"),
    [
        ("MIXED+PLANNED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("DOWN*+CLOUD+POWERED_DOWN", False),
    ],
)
def test_a_node_that_is_powered_down_comes_back(state, is_here):
    (found,) = cluster(partition(), node("n1", state=state)).partitions[0].nodes
    assert found.is_here == is_here


def test_without_an_image_loading_asks_for_one_in_a_sentence(tmp_path):
    draft = site_file(cluster(*ONE_NODE), OWN, around(images=()))
    assert "fill in image in site.toml" in init_cli._next(Path(), {"site.toml": draft})
    with pytest.raises(ValueError, match=r"not filled in yet: container\.image;"):
        load(tmp_path, "site.toml", draft)
    site = sites.load(str(tmp_path / "site.toml"), is_draft=True)
    assert site.to_fill_in == ("container.image",)
    subject = Subject({}, tmp_path, site)
    assert cluster_checks.site_file(subject).level == "missing"
    assert cluster_checks.image(subject).level == "not needed"  # said once


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"venv": Path("/home/me/venv")}, {"venv": "/home/me/venv", "modules": ()}),
        ({"modules": ("PyTorch/2.6", "PyTorch/2.9")}, {"modules": ("PyTorch/2.9",)}),
    ],
)
def test_where_there_is_no_apptainer_ranks_run_beside_it(changes, facts, tmp_path):
    seen = around(has_apptainer=False, images=(), **changes)
    draft = site_file(cluster(*ONE_NODE), OWN, seen)
    site = load(tmp_path, "site.toml", draft)
    assert {key: getattr(site, key) for key in facts} == facts
    assert site.suite == "/home/me/lockstep"


def test_what_slurm_says_cannot_leave_its_comment_or_string(tmp_path):
    texts = [partition(), node("n1", "gpu:4", features='a"\x1b[31m\x85b,#c')]
    found = cluster(*texts, name='our "best" \\ cluster')
    site = load(tmp_path, "site.toml", site_file(found, OWN, around()))
    assert site.name == 'our "best" \\ cluster'


def test_a_cluster_without_nodes_is_refused_in_a_sentence():
    with pytest.raises(RuntimeError, match="here shows you no partition with nodes; "):
        choose(cluster(partition()), OWN)


def lockstep(arguments, cwd, path):
    return stand_ins.lockstep(shlex.join(["init", *map(str, arguments)]), cwd, path)


def test_a_laptop_gets_a_campaign_and_is_told_so(tmp_path):
    ended = lockstep([], tmp_path, "/nowhere")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["campaign.toml"]
    assert "Slurm is not installed here" in ended.stdout
    assert "Next: lockstep run campaign.toml" in ended.stdout
    assert campaigns.load(str(tmp_path / "campaign.toml")).size in ("laptop", "node")


def test_force_replaces_a_file(tmp_path):
    (tmp_path / "campaign.toml").write_text("mine")
    assert lockstep(["--site", "example", "--force"], tmp_path, "/nowhere").returncode == 0
    assert campaigns.load(str(tmp_path / "campaign.toml")).world_sizes == (1, 2, 4, 8, 16)
    assert sites.load(str(tmp_path / "site.toml"), is_draft=True).name == "example"


def test_a_silent_controller_is_an_error_and_no_laptop(tmp_path, stand_in):
    stand_in("scontrol", "echo 'error: Unable to contact controller' >&2; exit 1")
    ended = lockstep([tmp_path / "new"], tmp_path, os.environ["PATH"])
    assert ended.returncode == 3
    assert "Unable to contact controller" in ended.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("other", [{"partition": "cpu"}, {"account": "theirs"}])
def test_the_limits_of_another_cluster_are_not_those_of_a_site_s_jobs(monkeypatch, other):
    here = cluster(partition(), node("n1", "gpu:h100:4"))
    monkeypatch.setattr(clusters, "read", lambda: here)
    own = associations.parse("me|project|project|||||||\n")
    monkeypatch.setattr(associations, "read", lambda _: own)
    assert associations.limits_of_jobs(site_of()) == ()
    with pytest.raises(RuntimeError, match=r"cluster here"):
        associations.limits_of_jobs(site_of(**other))
