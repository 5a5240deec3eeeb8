"""What a rank may take: the host's memory, what its control groups leave of it, and the peak."""

import psutil
import pytest
import torch

from lockstep import workloads
from lockstep.machine import memory
from lockstep.workloads.costs import batch_bytes, flop_per_item, model_bytes

CPU = torch.device("cpu")
# line of /proc/self/cgroup, files below the group's root, what is left, see cgroups(7)
GROUPS = [
    (
        "0::/job/step",
        {
            "job/memory.max": 900,
            "job/memory.current": 300,
            "job/memory.stat": "inactive_file 10\nactive_file 5\nfile 99",
            "job/step/memory.max": "max",
            "job/step/memory.current": 200,
            "job/step/memory.stat": "inactive_file 10\nactive_file 5",
        },
        [615],
    ),
    (
        "4:cpu,memory:/job",
        {
            "memory/memory.limit_in_bytes": 2000,
            "memory/memory.usage_in_bytes": 400,
            "memory/memory.stat": "active_file 7\ntotal_inactive_file 0\ntotal_active_file 8",
            "memory/job/memory.limit_in_bytes": 500,
            "memory/job/memory.usage_in_bytes": 400,
            "memory/job/memory.stat": "total_inactive_file 1\ntotal_active_file 2",
        },
        [103, 1608],
    ),
    ("0::/unseen/from/here", {}, []),
]


@pytest.mark.parametrize(("line", "files", "left"), GROUPS)
def test_each_group_above_limits_what_is_left(line, files, left, monkeypatch, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    (tmp_path / "own").write_text(f"{line}\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    assert memory.left_in_groups() == left
    on_host = psutil.virtual_memory().available
    assert memory.free_bytes(CPU, 2) == pytest.approx(min([on_host, *left]) // 2, rel=0.2)
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "none")  # a host without control groups
    assert memory.left_in_groups() == []


def test_what_fits_is_let_through_and_what_does_not_names_the_rank_with_the_least_room():
    room = memory.least_room([4 * 2**30, 3 * 2**30], ["n1", "n2"])
    needed = {"a model": 3 * 2**30}
    memory.refuse_beyond(room, needed, CPU)
    needs = r"^rank 1 on n2 needs 3\.0 GiB for a model and 1\.0 GiB for a batch, but .*"
    for device, left in ((CPU, "the rank's share .* is only"), (torch.device("cuda"), "")):
        with pytest.raises(ValueError, match=rf"{needs}{left} ?3\.0 GiB"):
            memory.refuse_beyond(room, needed | {"a batch": 2**30}, device)


def test_a_model_takes_its_parameters_four_times_with_momentum():
    workload = workloads.make("mlp:width=1000,depth=1")
    num_parameters = 1000 * 1000 + 1000 + 10 * 1000 + 10
    assert model_bytes(workload, num_moments=1) == 4 * 4 * num_parameters
    assert model_bytes(workload, num_moments=0) == 3 * 4 * num_parameters
    assert batch_bytes(workload, 5) == 5 * (4 * 1000 + 8)


def test_a_model_that_cannot_be_made_without_memory_is_not_judged():
    def refuse(*_):
        raise AttributeError("needs data")

    workload = workloads.Workload("own", refuse, refuse, torch.nn.functional.cross_entropy)
    assert (model_bytes(workload, num_moments=1), batch_bytes(workload, 5)) == (0, 0)
    assert flop_per_item(workload) is None
