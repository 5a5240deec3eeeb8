"""Slurm's commands as they are asked, what they answer, and what sbatch refuses."""

import re

import pytest
from stand_ins import StandIns

from lockstep.slurm import client as slurm
from lockstep.slurm.client import FailedError, NotInstalledError


@pytest.fixture
def asked(tmp_path, monkeypatch):
    made = StandIns(tmp_path / "bin")
    made.say("squeue")
    monkeypatch.setenv("PATH", str(made.folder))
    return made


def test_a_command_that_hangs_is_given_up(asked, monkeypatch):
    asked.say("squeue", seconds=30)
    monkeypatch.setattr(slurm, "TIMEOUT_S", 0.2)
    with pytest.raises(RuntimeError, match="squeue did not end"):
        slurm.queue()


NO_CONFIG = """\
scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
scontrol: error: fetch_config: DNS SRV lookup failed
scontrol: error: _establish_config_source: failed to fetch config
scontrol: fatal: Could not establish a configuration source
"""


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (NO_CONFIG, "no_config"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
         "no_controller"),
        ("error: Munge encode failed: Failed to access \"/run/munge/x\": No such file\n",
         "not_trusted"),
        ("squeue: error: something new\n", "other"),
    ],
)  # fmt: skip
def test_why_slurm_gives_no_answer_is_one_sentence_of_ours(asked, monkeypatch, said, kind):
    asked.say("squeue", rc=1, error=said)
    with pytest.raises(FailedError) as failed:
        slurm.queue()
    assert failed.value.kind == kind
    assert (said.splitlines()[0] in str(failed.value)) is (kind == "other")
    monkeypatch.setenv("LOCKSTEP_VERBOSE", "1")
    with pytest.raises(FailedError, match=re.escape(said.splitlines()[0])):
        slurm.queue()


def test_a_configuration_that_is_not_there_is_not_waited_for(asked, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "gone.conf"))
    with pytest.raises(RuntimeError, match=r"SLURM_CONF is .*gone\.conf"):
        slurm.queue()
    assert asked.calls() == []
    with pytest.raises(NotInstalledError):  # which callers take as a machine without Slurm
        slurm.ask("scontrol", "ping")


def test_neither_a_job_around_us_nor_a_user_s_own_filters_reach_slurm(asked, monkeypatch):
    foreign = ("SLURM_MEM_PER_CPU", "SBATCH_QOS", "SQUEUE_STATES", "SACCT_FORMAT")
    for name in (*foreign, "OTHER", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/dev/null")
    slurm.set_cluster("big")
    asked.act("squeue", "/usr/bin/env")
    asked.act("sbatch", f"/usr/bin/env >{asked.folder}/job; echo 7")
    slurm.sbatch(asked.folder / "x.sh", "mine")
    asked.say("sacct")
    slurm.ask("sacct", "--jobs=7")
    assert asked.calls("sacct") == ["sacct --clusters=big --jobs=7"]  # it reads no SLURM_CLUSTERS
    question, job = slurm.ask("squeue"), (asked.folder / "job").read_text()
    for environment in (question, job):
        assert [name for name in foreign if f"{name}=" in environment] == []
        assert {"SLURM_CONF=/dev/null", "OTHER=1", "SLURM_CLUSTERS=big"} <= set(
            environment.splitlines()
        )
    assert "SLURM_TIME_FORMAT=%s" in question
    assert "SLURM_" not in job.replace("SLURM_CONF", "").replace("SLURM_CLUSTERS", "")


# What sbatch prints


@pytest.mark.parametrize(
    ("text", "cluster"),
    [("41\n", None), ("41;big-1\n", "big-1"), ("Welcome!\n12 wait\n2026\n41;a b\nBye\n", None)],
)
def test_the_job_is_found_in_what_a_site_s_sbatch_prints(asked, text, cluster):
    asked.say("sbatch", text)
    assert slurm.sbatch(asked.folder / "x.sh", "mine") == slurm.Taken("41", cluster)


@pytest.mark.parametrize("text", ["", "Submitted batch job 41\n", "-41\n"])
def test_an_answer_without_an_id_is_a_lost_one(asked, text):
    asked.say("sbatch", text)
    asked.say("squeue", "41|41|PENDING|Priority|1|me|mine\n")
    assert slurm.sbatch(asked.folder / "x.sh", "mine").id == "41"
    asked.say("squeue")
    with pytest.raises(RuntimeError, match="instead of a job id"):
        slurm.sbatch(asked.folder / "x.sh", "mine")


BANNER = "sbatch: default account proj, time limit 24h, invalid qos are refused\n"
LOST_ANSWERS = (
    "Socket timed out on send/recv operation",
    "Unable to contact slurm controller (connect failure)",
    "Zero Bytes were transmitted or received",
)


@pytest.mark.parametrize("lost", LOST_ANSWERS)
def test_a_submission_whose_answer_was_lost_is_found_again(asked, lost):
    asked.say("sbatch", rc=1, error=f"{BANNER}sbatch: error: Batch job submission failed: {lost}\n")
    asked.say("squeue", "41_[0-9]|41|PENDING|None|1|me|mine\n", "")
    script = asked.folder / "x.sh"
    assert slurm.sbatch(script, "mine", "--dependency=afterok:7").id == "41"
    (call,) = asked.calls("sbatch")
    assert call == f"sbatch --parsable --comment=mine --dependency=afterok:7 {script}"
    with pytest.raises(FailedError) as failed:  # it is not there: nothing refused it
        slurm.sbatch(script, "mine")
    assert failed.value.kind in ("late", "no_controller")


def test_a_refused_submission_is_not_found_again_by_the_record_it_leaves(asked):
    """Slurm keeps a refused job for a while, FAILED for BadConstraints, with its comment."""
    asked.say("squeue", "41|41|FAILED|BadConstraints|1|me|mine\n")
    asked.say("sbatch", rc=1, error="sbatch: error: Requested node configuration is not available")
    with pytest.raises(ValueError, match=r"; change gpus_per_node, gpu_type, cpus_per_node or mem"):
        slurm.sbatch(asked.folder / "x.sh", "mine")
    asked.say("sbatch", rc=1, error="sbatch: error: something new")
    with pytest.raises(
        RuntimeError, match=r"sbatch failed with exit code 1: sbatch: error: something new"
    ):
        slurm.sbatch(asked.folder / "x.sh", "mine")


def test_a_refusal_names_the_key_and_what_there_is(tmp_path):
    def ask(*command):
        if command[0] == "scontrol":
            return "ClusterName             = here\n"
        assert command[:2] == ("sinfo", "--noheader")
        return "gpu\ndebug\ngpu\n"

    def silent(*_):
        raise RuntimeError("Connection refused")

    def explain(answer):
        text = f"{BANNER}sbatch: error: Invalid partition name\n"
        return slurm.explain_refusal(text, "me", answer, tmp_path / "gone.sh")

    said = explain(ask)
    assert said.endswith(
        "; change partition in the site file (partitions: gpu, debug; asked cluster here)"
    )
    assert "\n" not in said
    assert explain(silent).endswith("; change partition in the site file")
