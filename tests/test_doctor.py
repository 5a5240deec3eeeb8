"""What `lockstep doctor` finds, check by check, on machines that stand-ins make up."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cluster import TESTBED, need_testbed, without_namespaces

from lockstep.slurm import associations
from lockstep.slurm.cluster import Cluster, Kind, Node, Partition
from lockstep.slurm.doctor import checks
from lockstep.slurm.doctor import cluster_checks as slurm_checks
from lockstep.slurm.doctor import examination as diagnosis
from lockstep.slurm.doctor import image_checks as image
from lockstep.slurm.doctor import machine_checks as machine
from lockstep.slurm.doctor.checks import Finding, Subject
from lockstep.slurm.doctor.examination import Diagnosis, Result
from lockstep.slurm.scheduler import NotInstalledError
from lockstep.slurm.site import Site
from lockstep.vocabulary.host import hostname

ROOT = Path(__file__).parents[1]
ABSENT = NotInstalledError("scontrol")
SILENT = RuntimeError("scontrol gave no answer within 60 s; ask again later")
PROBED = {
    "torch": "2.9.0",
    "pytest-benchmark": "5.3.1",
    "cuda": "13.0",
    "rocm": None,
    "nccl": "2.28.3",
    "gloo": True,
    "gpus": 4,
}


def site(**changes):
    usual = {
        "schema": 1,
        "name": "here",
        "partition": "gpu",
        "gpus_per_node": 4,
        "cpus_per_node": 64,
        "time": "01:00:00",
        "container": {"image": "/images/lockstep.sif"},
    }
    return Site.model_validate(usual | changes)


def cluster(**changes):
    """A cluster of two GPU nodes, with what differs from it in its partition or in itself."""
    kind = Kind(num_gpus=4, gpu_type="a100", num_cpus=64, num_sockets=2, memory_mib=512_000)
    nodes = changes.pop("nodes", None) or [
        Node(f"n{i}", kind, frozenset({"ib"}), frozenset({"gpu"}), is_here=True) for i in (1, 2)
    ]
    own = {name: changes.pop(name) for name in list(changes) if name in Partition.__annotations__}
    usual = {"max_time": "1-00:00:00", "max_nodes": None, "accounts": None, "qos": None}
    partition = Partition(
        **{"name": "gpu", "is_default": True, "is_up": True, "nodes": tuple(nodes)} | usual | own
    )
    known = {"version": "22.05.8", "max_array_size": 1001, "keeps_accounts": True}
    return Cluster(**{"name": "here", "partitions": (partition,)} | known | changes)


def own_accounts(default, **qos):
    """What a user may charge, account -> its QOS as sacctmgr lists them."""
    return associations.parse("\n".join(f"me|{default}|{a}|||{q}||||" for a, q in qos.items()))


def subject(tmp_path, slurm=None, **changes):
    made = Subject(**{"environ": {}, "results": tmp_path / "results"} | changes)
    if slurm is not None:
        made.__dict__["slurm"] = slurm  # as if it had been asked
    return made


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Put a shell script on PATH under a command's name, with nothing else but the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/sbin:/usr/bin:/bin")

    def make(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


def test_every_check_says_what_to_do_where_something_is_amiss(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "probe", lambda python: PROBED)
    made = diagnosis.examine(subject(tmp_path, ABSENT))
    assert len(made.results) == len(diagnosis.CHECKS) == len({r.name for r in made.results})
    for result in made.results:
        amiss = result.finding.status in ("warning", "missing")
        assert result.finding.says
        assert bool(result.finding.action) == amiss, result


def test_a_check_that_breaks_is_a_warning_and_not_the_end(tmp_path):
    def broken(subject):
        raise PermissionError(13, "Permission denied", "/sys/thing")

    found = diagnosis._find(diagnosis.Check("g", "n", broken), subject(tmp_path))
    assert found.status == "warning"
    assert "/sys/thing" in found.says


def diagnosed(*findings, runs_here=True, submits=False):
    results = tuple(Result("Group", f"check {i}", found) for i, found in enumerate(findings))
    return Diagnosis(results, runs_here, submits)


@pytest.mark.parametrize(
    ("findings", "can", "code", "verdict"),
    [
        ([checks.ok("x")], (True, False), 0, "`lockstep run` can measure on this machine."),
        ([checks.warning("x", "y")], (True, False), 0, "`lockstep run` can measure"),
        ([checks.missing("x", "y")], (True, False), 1, "`lockstep run` can measure"),
        ([checks.ok("x")], (False, True), 0, "The site's jobs can be submitted; "),
        ([checks.ok("x")], (True, True), 0, "and the site's jobs can be submitted."),
        ([checks.missing("x", "y")], (False, False), 3, "you can still plan, render and report"),
    ],
)
def test_the_exit_code_says_what_can_be_done(findings, can, code, verdict):
    found = diagnosed(*findings, runs_here=can[0], submits=can[1])
    assert found.exit_code == code
    assert verdict in found.verdict


def test_without_torch_and_slurm_nothing_can_run(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    found = diagnosis.examine(subject(tmp_path, ABSENT))
    assert found.exit_code == 3
    assert "no torch, torchvision, pytest, pytest_benchmark" in diagnosis.page(found)


@pytest.fixture
def login_node(monkeypatch):
    """Let Lockstep measure here, and the user have an account."""
    own = own_accounts("mine", mine="normal")
    monkeypatch.setattr(machine, "probe", lambda python: PROBED)
    monkeypatch.setattr(slurm_checks.associations, "read", lambda cluster: own)


@pytest.mark.usefixtures("login_node")
def test_results_that_cannot_be_written_keep_everything_from_running(tmp_path, stand_in):
    stand_in("apptainer", f"echo '{json.dumps(PROBED)}'")
    given, _ = in_image(tmp_path, cluster())
    found = diagnosis.examine(given)
    assert (found.runs_here, found.submits) == (True, True)
    found = diagnosis.examine(
        subject(tmp_path, cluster(), site=given.site, results=Path("/proc/results"))
    )
    assert (found.runs_here, found.submits, found.exit_code) == (False, False, 3)


@pytest.mark.usefixtures("login_node")
def test_what_a_login_node_lacks_keeps_no_job_from_being_submitted(tmp_path, stand_in, monkeypatch):
    stand_in("apptainer", "echo 'FATAL: no namespaces here' >&2; exit 255")
    monkeypatch.setattr(image, "NAMESPACES", tmp_path / "closed")
    (tmp_path / "closed").write_text("0")
    monkeypatch.setattr(image, "FUSE", tmp_path / "no fuse")
    given, file = in_image(tmp_path, cluster())
    found = diagnosis.examine(given)
    rows = {row.name: row.finding for row in found.results}
    for name in ("User namespaces", "FUSE", "Image's Python"):
        assert rows[name].status == "warning", rows[name]
        assert rows[name].says.startswith("on this login node: ")
    assert found.submits
    in_a_job = subject(tmp_path, cluster(), site=given.site, environ={"SLURM_JOB_ID": "7"})
    assert image.namespaces(in_a_job).status == "missing"
    file.unlink()
    assert not diagnosis.examine(given).submits


def test_the_page_is_aligned_and_fits_a_terminal():
    words = "a word and another " * 12
    found = diagnosed(
        checks.ok("short"),
        checks.warning(words, words, words),
        checks.missing("x", "y"),
        checks.not_needed("z"),
    )
    lines = diagnosis.page(found).splitlines()
    assert max(map(len, lines)) <= 80
    texts = [line for line in lines if line.startswith("  ")]
    assert {len(line) - len(line[32:]) for line in texts} == {32}
    assert all(line[31] == " " and line[32] != "" for line in texts)
    assert lines[-2] == "1 ok, 1 warning, 1 missing, 1 not needed."


# The machine


@pytest.mark.parametrize(
    ("omp", "status"),
    [(None, "ok"), ("1", "ok"), ("100000", "warning"), ("many", "warning"), ("-1", "warning")],
)
def test_threads_are_compared_with_the_cores_that_may_be_used(tmp_path, omp, status):
    environ = {"SLURM_JOB_ID": "1"} | ({} if omp is None else {"OMP_NUM_THREADS": omp})
    assert machine.threads(subject(tmp_path, environ=environ)).status == status


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        ("echo 'NVIDIA A100'; echo 'NVIDIA A100'", "ok", "2 x NVIDIA A100"),
        ("echo 'NVIDIA T4'; echo 'NVIDIA A100'", "ok", "2 x NVIDIA A100, NVIDIA T4"),
        ("echo 'no driver' >&2; exit 9", "warning", "nvidia-smi fails: no driver"),
    ],
)
def test_gpus_are_named_by_their_driver(tmp_path, stand_in, script, status, says):
    stand_in("nvidia-smi", script)
    found = machine.gpus(subject(tmp_path))
    assert (found.status, found.says) == (status, says)


def test_few_open_files_are_a_warning_with_the_command_that_helps():
    limit = machine.LEAST_OPEN_FILES - 1
    code = (
        "import resource; from lockstep.slurm.doctor import machine_checks as m;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}));"
        "print(m.open_files(None))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"status='warning', says='ulimit -n is {limit}; many" in ended.stdout
    assert f"ulimit -n {limit}" in ended.stdout


def test_packages_from_elsewhere_are_named(tmp_path):
    leak = machine.foreign_packages(subject(tmp_path, environ={"PYTHONPATH": "/old"}))
    assert (leak.status, leak.says) == ("warning", "PYTHONPATH is set: /old")
    assert machine.foreign_packages(
        subject(tmp_path, environ={"PYTHONNOUSERSITE": "1"})
    ).status == ("ok")


def test_packages_at_home_are_seen_and_counted(tmp_path):
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    own = tmp_path / "lib" / version / "site-packages"
    (own / "torch-1.0.dist-info").mkdir(parents=True)
    code = "import os; from lockstep.slurm.doctor import checks, machine_checks as m; " + (
        "print(m.foreign_packages(checks.Subject(os.environ, None)))"
    )
    # In a virtual environment the user's packages are not seen; this asks what it was made from.
    base = getattr(sys, "_base_executable", sys.executable)
    paths = [str(ROOT), *(p for p in sys.path if p.endswith("site-packages"))]
    ended = subprocess.run(
        [base, "-c", f"import sys; sys.path[:0] = {paths}; {code}"],
        env={"PYTHONUSERBASE": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"status='warning', says='1 packages of {own}" in ended.stdout


@pytest.fixture
def links(tmp_path, monkeypatch):
    """Make the network interfaces of a machine: name -> state and Mbit/s."""

    def make(**states):
        folder = tmp_path / "net"
        for name, (state, speed) in states.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "operstate").write_text(f"{state}\n")
            (folder / name / "speed").write_text(f"{speed}\n")
        found = machine.interfaces(folder)
        monkeypatch.setattr(machine, "interfaces", lambda: found)
        return found

    return make


def test_the_fast_interface_comes_first(links):
    up = ("up", 1000)
    states = {"eth0": up, "eth1": ("up", 100_000), "hsn0": up, "ib1": up, "ib0": ("down", 1)}
    others = {"lo": ("unknown", 0), "docker0": up, "veth1a": up, "bond0": up}
    assert links(**states, **others) == ["ib1", "hsn0", "bond0", "eth1", "eth0"]


def test_a_fast_interface_is_proposed_for_the_site_file(links, tmp_path):
    links(ib0=("up", 200_000), eth0=("up", 1000))
    found = machine.network(subject(tmp_path))
    assert found.status == "ok"
    assert 'put interface = "ib0"' in found.says


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"interface": "ib0"}, "ok"),
        ({"interface": "ib"}, "ok"),
        ({"interface": "hsn0"}, "warning"),
        ({"env": {"NCCL_SOCKET_IFNAME": "=ib0,eth0"}}, "ok"),
        ({"env": {"NCCL_SOCKET_IFNAME": "ib0,eth7"}}, "warning"),
        ({"env": {"NCCL_SOCKET_IFNAME": "^docker0,lo"}}, "ok"),
        ({"env": {"GLOO_SOCKET_IFNAME": "lo"}}, "ok"),
    ],
)
def test_the_interface_that_the_site_names_must_be_here(links, tmp_path, changes, status):
    links(ib0=("up", 200_000), eth0=("up", 1000))
    assert machine.network(subject(tmp_path, site=site(**changes))).status == status


def test_a_time_over_the_limit_of_the_qos_is_named(tmp_path, monkeypatch):
    said = "me|mine|mine|||tiny||||", "tiny||00:30:00|gres/gpu=8|||2"
    monkeypatch.setattr(
        slurm_checks.associations, "read", lambda cluster: associations.parse(*said)
    )
    strict = cluster(enforces_limits=True)
    long = slurm_checks.job_limits(subject(tmp_path, strict, site=site()))
    assert (long.status, "00:30:00" in long.action) == ("missing", True)
    short = slurm_checks.job_limits(subject(tmp_path, strict, site=site(time="00:30:00")))
    assert (short.status, len([short.says, *short.details])) == ("ok", 3)
    lax = slurm_checks.job_limits(subject(tmp_path, cluster(), site=site()))
    assert lax.status == "not needed"


def test_doubtful_nccl_variables_are_named(tmp_path):
    environ = {"NCCL_P2P_LEVEL": "NVLNK"}
    found = diagnosis.nccl_variables(subject(tmp_path, environ=environ))
    assert found.status == "warning"
    assert "NCCL_P2P_LEVEL" in found.details[0]
    in_site = diagnosis.nccl_variables(subject(tmp_path, site=site(env=environ)))
    assert in_site.details == found.details
    before = site(shell_before="export NCCL_P2P_LEVEL=NVLNK")
    assert diagnosis.nccl_variables(subject(tmp_path, site=before)).details == found.details
    assert diagnosis.nccl_variables(subject(tmp_path)).status == "not needed"


def test_what_shell_before_sets_and_the_image_does_not_get_is_named(tmp_path):
    lines = "module load aws-ofi-nccl\nOMP_PROC_BIND=true; export OMP_PROC_BIND FI_PROVIDER=cxi\n"
    found = diagnosis.nccl_variables(subject(tmp_path, site=site(shell_before=lines)))
    assert found.status == "warning"
    assert found.says == "the image does not get OMP_PROC_BIND of shell_before"
    in_env = site(shell_before=lines, env={"OMP_PROC_BIND": "true"})
    found = diagnosis.nccl_variables(subject(tmp_path, site=in_env))
    assert (found.status, found.says) == ("ok", "1 set, all known")


@pytest.mark.parametrize(
    ("state", "status"), [(-1, "not needed"), (0, "ok"), (machine.CLOCK_ERROR, "warning")]
)
def test_a_clock_of_which_the_kernel_says_nothing_is_not_kept(tmp_path, monkeypatch, state, status):
    library = SimpleNamespace(adjtimex=lambda buffer: state)
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: library)
    assert machine.clock(subject(tmp_path)).status == status


# Storage


def mounted(monkeypatch, folder, kind):
    """Let a folder be the mount point of a file system of some type."""
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4")]
    mounts += [SimpleNamespace(mountpoint=str(folder), fstype=kind)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **options: mounts)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("nfs", "warning"),
        ("nfs4", "warning"),
        ("fuse.sshfs", "warning"),
        ("fuse.s3fs", "warning"),
        ("overlay", "warning"),
        ("lustre", "ok"),
        ("beegfs", "ok"),
        ("xfs", "ok"),
        ("tmpfs", "ok"),
        ("newfs", "ok"),
    ],
)
def test_data_on_slow_storage_is_a_warning_that_names_its_type(tmp_path, monkeypatch, kind, status):
    mounted(monkeypatch, tmp_path, kind)
    (tmp_path / "data").mkdir()
    found = machine.data_storage(subject(tmp_path, data=tmp_path / "data"))
    assert found.status == status
    assert f"{tmp_path}/data: {kind}, " in found.says


def test_data_that_are_not_there_are_missing(tmp_path):
    found = machine.data_storage(subject(tmp_path, data=tmp_path / "gone"))
    assert (found.status, found.says) == ("missing", f"{tmp_path}/gone does not exist")


@pytest.mark.parametrize(
    ("kind", "status"),
    [("nfs4", "ok"), ("ext4", "ok"), ("tmpfs", "warning"), ("overlay", "warning")],
)
def test_results_belong_where_they_stay(tmp_path, monkeypatch, kind, status):
    mounted(monkeypatch, tmp_path, kind)
    found = machine.results_storage(subject(tmp_path))
    assert found.status == status
    assert [path.name for path in tmp_path.iterdir()] == []


def test_real_memory_is_known_as_such():
    memory = Path("/dev/shm")  # noqa: S108, nothing stays there
    if not memory.is_dir():
        pytest.skip(f"no {memory} on this system")
    found = machine.results_storage(Subject({}, memory / "results"))
    assert found.says.startswith(f"{memory}/results: tmpfs, memory; ")


def test_a_folder_that_cannot_be_written_is_missing():
    found = machine.results_storage(Subject({}, Path("/proc/results")))
    assert found.status == "missing"


def test_a_clock_that_differs_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_clock_skew_s", lambda folder: -3.21)
    found = machine.results_storage(subject(tmp_path))
    assert found.status == "warning"
    assert "its clock is -3.2 s from this machine's" in found.says


def test_the_clock_of_a_local_disk_is_this_machine_s(tmp_path):
    assert abs(machine._clock_skew_s(tmp_path)) < 0.5


# The image


SQUASHED = bytes(32) + b"SIF_MAGIC\0" + bytes(100) + b"squashed"  # for no machine by name


def in_image(tmp_path, slurm=SILENT, **changes):
    file = tmp_path / "lockstep.sif"
    file.write_bytes(SQUASHED)
    return subject(tmp_path, slurm, site=site(container={"image": str(file)}, **changes)), file


def test_an_image_is_compared_with_its_record(tmp_path):
    given, file = in_image(tmp_path)
    assert "no record" in image.image(given).says
    record = tmp_path / "lockstep.sif.json"
    record.write_text(json.dumps({"sha256": sha256(SQUASHED).hexdigest()}))
    assert image.image(given).says.endswith("as it was built")
    file.write_bytes(SQUASHED.replace(b"squ", b"sqv"))
    found = image.image(given)
    assert found.status == "missing"
    assert f"but it was built as {sha256(SQUASHED).hexdigest()[:12]}" in found.says


@pytest.mark.parametrize("content", [b"", b"an HTML page of an error", SQUASHED[:40]])
def test_a_file_of_another_kind_is_no_image(tmp_path, content):
    given, file = in_image(tmp_path)
    file.write_bytes(content)
    found = image.image(given)
    assert found.status == "missing"
    assert found.says == f"{file} is no SIF image: it begins with {content[:16]!r}"
    assert found.action == "lockstep image build, or correct container.image"


def test_an_image_is_for_this_machine(tmp_path, monkeypatch):
    given, file = in_image(tmp_path)
    file.write_bytes(SQUASHED[:45] + b"04" + SQUASHED[47:])
    monkeypatch.setattr(image.platform, "machine", lambda: "aarch64")
    assert image.image(given).status == "ok"
    monkeypatch.setattr(image.platform, "machine", lambda: "x86_64")
    found = image.image(given)
    assert found.status == "missing"
    assert found.says == f"{file} is built for aarch64, and this machine is x86_64"


@pytest.mark.parametrize("record", ["", "[]", "{}", "\xff"])
def test_a_record_that_cannot_be_read_says_nothing(tmp_path, record):
    given, _ = in_image(tmp_path)
    (tmp_path / "lockstep.sif.json").write_bytes(record.encode("latin-1"))
    assert image.image(given).status == "ok"


def test_an_image_that_is_not_there_is_missing(tmp_path):
    found = image.image(subject(tmp_path, site=site()))
    assert (found.status, found.says) == (
        "missing",
        "/images/lockstep.sif: No such file or directory",
    )


@pytest.mark.parametrize(
    ("probed", "status", "says"),
    [
        ({}, "ok", "torch 2.9.0 with CUDA 13.0, NCCL 2.28.3, gloo; 4 GPU(s) seen"),
        ({"gpus": 0}, "ok", "no GPU seen"),
        ({"cuda": None, "nccl": None}, "missing", "it cannot use the site's GPUs, which need CUDA"),
        ({"cuda": None, "rocm": "6.4"}, "missing", "which need CUDA"),
        ({"nccl": None}, "missing", "without NCCL"),
    ],
)
def test_python_in_the_image_is_asked_what_it_can(tmp_path, stand_in, probed, status, says):
    given, file = in_image(tmp_path, cluster())
    facts = json.dumps(PROBED | probed)
    stand_in("apptainer", f"echo \"$@\" >{tmp_path}/argv; echo a banner; echo '{facts}'")
    found = image.image_runs(given)
    assert found.status == status
    assert says in found.says
    argv = (tmp_path / "argv").read_text()
    assert argv.startswith("exec --cleanenv --no-eval --nv --env PYTHONNOUSERSITE=1 ")
    assert f"{file} python3 -c" in argv


@pytest.mark.parametrize(
    ("probed", "status", "says"),
    [
        ({"cuda": None, "rocm": "6.4"}, "ok", "torch 2.9.0 with ROCm 6.4, NCCL 2.28.3"),
        ({}, "missing", "it cannot use the site's GPUs, which need ROCm"),
        ({"cuda": None, "rocm": "6.4", "nccl": None}, "missing", "without NCCL"),
    ],
)
def test_an_image_for_amd_s_gpus_is_entered_and_judged_as_one(
    tmp_path, stand_in, probed, status, says
):
    given, _ = in_image(tmp_path, gpu_runtime="rocm")
    facts = json.dumps(PROBED | probed)
    stand_in("apptainer", f"echo \"$@\" >{tmp_path}/argv; echo '{facts}'")
    found = image.image_runs(given)
    assert (found.status, says in found.says) == (status, True), found
    assert (tmp_path / "argv").read_text().startswith("exec --cleanenv --no-eval --rocm --env ")


def test_a_driver_counts_where_it_is_of_the_site_s_gpus(tmp_path, monkeypatch):
    (tmp_path / "kfd").touch()
    drivers = {"cuda": ("CUDA", tmp_path / "none"), "rocm": ("ROCm", tmp_path / "kfd")}
    monkeypatch.setattr(image, "RUNTIMES", drivers)
    assert image.gpu_driver(in_image(tmp_path, gpu_runtime="rocm")[0]).status == "ok"
    assert "none here, and --nv does not say so" in image.gpu_driver(in_image(tmp_path)[0]).says
    assert image.gpu_driver(in_image(tmp_path, gpus_per_node=0)[0]).status == "not needed"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("printf '\\033[31mFATAL: \\033[0m  image is broken\\n\\033[0m' >&2; exit 255", "image is"),
        ("echo 'E: x' >&2; echo 'ModuleNotFoundError: No module torch' >&2; exit 1", "ModuleNotF"),
        ("exit 7", "it ended with 7"),
        ("echo hello", "and no facts"),
    ],
)
def test_an_image_that_does_not_work_says_why_in_a_line(tmp_path, stand_in, script, says):
    given, _ = in_image(tmp_path)
    stand_in("apptainer", script)
    found = image.image_runs(given)
    assert found.status == "missing"
    assert says in found.says
    assert "\x1b" not in found.says
    assert "\n" not in found.says


def test_where_only_singularity_is_there_apptainer_is_missing(tmp_path, stand_in, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    stand_in("singularity", "exit 0")
    given, _ = in_image(tmp_path)
    assert image.apptainer(given).says == "only singularity, and jobs call apptainer"
    on_login_node, _ = in_image(tmp_path, cluster())
    assert image.apptainer(on_login_node).status == "warning"
    assert image.apptainer(subject(tmp_path)).status == "not needed"


@pytest.mark.parametrize(
    ("said", "status"),
    [("apptainer version 1.4.5", "ok"), ("apptainer version 1.0.3-1", "warning"), ("?", "ok")],
)
def test_an_old_apptainer_is_a_warning(tmp_path, stand_in, said, status):
    stand_in("apptainer", f"echo '{said}'")
    assert image.apptainer(subject(tmp_path)).status == status


@pytest.mark.parametrize("switch", ["NAMESPACES", "CLONE", "APPARMOR"])
def test_closed_user_namespaces_are_found(tmp_path, stand_in, monkeypatch, switch):
    stand_in("apptainer", "echo APPTAINER_SUID_INSTALL=0")
    closed = tmp_path / "switch"
    closed.write_text("1\n" if switch == "APPARMOR" else "0\n")
    monkeypatch.setattr(image, switch, closed)
    found = image.namespaces(subject(tmp_path))
    assert found.status == "missing"
    assert f"ordinary users of {hostname()} may make none" in found.says
    assert found.action.startswith("ask for this setting to be changed, or for apptainer-suid")


@pytest.mark.slurm
@pytest.mark.slow
def test_user_namespaces_that_the_kernel_really_refuses_are_found():
    need_testbed()
    ended = without_namespaces("lockstep", "doctor", "--json", cwd="/")
    rows = {row["check"]: row for row in json.loads(ended.stdout)["checks"]}
    found = rows["User namespaces"]
    assert found["status"] == "missing"
    closed = "/proc/sys/user/max_user_namespaces says 0"
    assert found["says"] == f"ordinary users of {hostname()} may make none: {closed}"
    assert found["action"].endswith("; unshare --user --map-root-user true checks it")


@pytest.mark.parametrize(
    ("mode", "status", "says"),
    [
        (0o666, "ok", "is open to all, "),
        (0o660, "missing", "is -rw-rw----: an ordinary user cannot use it"),
        (None, "missing", "is not there"),
    ],
)
def test_fuse_must_be_open_to_ordinary_users(tmp_path, stand_in, monkeypatch, mode, status, says):
    folder = tmp_path / "libexec" / "apptainer" / "bin"
    folder.mkdir(parents=True)
    (folder / "squashfuse_ll").touch(mode=0o755)
    stand_in("apptainer", f"echo APPTAINER_SUID_INSTALL=0; echo LIBEXECDIR={tmp_path}/libexec")
    device = tmp_path / "fuse"
    if mode is not None:
        device.touch()
        device.chmod(mode)
    monkeypatch.setattr(image, "FUSE", device)
    found = image.fuse(subject(tmp_path))
    assert (found.status, says in found.says) == (status, True), found


def test_an_apptainer_with_setuid_needs_neither_namespaces_nor_fuse(tmp_path, stand_in):
    stand_in("apptainer", "echo APPTAINER_SUID_INSTALL=1")
    assert image.namespaces(subject(tmp_path)).status == "not needed"
    assert image.fuse(subject(tmp_path)).status == "not needed"


# Slurm


def test_slurm_that_is_not_there_is_missing_only_to_a_site(tmp_path):
    assert slurm_checks.answers(subject(tmp_path, ABSENT)).status == "not needed"
    found = slurm_checks.answers(subject(tmp_path, ABSENT, site=site()))
    assert (found.status, found.says) == ("missing", str(ABSENT))
    assert slurm_checks.answers(subject(tmp_path, SILENT)).status == "missing"


def test_slurm_is_absent_where_its_command_is_and_not_where_it_says_so(
    tmp_path, stand_in, monkeypatch
):
    stand_in("scontrol", "echo 'plugin auth/munge is not installed' >&2; exit 1")
    assert slurm_checks.answers(subject(tmp_path)).status == "missing"
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm_checks.answers(subject(tmp_path)).status == "not needed"


DOWN = Node(
    "n1", cluster().partitions[0].nodes[0].kind, frozenset(), frozenset({"gpu"}), is_here=False
)


@pytest.mark.parametrize(
    ("changes", "differs", "status", "says"),
    [
        ({}, {}, "ok", "gpu: 2 of 2 nodes are as the site says, 2 in service"),
        ({"partition": "gpux"}, {}, "missing", "gpux: there is no such partition"),
        ({"partitions": {"debug": {}}}, {}, "missing", "debug: there is no such partition"),
        ({}, {"is_up": False}, "missing", "gpu is not up"),
        ({"gpus_per_node": 8}, {}, "missing", "gpus_per_node 8 over 4"),
        ({"gpu_type": "h100"}, {}, "missing", "gpu_type h100 is not a100"),
        ({"cpus_per_node": 65}, {}, "missing", "cpus_per_node 65 over 64"),
        ({"mem": "501G"}, {}, "missing", "mem 513024 MiB over 512000"),
        ({"mem": "500G"}, {}, "ok", "2 in service"),
        ({"mem": "512000"}, {}, "ok", "2 in service"),
        ({"constraint": "nvlink"}, {}, "missing", "constraint nvlink is no feature"),
        ({"constraint": "ib"}, {}, "ok", "2 in service"),
        ({"constraint": "a&b"}, {}, "ok", "2 in service"),
        ({}, {"nodes": [DOWN]}, "warning", "none is in service"),
    ],
)
def test_the_site_s_nodes_are_compared_with_slurm_s(tmp_path, changes, differs, status, says):
    given = subject(tmp_path, cluster(**differs), site=site(**changes))
    found = slurm_checks.partition(given)
    assert (found.status, says in found.says) == (status, True), found


def test_nodes_of_two_kinds_are_a_warning(tmp_path):
    nodes = list(cluster().partitions[0].nodes)
    other = Kind(num_gpus=4, gpu_type="h100", num_cpus=64, num_sockets=2, memory_mib=512_000)
    nodes.append(Node("n3", other, frozenset(), frozenset({"gpu"}), is_here=True))
    given = subject(tmp_path, cluster(nodes=nodes), site=site())
    assert "3 of 3 nodes are as the site says, of 2 kinds" in slurm_checks.partition(given).says
    typed = subject(tmp_path, cluster(nodes=nodes), site=site(gpu_type="h100"))
    assert slurm_checks.partition(typed).status == "ok"


@pytest.mark.parametrize(
    ("given", "limit", "status"),
    [
        ("01:00:00", "01:00:00", "ok"),
        ("01:00:01", "01:00:00", "missing"),
        ("2-00:00:00", None, "ok"),
        ("23:59:59", "1-00:00:00", "ok"),
    ],
)
def test_the_site_s_time_is_compared_with_the_partition_s(tmp_path, given, limit, status):
    examined = subject(tmp_path, cluster(max_time=limit), site=site(time=given))
    assert slurm_checks.time_limit(examined).status == status


@pytest.mark.parametrize(
    ("changes", "differs", "status", "says"),
    [
        ({}, {}, "ok", "mine, QOS the default"),
        ({"account": "theirs"}, {}, "ok", "theirs, "),
        ({"account": "other"}, {}, "missing", "other is not yours"),
        ({"account": "mine"}, {"accounts": ("theirs",)}, "missing", "mine may not use gpu"),
        ({"qos": "high"}, {}, "ok", "QOS high"),
        ({"qos": "urgent"}, {}, "missing", "QOS urgent is none of the account's"),
        ({"account": "theirs", "qos": "high"}, {}, "missing", "QOS high is none of"),
        ({"qos": "high"}, {"qos": ("normal",)}, "missing", "QOS high may not use gpu"),
        ({}, {"keeps_accounts": False}, "not needed", "keeps no accounts"),
    ],
)
def test_account_and_qos_must_be_the_user_s(tmp_path, monkeypatch, changes, differs, status, says):
    own = own_accounts("mine", mine="normal,high", theirs="normal")
    monkeypatch.setattr(slurm_checks.associations, "read", lambda cluster: own)
    given = subject(tmp_path, cluster(**differs), site=site(**changes))
    found = slurm_checks.account(given)
    assert (found.status, says in found.says) == (status, True), found


def test_without_a_default_account_the_site_must_name_one(tmp_path, monkeypatch):
    own = own_accounts("", mine="", theirs="")
    monkeypatch.setattr(slurm_checks.associations, "read", lambda cluster: own)
    found = slurm_checks.account(subject(tmp_path, cluster(), site=site()))
    assert (found.status, found.action) == ("missing", "name an account: mine, theirs")
    assert slurm_checks.account(subject(tmp_path, cluster(), site=site(account="mine"))) == (
        checks.ok("mine, QOS the default")
    )


def test_arrays_must_fit_into_slurm_s_limit(tmp_path):
    fits = subject(tmp_path, cluster(), site=site())
    assert slurm_checks.array_size(fits) == Finding("ok", "up to 1000 elements in one array")
    over = subject(tmp_path, cluster(), site=site(max_array_size=5000))
    assert slurm_checks.array_size(over).action == "max_array_size = 1001 in the site file"


def test_an_srun_that_does_not_end_is_ended(tmp_path, stand_in, monkeypatch):
    monkeypatch.setattr(slurm_checks, "NODES_TIMEOUT_S", 0.2)
    monkeypatch.setattr(slurm_checks, "GRACE_S", 0.2)
    stand_in("srun", "trap '' TERM\nwhile :; do sleep 0.1; done")
    started = time.monotonic()
    found = slurm_checks.nodes(subject(tmp_path, cluster(), asks_nodes=True))
    assert found.status == "missing"
    assert found.says.endswith("; its job may wait on: squeue --me --name=doctor")
    assert time.monotonic() - started < 20


def test_accounting_that_fails_is_a_warning(tmp_path, stand_in):
    given = subject(tmp_path, cluster())
    stand_in("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert slurm_checks.accounting(given).says == "sacct said: Slurm accounting storage is disabled"
    stand_in("sacct", "exit 0")
    assert slurm_checks.accounting(given).status == "ok"


def says(answer):
    """What a node's shell prints."""
    return f"echo {slurm_checks.MARK} {answer}"


def test_what_prologs_print_is_no_node(tmp_path, stand_in):
    said = f"echo; echo Welcome; {says('n1 h1 ib0')}; echo -n 'job 1: '; {says('n2 h2 ib0')}"
    stand_in("srun", said)
    found = slurm_checks.nodes(subject(tmp_path, cluster(), asks_nodes=True))
    assert found.status == "ok"
    assert found.details == ("n1, host h1: ib0", "n2, host h2: ib0")


def test_a_node_says_its_names_and_interfaces():
    said = subprocess.run(
        ["sh", "-c", slurm_checks.NODE_SAYS],
        env={"SLURMD_NODENAME": "n7", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    ((node, host, *found),) = slurm_checks._rows(said.stdout)
    assert (node, host) == ("n7", socket.gethostname())
    assert sorted(found) == sorted(link.name for link in Path("/sys/class/net").iterdir())


def test_nodes_are_asked_by_the_site_s_own_options(tmp_path, stand_in):
    stand_in(
        "srun",
        f'echo "$@" >{tmp_path}/argv; {says("n2 n2.local ib0 lo")}; {says("n1 n1.local ib0 lo")}',
    )
    extra = ["--exclusive", "--begin=18:00", "--licenses=disk:1"]
    chosen = site(
        account="mine", gpu_type="a100", interface="ib0", mem="480G", extra_directives=extra
    )
    given = subject(tmp_path, cluster(), site=chosen, asks_nodes=True)
    found = slurm_checks.nodes(given)
    assert found.status == "ok"
    assert found.details == ("n1, host n1.local: ib0, lo", "n2, host n2.local: ib0, lo")
    assert (
        (tmp_path / "argv")
        .read_text()
        .startswith(
            "--nodes=2 --ntasks=2 --ntasks-per-node=1 --partition=gpu --account=mine "
            "--mem=480G --gpus-per-node=a100:1 --exclusive --licenses=disk:1 --time=00:01:00 "
        )
    )


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            f"{says('n1 h1 ib0')}; {says('n2 h2 eth0')}",
            "n2: no interface ib0, which the site names",
        ),
        (says("n1 h1 ib0"), "1 of 2 nodes have answered"),
        (f"{says('n1 h1 ib0')}; {says('n1 h1 ib0')}", "1 of 2 nodes have answered"),
        (f"echo Welcome; echo to our cluster; {says('n1 h1 ib0')}", "1 of 2 nodes have answered"),
        ("echo one; echo 'n1 h1 ib0'; echo lockstep-node:", "0 of 2 nodes have answered"),
        ("echo 'srun: error: Invalid account' >&2; exit 1", "srun: error: Invalid account"),
        ("exit 3", "srun ended with 3"),
    ],
)
def test_nodes_that_do_not_answer_as_they_should_are_missing(tmp_path, stand_in, script, says):
    stand_in("srun", script)
    given = subject(tmp_path, cluster(), site=site(interface="ib0"), asks_nodes=True)
    found = slurm_checks.nodes(given)
    assert (found.status, found.says) == ("missing", says)


def test_a_queue_that_is_too_long_ends_with_a_sentence_and_no_job(tmp_path, stand_in, monkeypatch):
    monkeypatch.setattr(slurm_checks, "NODES_TIMEOUT_S", 1)
    cancelled = tmp_path / "cancelled"
    stand_in("srun", f"trap 'touch {cancelled}; exit 1' TERM\nwhile :; do sleep 0.1; done")
    started = time.monotonic()
    found = slurm_checks.nodes(subject(tmp_path, cluster(), asks_nodes=True))
    assert time.monotonic() - started < 20
    assert found.says == "no nodes within 1 s, the queue is too long; its job is cancelled"
    assert cancelled.exists()


# The command


def lockstep(*arguments, cwd, **environ):
    """Run the command as it is typed."""
    return subprocess.run(
        [sys.executable, "-m", "lockstep", "doctor", *arguments],
        cwd=cwd,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_this_machine_can_be_examined_by_a_program(tmp_path):
    ended = lockstep("--json", cwd=tmp_path, PATH="/nowhere")
    facts = json.loads(ended.stdout)
    assert ended.stderr == ""
    assert ended.returncode == facts["exit_code"] == 0
    assert facts["runs_here"]
    found = {row["check"]: row["status"] for row in facts["checks"]}
    assert found["lockstep run"] == "ok"
    assert found["Slurm"] == "not needed"
    assert list(tmp_path.iterdir()) == []


def test_a_bad_site_file_is_refused_before_any_check(tmp_path):
    (tmp_path / "site.toml").write_text("schema = 1\npartitoin = 'x'\n")
    ended = lockstep("--site", "site.toml", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "Error: site.toml: unknown key 'partitoin'; did you mean 'partition'?\n"
    )


def test_help_loads_neither_checks_nor_torch(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lockstep", "doctor", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(re.findall(r"\|\s+([\w.]+)$", ended.stderr, re.MULTILINE))
    assert not loaded & {"torch", "pydantic", "lockstep.slurm.doctor"}
    assert "  lockstep doctor --site site.toml --slurm" in ended.stdout


@pytest.mark.slurm
@pytest.mark.slow
def test_two_nodes_of_the_testbed_answer(tmp_path, stand_in):
    need_testbed()
    stand_in("srun", f'exec "{TESTBED}/as-user" srun "$@"')
    chosen = site(partition="debug", account="project", gpus_per_node=2, cpus_per_node=4)
    found = slurm_checks.nodes(subject(tmp_path, site=chosen, asks_nodes=True))
    assert found.status == "ok", found
    host = socket.gethostname()
    assert [line.partition(": ")[0] for line in found.details] == [
        f"node1, host {host}",
        f"node2, host {host}",
    ]
