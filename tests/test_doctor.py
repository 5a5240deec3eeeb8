"""What `lockstep doctor` finds, check by check, on machines that stand-ins make up."""

import json
import os
import socket
import tomllib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from data.job_samples import SITE_FILE
from stand_ins import lockstep

from lockstep.before.doctor import cluster_checks
from lockstep.before.doctor import machine_checks as machine
from lockstep.before.doctor.cluster_checks import Diagnosis, examine
from lockstep.before.doctor.machine_checks import CHECKS, Subject, check
from lockstep.campaign import launcher
from lockstep.core import processes
from lockstep.core.processes import hostname
from lockstep.image.inspection import Record, write_record
from lockstep.slurm import associations
from lockstep.slurm.client import NotInstalledError
from lockstep.slurm.cluster import Cluster, Kind, Node, Partition
from lockstep.slurm.site import Site

ROOT = Path(__file__).parents[1]
ABSENT = NotInstalledError("scontrol")
SILENT = RuntimeError("the command scontrol did not end within 60 s; try again later")
PROBED = {
    "torch": "2.9.0", "pytest-benchmark": "5.3.1", "cuda": "13.0", "rocm": None, "nccl": "2.28.3",
    "gloo": True, "gpus": 4,
}  # fmt: skip


def site(**changes):
    return Site.model_validate(tomllib.loads(SITE_FILE) | {"time": "01:00:00"} | changes)


def cluster(**changes):
    kind = Kind(num_gpus=4, gpu_type="a100", num_cpus=64, num_sockets=2, memory_mib=512_000)
    nodes = changes.pop("nodes", None) or [
        Node(f"n{i}", kind, frozenset({"ib"}), frozenset({"gpu"}), "IDLE") for i in (1, 2)
    ]
    own = {name: changes.pop(name) for name in list(changes) if name in Partition.__annotations__}
    usual = {"max_time": "1-00:00:00", "max_nodes": None, "accounts": None, "qos": None}
    partition = Partition(
        **{"name": "gpu", "is_default": True, "is_up": True, "nodes": tuple(nodes)} | usual | own
    )
    known = {"version": "22.05.8", "max_array_size": 1001, "keeps_accounts": True}
    return Cluster(**{"name": "here", "partitions": (partition,)} | known | changes)


def own_accounts(default, **qos):
    return associations.parse("\n".join(f"me|{default}|{a}|||{q}||||" for a, q in qos.items()))


def subject(tmp_path, slurm=None, **changes):
    made = Subject(**{"environ": {}, "results": tmp_path / "results"} | changes)
    if slurm is not None:
        made.__dict__["slurm"] = slurm  # as if it had been asked
    return made


def test_every_check_says_what_to_do_where_something_is_amiss(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "probe", lambda python: PROBED)
    diagnosis = examine(subject(tmp_path, ABSENT))
    assert [finding.kind for finding in diagnosis.findings] == list(CHECKS)
    for finding in diagnosis.findings:
        assert finding.text
        assert bool(finding.action) == (finding.level in ("warning", "missing")), finding
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)
    assert examine(subject(tmp_path, ABSENT)).exit_code == 3


def test_a_check_that_breaks_is_a_warning_and_not_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CHECKS", {})

    def broken(subject):
        raise PermissionError(13, "Permission denied", "/sys/thing")

    found = check("g", "n")(broken)(subject(tmp_path))
    assert (found.level, "/sys/thing" in found.text) == ("warning", True)


@pytest.mark.parametrize(("finding", "runs_here", "submits", "code"), [
    (machine.warning("x", "y"), True, False, 0), (machine.missing("x", "y"), True, False, 1),
    (machine.ok("x"), False, True, 0), (machine.ok("x"), False, False, 3),
])  # fmt: skip
def test_the_exit_code_says_what_can_be_done(finding, runs_here, submits, code):
    assert diagnosed(finding, runs_here=runs_here, submits=submits).exit_code == code


def diagnosed(*findings, runs_here=True, submits=False):
    made = (replace(found, kind=f"check {i}", group="Group") for i, found in enumerate(findings))
    return Diagnosis(tuple(made), runs_here, submits)


@pytest.fixture
def login_node(monkeypatch):
    """Let Lockstep measure here, and the user have an account."""
    own = own_accounts("mine", mine="normal")
    monkeypatch.setattr(machine, "probe", lambda python: PROBED)
    monkeypatch.setattr(associations, "read", lambda cluster: own)


@pytest.mark.usefixtures("login_node")
def test_results_that_cannot_be_written_keep_everything_from_running(tmp_path, stand_in):
    stand_in("apptainer", f"echo '{json.dumps(PROBED)}'")
    given, _ = in_image(tmp_path, cluster())
    found = examine(given)
    assert (found.runs_here, found.submits) == (True, True)
    found = examine(subject(tmp_path, cluster(), site=given.site, results=Path("/proc/results")))
    assert (found.runs_here, found.submits, found.exit_code) == (False, False, 3)


@pytest.mark.usefixtures("login_node")
def test_what_a_login_node_lacks_keeps_no_job_from_being_submitted(tmp_path, stand_in, monkeypatch):
    stand_in("apptainer", "echo 'FATAL: no namespaces here' >&2; exit 255")
    monkeypatch.setattr(cluster_checks, "NAMESPACES", tmp_path / "closed")
    (tmp_path / "closed").write_text("0")
    monkeypatch.setattr(cluster_checks, "FUSE", tmp_path / "no fuse")
    given, file = in_image(tmp_path, cluster())
    found = examine(given)
    rows = {finding.kind: finding for finding in found.findings}
    for name in ("User namespaces", "FUSE", "Image's Python"):
        assert rows[name].level == "warning", rows[name]
        assert rows[name].text.endswith(" on this login node")
    assert found.submits
    in_a_job = subject(tmp_path, cluster(), site=given.site, environ={"SLURM_JOB_ID": "7"})
    assert cluster_checks.namespaces(in_a_job).level == "missing"
    file.unlink()
    assert not examine(given).submits


# The machine


@pytest.mark.parametrize(
    ("omp", "status"),
    [(None, "ok"), ("1", "ok"), ("100000", "warning"), ("many", "warning"), ("-1", "warning")],
)
def test_threads_are_compared_with_the_cores_that_may_be_used(tmp_path, omp, status):
    environ = {"SLURM_JOB_ID": "1"} | ({} if omp is None else {"OMP_NUM_THREADS": omp})
    assert machine.threads(subject(tmp_path, environ=environ)).level == status


@pytest.mark.parametrize(("script", "status", "says"), [
    ("echo 'T4, 15360, 570'; echo 'A100, 40960, 570'", "ok", "2 x A100, T4"),
    ("echo 'no driver' >&2; exit 9", "warning", "nvidia-smi fails: no driver"),
])  # fmt: skip
def test_gpus_are_named_by_their_driver(tmp_path, stand_in, script, status, says):
    stand_in("nvidia-smi", script)
    found = machine.gpus(subject(tmp_path))
    assert (found.level, found.text) == (status, says)


@pytest.mark.parametrize(("driver", "facts", "part"), [
    ("470.82.01", {"cuda": "12.4"}, "CUDA 12 needs NVIDIA driver 525 or newer, but"),
    ("525.60.13", {"cuda": "12.8"}, None), ("[N/A]", {"cuda": "13.0"}, None),
    ("580.1", {"nccl": "2.18.3", "built_for_nccl": "2.21.5"}, "was built for NCCL 2.21.5"),
    ("580.1", {"nccl": "2.27.5", "built_for_nccl": "2.21.5"}, None),
])  # fmt: skip
def test_driver_and_nccl_suit_the_torch_that_is_there(stand_in, driver, facts, part):
    stand_in("nvidia-smi", f"echo 'A100, 40960, {driver}'")
    found = machine.judge_versions(PROBED | facts)
    assert (found.level, (part or "torch") in found.text) == ("warning" if part else "ok", True)


def test_few_open_files_are_a_warning_with_the_command_that_helps(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1024, 2048))
    found = machine.open_files(subject(tmp_path))
    assert (found.level, "ulimit -n 2048" in found.action) == ("warning", True)


def test_packages_from_elsewhere_are_named(tmp_path, monkeypatch):
    (tmp_path / "torch-1.0.dist-info").mkdir()
    monkeypatch.setattr(machine.site_packages, "getusersitepackages", lambda: str(tmp_path))
    monkeypatch.setattr(machine.site_packages, "ENABLE_USER_SITE", True)
    leak = machine.foreign_packages(subject(tmp_path, environ={"PYTHONPATH": "/old"}))
    assert (leak.level, leak.text) == ("warning", "PYTHONPATH is set: /old")
    assert machine.foreign_packages(subject(tmp_path)).level == "warning"
    apart = subject(tmp_path, environ={"PYTHONNOUSERSITE": "1"})
    assert machine.foreign_packages(apart).level == "ok"


@pytest.fixture
def links(tmp_path, monkeypatch):
    """Make the network interfaces of a machine: name -> state and Mbit/s."""

    def make(**states):
        for name, (state, speed) in states.items():
            folder = tmp_path / "net" / name
            folder.mkdir(parents=True)
            (folder / "operstate").write_text(f"{state}\n")
            (folder / "speed").write_text(f"{speed}\n")
        found = machine.interfaces(tmp_path)
        monkeypatch.setattr(machine, "interfaces", lambda: found)
        return found

    return make


def test_the_fast_interface_comes_first_and_is_proposed(links, tmp_path):
    up = ("up", 1000)
    states = {"eth0": up, "eth1": ("up", 100_000), "hsn0": up, "ib1": up, "ib0": ("down", 1)}
    others = {"lo": ("unknown", 0), "docker0": up, "veth1a": up, "bond0": up}
    assert links(**states, **others) == ["ib1", "hsn0", "bond0", "eth1", "eth0"]
    assert 'set interface = "ib1"' in machine.interface(subject(tmp_path)).text


@pytest.mark.parametrize(("changes", "status"), [
    ({"interface": "ib"}, "ok"), ({"interface": "hsn0"}, "warning"),
    ({"env": {"NCCL_SOCKET_IFNAME": "ib0,eth7"}}, "warning"),
    ({"env": {"NCCL_SOCKET_IFNAME": "^docker0,lo"}}, "ok"),
])  # fmt: skip
def test_the_interface_that_the_site_names_must_be_here(links, tmp_path, changes, status):
    links(ib0=("up", 200_000), eth0=("up", 1000))
    assert machine.interface(subject(tmp_path, site=site(**changes))).level == status


def test_doubtful_nccl_variables_are_named(tmp_path):
    environ = {"NCCL_P2P_LEVEL": "NVLNK"}
    found = machine.nccl_variables(subject(tmp_path, environ=environ))
    assert found.level == "warning"
    assert "NCCL_P2P_LEVEL" in found.details[0]
    in_site = machine.nccl_variables(subject(tmp_path, site=site(env=environ)))
    assert in_site.details == found.details
    assert machine.nccl_variables(subject(tmp_path)).level == "not needed"


# Storage


def mounted(monkeypatch, folder, kind):
    """Let a folder be the mount point of a file system of some type."""
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4")]
    mounts += [SimpleNamespace(mountpoint=str(folder), fstype=kind)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **options: mounts)


@pytest.mark.parametrize(
    ("kind", "status"),
    [("nfs4", "warning"), ("fuse.sshfs", "warning"), ("lustre", "ok"), ("newfs", "ok")],
)
def test_data_on_slow_storage_is_a_warning_that_names_its_type(tmp_path, monkeypatch, kind, status):
    mounted(monkeypatch, tmp_path, kind)
    found = machine.data_storage(subject(tmp_path, data=tmp_path))
    assert (found.level, f"{tmp_path}: {kind}, " in found.text) == (status, True)
    assert machine.data_storage(subject(tmp_path, data=tmp_path / "gone")).level == "missing"
    monkeypatch.setenv("LOCKSTEP_ROOT", str(tmp_path))
    assert str(tmp_path / "data") in machine.data_storage(subject(tmp_path)).text


@pytest.mark.parametrize(
    ("kind", "status", "of_a_site"),
    [("nfs4", "ok", "ok"), ("tmpfs", "warning", "warning"), ("ext4", "ok", "warning")],
)
def test_results_belong_where_they_stay_and_nodes_see_them(
    tmp_path, monkeypatch, kind, status, of_a_site
):
    mounted(monkeypatch, tmp_path, kind)
    assert machine.results_storage(subject(tmp_path)).level == status
    assert machine.results_storage(subject(tmp_path, site=site())).level == of_a_site
    assert [path.name for path in tmp_path.iterdir()] == []


# The image


SQUASHED = bytes(32) + b"SIF_MAGIC\0" + bytes(100) + b"squashed"  # for no machine by name


def in_image(tmp_path, slurm=SILENT, **changes):
    file = tmp_path / "lockstep.sif"
    file.write_bytes(SQUASHED)
    return subject(tmp_path, slurm, site=site(container={"image": str(file)}, **changes)), file


TEXTS = ("key", "definition", "definition_sha256", "bootstrap", "base", "apptainer", "built_at")
NONES = ("base_digest", "git_commit", "git_dirty")
REST = {"size_bytes": 1, "build_args": {}, "options": [], "build_s": 1.0, "is_signed": False}
BUILT = dict.fromkeys(TEXTS, "x") | dict.fromkeys(NONES) | REST


def test_an_image_is_compared_with_its_record(tmp_path):
    given, file = in_image(tmp_path)
    assert "no build record" in cluster_checks.image(given).text
    record = tmp_path / "lockstep.sif.json"
    record.write_text("[]")
    assert cluster_checks.image(given).level == "warning"
    write_record(file, Record(sha256=sha256(SQUASHED).hexdigest(), **BUILT))
    assert cluster_checks.image(given).text.endswith("and its build record has the same SHA-256")
    file.write_bytes(SQUASHED.replace(b"squ", b"sqv"))
    assert cluster_checks.image(given).level == "missing"
    file.write_bytes(b"an HTML page of an error")
    assert cluster_checks.image(given).text == f"{file} is not a SIF image"
    file.unlink()
    assert cluster_checks.image(given).level == "missing"


def test_an_image_is_for_this_machine(tmp_path, monkeypatch):
    given, file = in_image(tmp_path)
    file.write_bytes(SQUASHED[:45] + b"04" + SQUASHED[47:])
    monkeypatch.setattr(cluster_checks.inspection.platform, "machine", lambda: "aarch64")
    assert cluster_checks.image(given).level == "ok"
    monkeypatch.setattr(cluster_checks.inspection.platform, "machine", lambda: "x86_64")
    assert cluster_checks.image(given).level == "missing"


AMD = {"cuda": None, "rocm": "6.4"}


@pytest.mark.parametrize(("runtime", "probed", "status"), [
    ("cuda", {"gpus": 0}, "ok"), ("cuda", AMD, "missing"), ("cuda", {"nccl": None}, "missing"),
    ("rocm", AMD, "ok"), ("rocm", {}, "missing"),
])  # fmt: skip
def test_python_in_the_image_is_asked_what_it_can(tmp_path, stand_in, runtime, probed, status):
    given, file = in_image(tmp_path, cluster(), gpu_runtime=runtime)
    facts = json.dumps(PROBED | probed)
    stand_in("apptainer", f"echo \"$@\" >{tmp_path}/argv; echo a banner; echo '{facts}'")
    found = cluster_checks.image_runs(given)
    assert (found.level, "torch 2.9.0 with" in found.text) == (status, True)
    flag = {"cuda": "--nv", "rocm": "--rocm"}[runtime]
    argv = (tmp_path / "argv").read_text()
    assert argv.startswith(f"exec --cleanenv --no-eval {flag} --env PYTHONNOUSERSITE=1 ")
    assert f"{file} python3 -c" in argv


@pytest.mark.parametrize(("script", "says"), [
    ("printf '\\033[31mFATAL: \\033[0m  image is broken\\n\\033[0m' >&2; exit 255", "image is"),
    ("echo hello", "apptainer printed"),
])  # fmt: skip
def test_an_image_that_does_not_work_says_why_in_a_line(tmp_path, stand_in, script, says):
    given, _ = in_image(tmp_path)
    stand_in("apptainer", script)
    found = cluster_checks.image_runs(given)
    assert found.level == "missing"
    assert says in found.text
    assert "\x1b" not in found.text
    assert "\n" not in found.text


@pytest.mark.parametrize(
    ("said", "status"),
    [("apptainer version 1.4.5", "ok"), ("apptainer version 1.0.3-1", "warning"), ("?", "ok")],
)
def test_an_old_apptainer_is_a_warning(tmp_path, stand_in, said, status):
    stand_in("apptainer", f"echo '{said}'")
    assert cluster_checks.apptainer(subject(tmp_path)).level == status


def test_where_only_singularity_is_there_apptainer_is_missing(tmp_path, stand_in, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    stand_in("singularity", "exit 0")
    given, _ = in_image(tmp_path)
    assert cluster_checks.apptainer(given).level == "missing"
    on_login_node, _ = in_image(tmp_path, cluster())
    assert cluster_checks.apptainer(on_login_node).level == "warning"
    assert cluster_checks.apptainer(subject(tmp_path)).level == "not needed"


def test_an_apptainer_with_setuid_needs_neither_namespaces_nor_fuse(tmp_path, stand_in):
    stand_in("apptainer", "echo APPTAINER_SUID_INSTALL=1")
    for look in (cluster_checks.namespaces, cluster_checks.fuse):
        assert look(subject(tmp_path)).level == "not needed"


@pytest.mark.parametrize("switch", ["NAMESPACES", "CLONE", "APPARMOR"])
def test_closed_user_namespaces_are_found(tmp_path, stand_in, monkeypatch, switch):
    stand_in("apptainer", "echo APPTAINER_SUID_INSTALL=0")
    closed = tmp_path / "switch"
    closed.write_text("1\n" if switch == "APPARMOR" else "0\n")
    monkeypatch.setattr(cluster_checks, switch, closed)
    found = cluster_checks.namespaces(subject(tmp_path))
    assert found.level == "missing"
    assert hostname() in found.text
    assert found.action.startswith("ask the cluster's support to allow user namespaces")


@pytest.mark.parametrize(("mode", "status", "says"), [
    (0o666, "ok", "squashfuse_ll"),
    (0o660, "missing", "because its mode is -rw-rw----"),
    (None, "missing", "does not exist"),
])  # fmt: skip
def test_fuse_must_be_open_to_ordinary_users(tmp_path, stand_in, monkeypatch, mode, status, says):
    folder = tmp_path / "libexec" / "apptainer" / "bin"
    folder.mkdir(parents=True)
    (folder / "squashfuse_ll").touch(mode=0o755)
    stand_in("apptainer", f"echo APPTAINER_SUID_INSTALL=0; echo LIBEXECDIR={tmp_path}/libexec")
    device = tmp_path / "fuse"
    if mode is not None:
        device.touch()
        device.chmod(mode)
    monkeypatch.setattr(cluster_checks, "FUSE", device)
    found = cluster_checks.fuse(subject(tmp_path))
    assert (found.level, says in found.text) == (status, True), found


# Slurm


def test_slurm_that_is_absent_is_missing_only_to_a_site(tmp_path, stand_in, monkeypatch):
    assert cluster_checks.answers(subject(tmp_path, ABSENT)).level == "not needed"
    assert cluster_checks.answers(subject(tmp_path, ABSENT, site=site())).level == "missing"
    assert cluster_checks.answers(subject(tmp_path, SILENT)).level == "missing"
    stand_in("scontrol", "echo 'plugin auth/munge is not installed' >&2; exit 1")
    assert cluster_checks.answers(subject(tmp_path)).level == "missing"
    monkeypatch.setenv("PATH", "/nowhere")
    assert cluster_checks.answers(subject(tmp_path)).level == "not needed"


DOWN = Node(
    "n1", cluster().partitions[0].nodes[0].kind, frozenset(), frozenset({"gpu"}), "DOWN*+DRAIN",
    "no power [root@1700000000]",
)  # fmt: skip


OTHER = Node("n3", replace(DOWN.kind, gpu_type="h100"), frozenset(), frozenset({"gpu"}), "IDLE")


@pytest.mark.parametrize(("changes", "differs", "status"), [
    ({}, {}, "ok"), ({"partition": "gpux"}, {}, "missing"),
    ({"partitions": {"debug": {}}}, {}, "missing"), ({}, {"is_up": False}, "missing"),
    ({"gpus_per_node": 8}, {}, "missing"), ({"gpu_type": "h100"}, {}, "missing"),
    ({"cpus_per_node": 65}, {}, "missing"), ({"mem": "501G"}, {}, "missing"),
    ({"mem": "500G"}, {}, "ok"), ({"constraint": "nvlink"}, {}, "missing"),
    ({}, {"nodes": [DOWN]}, "warning"),
    ({}, {"nodes": [replace(DOWN, state="IDLE"), OTHER]}, "warning"),
    ({"gpu_type": "h100"}, {"nodes": [DOWN, OTHER]}, "ok"),
    ({"time": "01:00:01"}, {"max_time": "01:00:00"}, "missing"),
    ({"time": "23:59:59"}, {"max_time": "1-00:00:00"}, "ok"),
])  # fmt: skip
def test_the_site_is_compared_with_slurm(tmp_path, changes, differs, status):
    given = subject(tmp_path, cluster(**differs), site=site(**changes))
    look = cluster_checks.partition
    if "max_time" in differs:
        look = cluster_checks.time_limit
    assert look(given).level == status


@pytest.mark.parametrize(("changes", "differs", "status"), [
    ({}, {}, "ok"), ({"account": "other"}, {}, "missing"), ({"qos": "high"}, {}, "ok"),
    ({"account": "mine"}, {"accounts": ("theirs",)}, "missing"),
    ({"account": "theirs", "qos": "high"}, {}, "missing"),
    ({"qos": "high"}, {"qos": ("normal",)}, "missing"),
    ({}, {"keeps_accounts": False}, "not needed"),
])  # fmt: skip
def test_account_and_qos_must_be_the_user_s(tmp_path, monkeypatch, changes, differs, status):
    given = subject(tmp_path, cluster(**differs), site=site(**changes))
    usable = {"mine": "normal,high", "theirs": "normal"}
    monkeypatch.setattr(associations, "read", lambda cluster: own_accounts("mine", **usable))
    assert cluster_checks.account(given).level == status


def test_a_time_over_the_limit_of_the_qos_is_named(tmp_path, monkeypatch):
    own = associations.parse("me|mine|mine|||tiny||||", "tiny||00:30:00|gres/gpu=8|||2")
    monkeypatch.setattr(associations, "read", lambda cluster: own)
    strict = cluster(enforces_limits=True)
    long = cluster_checks.job_limits(subject(tmp_path, strict, site=site()))
    assert (long.level, "00:30:00" in long.action) == ("missing", True)
    short = cluster_checks.job_limits(subject(tmp_path, strict, site=site(time="00:30:00")))
    assert (short.level, len([short.text, *short.details])) == ("ok", 3)
    lax = cluster_checks.job_limits(subject(tmp_path, cluster(), site=site()))
    assert lax.level == "not needed"


def test_accounting_that_fails_is_a_warning(tmp_path, stand_in):
    for script, status in (("echo no >&2; exit 1", "warning"), ("exit 0", "ok")):
        stand_in("sacct", script)
        assert cluster_checks.accounting(subject(tmp_path, cluster())).level == status


def says(answer):
    return f"echo {cluster_checks.MARK} {answer}"


def test_a_node_says_its_names_and_interfaces():
    environ = {"SLURMD_NODENAME": "n7", "PATH": os.environ["PATH"]}
    printed = processes.output(["sh", "-c", cluster_checks.NODE_SAYS], 30, environ=environ)
    ((node, host, *found),) = cluster_checks.parse_nodes(printed)
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
    found = cluster_checks.nodes(given)
    assert found.level == "ok"
    assert found.details == ("n1, host n1.local: ib0, lo", "n2, host n2.local: ib0, lo")
    argv = (tmp_path / "argv").read_text()
    assert argv.startswith(
        "--nodes=2 --ntasks=2 --ntasks-per-node=1 --partition=gpu --account=mine --mem=480G "
        "--gpus-per-node=a100:1 --exclusive --licenses=disk:1 --time=00:01:00 "
    )


@pytest.mark.usefixtures("login_node")
def test_doctor_asks_the_cluster_that_the_site_names(tmp_path, stand_in):
    (tmp_path / "site.toml").write_text(f'cluster = "green"\n{SITE_FILE}')
    stand_in("scontrol", f"echo $SLURM_CLUSTERS >>{tmp_path}/asked; exit 1")
    lockstep("doctor --site site.toml --json", tmp_path, os.environ["PATH"])
    assert set((tmp_path / "asked").read_text().split()) == {"green"}


@pytest.mark.parametrize(("script", "says"), [
    (f"{says('n1 h1 ib0')}; {says('n2 h2 eth0')}", "the network interface ib0, which the"),
    (f"{says('n1 h1 ib0')}; {says('n1 h1 ib0')}", "only 1 of 2 nodes answered"),
    ("echo 'srun: error: Invalid account' >&2; exit 1", "srun: error: Invalid account"),
])  # fmt: skip
def test_nodes_that_do_not_answer_as_they_should_are_missing(tmp_path, stand_in, script, says):
    stand_in("srun", script)
    given = subject(tmp_path, cluster(), site=site(interface="ib0"), asks_nodes=True)
    found = cluster_checks.nodes(given)
    assert (found.level, found.text.startswith(says)) == ("missing", True)


@pytest.mark.parametrize(("names_down", "asked_for", "status"), [
    (("n1", "n2", "n3"), 0, "missing"), (("n1", "n2"), 1, "warning"), (("n1",), 2, "ok"),
])  # fmt: skip
def test_nodes_that_are_down_are_not_waited_for_but_named_with_the_reason(
    tmp_path, stand_in, names_down, asked_for, status
):
    answers = [says("n3 h3 ib0"), says("n2 h2 ib0")][:asked_for]
    stand_in("srun", "; ".join([f'echo "$@" >{tmp_path}/argv', *answers]))
    nodes = [replace(DOWN, name=f"n{i}") for i in (1, 2, 3)]
    nodes = [one if one.name in names_down else replace(one, state="IDLE") for one in nodes]
    # The last is not as the site says, and none that a job could have.
    given = subject(tmp_path, cluster(nodes=[*nodes, OTHER]), site=site(gpu_type="a100"),
                    asks_nodes=True)  # fmt: skip
    found = cluster_checks.nodes(given)
    assert found.level == status, found
    argv = tmp_path / "argv"
    assert argv.exists() is bool(asked_for)
    assert not asked_for or argv.read_text().startswith(f"--nodes={asked_for} ")
    line = f"{', '.join(names_down)}: DOWN*+DRAIN; reason: no power, by root, since 2023-11-1"
    assert any(one.startswith(line) for one in found.details) is (status != "ok")


def test_a_queue_that_is_too_long_is_left(tmp_path, stand_in, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster_checks, "QUEUED_S", 0.3)
    monkeypatch.setattr(cluster_checks, "NODES_TIMEOUT_S", 0.5)
    stand_in("srun", "trap 'touch cancelled; exit 1' TERM\nwhile :; do sleep 0.1; done")
    found = cluster_checks.nodes(subject(tmp_path, cluster(), asks_nodes=True))
    assert (found.level, (tmp_path / "cancelled").exists()) == ("missing", True)


# The command


@pytest.mark.slow
def test_this_machine_can_be_examined_by_a_program(tmp_path):
    ended = lockstep("doctor --json", tmp_path, "/nowhere")
    facts = json.loads(ended.stdout)
    assert ended.stderr == ""
    assert ended.returncode == facts["exit_code"] == 0
    assert facts["runs_here"]
    found = {row["check"]: row["status"] for row in facts["checks"]}
    assert (found["lockstep run"], found["Slurm"]) == ("ok", "not needed")
    assert list(tmp_path.iterdir()) == []
