"""Who takes part: the launchers' variables in, a rank's place out."""

import re

import pytest

from lockstep.ranks import process_group as world
from lockstep.ranks.placement import Placement, find_ranks_per_node, placement

SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "8"}
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
OPENMPI = {
    "LOCKSTEP_LAUNCHER": "openmpi",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {
    "LOCKSTEP_LAUNCHER": "pmi",
    "PMI_RANK": "1",
    "MPI_LOCALRANKID": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALNRANKS": "2",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, Placement(0, 0, 1, 1), id="single"),
        pytest.param(TORCHRUN, Placement(3, 1, 4, 2), id="torchrun"),
        pytest.param(SLURM, Placement(0, 0, 1, 1), id="slurm-not-asked-for"),
        pytest.param(
            SLURM | STEP | {"LOCKSTEP_LAUNCHER": "slurm"}, Placement(5, 1, 8, 8), id="slurm-step"
        ),
        pytest.param(SLURM | TORCHRUN, Placement(3, 1, 4, 2), id="torchrun-inside-slurm"),
        pytest.param(
            SLURM | {"LOCKSTEP_LAUNCHER": "slurm", "SLURM_NNODES": "2"},
            Placement(5, 1, 8, 4),
            id="slurm-only-ntasks",
        ),
        pytest.param(OPENMPI, Placement(2, 0, 4, 2), id="openmpi"),
        pytest.param(PMI, Placement(1, 1, 2, 2), id="pmi"),
    ],
)
def test_a_place_comes_from_the_launchers_variables(environ, expected):
    assert placement(environ) == expected


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            TORCHRUN | {"RANK": "a" * 99, "SLURM_NTASKS": "8"},
            r"^RANK='a{40}' .* \(variables that are set: RANK='a{40}', LOCAL_RANK='1', .*, "
            r"SLURM_NTASKS='8'\)$",
        ),
        (
            SLURM | {"LOCKSTEP_LAUNCHER": "slurm", "SLURM_PROCID": "9"},
            r"each other; start the ranks with srun \(",
        ),
        (TORCHRUN | {"RANK": "4"}, r"^RANK=4, LOCAL_RANK=1, WORLD_SIZE=4 and 2 .* contradict"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, r"^RANK=3, .* and 5 ranks per node contradict"),
        ({"RANK": "0"}, r"^WORLD_SIZE is not set, although .*; start the ranks with torchrun, or"),
        ({"LOCKSTEP_LAUNCHER": "slurm"}, r"^SLURM_NTASKS is not set, although "),
        ({"LOCKSTEP_LAUNCHER": "mpirun"}, r"^LOCKSTEP_LAUNCHER='mpirun' is not one of torchrun, "),
    ],
)
def test_wrong_variables_are_refused_in_one_sentence(environ, sentence):
    with pytest.raises(ValueError, match=sentence) as refusal:
        placement(environ)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("environ", "ranks_per_node", "threads"),
    [
        ({}, 5, 2),  # its share of the cores
        ({}, 24, 1),
        ({"LOCKSTEP_LAUNCHER": "slurm", "SLURM_CPUS_PER_TASK": "6"}, 4, 6),
        ({"OMP_NUM_THREADS": "3,2"}, 2, 3),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "a"}, 2, 6),  # which torchrun has set
        ({"OMP_NUM_THREADS": "many"}, 2, 6),
    ],
)
def test_the_threads_of_a_rank(monkeypatch, environ, ranks_per_node, threads):
    monkeypatch.setattr(world, "usable_cores", lambda: 12)
    assert world._threads(None, ranks_per_node, environ) == threads
    assert world._threads(7, ranks_per_node, environ) == 7


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, 64),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "1"}, 4),
        ({"SLURM_STEP_NUM_TASKS": "64", "SLURM_NTASKS_PER_NODE": "8"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
    ],
)
def test_a_script_s_ranks_per_node_are_those_that_any_launcher_says(environ, found):
    assert find_ranks_per_node(64, environ) == found


@pytest.fixture
def torch_threads():
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("torch_threads")
def test_a_single_process_joins_a_world_of_one():
    import torch
    from torch import distributed

    joined = world.join(device="cpu", threads_per_rank=1, environ={})
    try:
        assert (joined.rank, joined.world_size, joined.num_nodes) == (0, 1, 1)
        assert (joined.device, joined.backend) == (torch.device("cpu"), "gloo")
        assert torch.get_num_threads() == joined.threads_per_rank == 1
        assert distributed.get_world_size() == 1
    finally:
        world.leave()
    assert not distributed.is_initialized()


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize(
    ("environ", "options", "sentence"),
    [
        ({}, {"device": "tpu"}, r"^the device is 'tpu', but must be cpu or cuda$"),
        ({}, {"threads_per_rank": 0}, r"^threads_per_rank=0 must be 1 or more$"),
        (TORCHRUN, {}, r"^world size 4 needs the .* MASTER_ADDR and MASTER_PORT; start"),
        (
            TORCHRUN | {"MASTER_ADDR": "localhost", "MASTER_PORT": "99999"}, {},
            r"^MASTER_PORT='99999' is not a port from 1 to 65535; set MASTER_PORT to a free port$",
        ),
        (TORCHRUN | {"LOCKSTEP_STORE": "node1:9"}, {}, r"^LOCKSTEP_STORE is set without LOCKSTEP"),
        (TORCHRUN | {"LOCKSTEP_STORE": "node1"}, {}, r"^LOCKSTEP_STORE='node1' is not HOST:PORT; "),
    ],
)  # fmt: skip
def test_ranks_that_cannot_meet_are_refused_before_they_wait(environ, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        world.join(environ=environ, **{"device": "cpu"} | options)


@pytest.mark.usefixtures("torch_threads")
def test_an_interface_that_is_not_here_is_refused_and_recorded_for_the_job(tmp_path):
    record = tmp_path / "mend"
    environ = {"GLOO_SOCKET_IFNAME": "lo,nope0", "LOCKSTEP_MEND": str(record)}
    with pytest.raises(
        RuntimeError, match=r"nope0 is not a network interface of this host; choose from .*lo"
    ):
        world.join(device="cpu", environ=environ)
    assert record.read_text() == "GLOO_SOCKET_IFNAME\n"


# Each of the ranks asks for a GPU that is not there, or for ranks that nobody started.
JOIN = """
import sys
from lockstep.ranks import process_group as world
try:
    world.join(float(sys.argv[2]), device=sys.argv[1])
except RuntimeError as error:
    print(error)
"""


@pytest.fixture
def join(tmp_path):
    (tmp_path / "join.py").write_text(JOIN)
    return "join.py"


@pytest.mark.chaos
@pytest.mark.slow
def test_all_ranks_are_told_which_one_has_no_gpu(run_ranks, tmp_path, join):
    import torch

    visible = torch.cuda.device_count()
    ended = run_ranks([[join, "cuda", "60"]] * (visible + 2), tmp_path)
    sentences = {rank.stdout for rank in ended}
    assert len(sentences) == 1
    assert re.match(
        rf"rank {visible} on \S+: local rank {visible} needs GPU {visible}, but {visible} GPU.s. "
        "are visible on this host; start one rank per GPU, or pass --device cpu$",
        sentences.pop(),
    )


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named(run_ranks, tmp_path, join):
    ended = run_ranks([[join, "cpu", "4"], [join, "cpu", "4"], ["-c", "pass"]], tmp_path)
    assert [rank.stdout for rank in ended] == [
        "rank 2 of 3 did not join the process group within 4 s; check that the rank's process and "
        "node run\n"
    ] * 2 + [""]


@pytest.mark.chaos
@pytest.mark.slow
def test_a_wrong_address_is_named_with_the_way_there(run_ranks, tmp_path, join):
    (ended,) = run_ranks(
        [[join, "cpu", "2"]],
        tmp_path,
        RANK="1",
        WORLD_SIZE="2",
        LOCKSTEP_STORE="127.0.0.1:1",
        LOCKSTEP_STORE_PREFIX="x",
    )
    assert re.match(
        r"rank 1 on \S+ could not reach the ranks' store at 127\.0\.0\.1:1 within 2 s "
        r"\(through lo, 127\.0\.0\.1; .*\); check this address, and whether the nodes "
        "reach each other$",
        ended.stdout,
    )


ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize("launcher", [{}, {"LOCKSTEP_LAUNCHER": "slurm"}])
@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_NUM_TASKS": "1"}], ids=["batch", "interactive"])
def test_one_process_in_an_allocation_of_several_tasks_has_forgotten_srun(launcher, step):
    with pytest.raises(ValueError, match=r"^SLURM_NTASKS is 8, but this process runs alone; "):
        placement(ALLOCATION | launcher | step)
    assert placement(ALLOCATION | step | {"SLURM_NTASKS": "1"}) == Placement()
