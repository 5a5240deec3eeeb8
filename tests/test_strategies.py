"""FSDP2, activation checkpointing and half batches: the same step, and its place in a report."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launched import printed_by_two

from lockstep.core import factors, sizes, studies
from lockstep.measure.step import step_cases
from lockstep.measure.step.train_step import StepConfig
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load.reading import gather

ROOT = Path(__file__).parents[1]
# Run by two processes: what each configuration trains to, and what it holds meanwhile.
TWO_RANKS = """
import json, sys
import torch
from torch import distributed
from lockstep import workloads
from lockstep.measure.step.train_step import StepConfig, TrainStep

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
cpu, gpt = torch.device("cpu"), workloads.make("gpt:size=toy,seq=16")

def train(**asked):
    config = StepConfig(lr=0.1, **asked)
    torch.manual_seed(0)
    step = TrainStep(gpt.build(), gpt.loss, config, cpu, gpt)
    inputs, targets = gpt.make_batch(8, cpu, torch.Generator().manual_seed(1 + rank))
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = [float(step.run(inputs, targets))]
    losses += [float(step.run(inputs, targets)) for _ in range(3)]
    held = sum(getattr(p, "_local_tensor", p).numel() for p in step.ddp.parameters())
    return {"losses": losses, "kept_bytes": sum(kept.values()), "held": held}

print(json.dumps({
    "ddp": train(),
    "fsdp": train(strategy="fsdp"),
    "fsdp, accumulated": train(strategy="fsdp", accumulation=4),
    "fsdp, synchronised": train(strategy="fsdp", accumulation=4, no_sync=False),
    "checkpointed": train(activation_checkpointing=True),
    "fsdp, checkpointed": train(strategy="fsdp", activation_checkpointing=True),
}))
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_every_strategy_trains_as_ddp_does_and_shards_and_checkpoints_hold_less(tmp_path):
    for own in printed_by_two(TWO_RANKS, tmp_path):
        usual = own["ddp"]["losses"]
        assert usual[-1] < usual[0]
        for name, found in own.items():
            assert found["losses"] == pytest.approx(usual, rel=1e-4), name
        assert own["fsdp"]["held"] == pytest.approx(own["ddp"]["held"] / 2, rel=0.01)
        assert own["checkpointed"]["kept_bytes"] < 0.6 * own["ddp"]["kept_bytes"]


def test_what_ddp_alone_has_is_no_study_of_fsdp():
    size = sizes.adapt(sizes.find("smoke"), factors=(("strategy", ("ddp", "fsdp")),))
    assert [row["strategy"] for row in studies.rows("weak", size)] == ["ddp", "fsdp"]
    assert "strategy" not in studies.rows("bucket", size)[0]
    with pytest.raises(ValueError, match="no study has all of the factors bucket_cap_mb, strategy"):
        factors.study_of(["bucket_cap_mb", "strategy"], [], size)


def test_want_of_memory_names_what_helps():
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
    with (
        pytest.raises(RuntimeError, match="memory") as found,
        step_cases.add_advice(32, StepConfig(accumulation=2), is_strong=False),
    ):
        raise error
    for option in ("--on-oom halve", "accumulation=4", "activation_checkpointing=true"):
        assert option in str(found.value)


@pytest.mark.parametrize(
    ("batch", "more_collectives", "said"),
    [(33, 0, "cannot be halved"), (32, 1, "at another point of the step than the other")],
)
def test_what_halving_cannot_mend_names_what_else_helps(batch, more_collectives, said):
    def exchange_all(name, own):
        return [own, ["", own[1] + more_collectives]]

    def attempt(local_batch):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    world = SimpleNamespace(control=SimpleNamespace(exchange_all=exchange_all))
    cpu = torch.device("cpu")
    harness = SimpleNamespace(world=world, number=1, rank_hosts=["a", "b"], device=cpu)
    with (
        pytest.raises(RuntimeError, match=f"rank 0 on a .*{said}") as found,
        step_cases.add_advice(batch, StepConfig(), is_strong=False),
    ):
        step_cases.fit(harness, batch, 1, attempt)
    for option in ("--local-batch", "accumulation=2", "activation_checkpointing=true"):
        assert option in str(found.value)


HUNGRY = """
import pytest, torch
from torch import distributed, nn
from lockstep.measure.step.step_cases import measure_step
from lockstep.workloads import Workload

def hungry():
    def make_batch(num_items, device, generator):
        if num_items > 8 and distributed.get_rank() == distributed.get_world_size() - 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        inputs = torch.randn(num_items, 8, device=device, generator=generator)
        return inputs, torch.zeros(num_items, dtype=torch.long, device=device)

    return Workload("hungry", lambda: nn.Linear(8, 2), make_batch, nn.functional.cross_entropy)

@pytest.mark.cases("weak")
def test_hungry(lockstep, workload, precision, local_batch):
    measure_step(lockstep, workload, local_batch, precision=precision)
"""


@pytest.mark.slow
def test_a_rank_without_memory_has_all_measure_half_the_batch(run_ranks, tmp_path):
    (tmp_path / "hungry.py").write_text(HUNGRY)
    arguments = [
        *("-m", "pytest", "-p", "lockstep.launch.hooks", "hungry.py", "--size=smoke"),
        *("--device=cpu", "--threads-per-rank=1", "--benchmark-json=out.json", "--on-oom=halve"),
        *("--workload=hungry:hungry", "--local-batch=32"),
    ]
    ended = run_ranks([arguments] * 2, tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stdout
    results = gather([tmp_path / "out.json"])
    (row,) = results.rows
    assert (row.local_batch, row.global_batch) == (8, 16)
    tried = [(failed["local_batch"], failed["rank"]) for failed in row.details["out_of_memory"]]
    assert tried == [(32, 1), (16, 1)]
    assert [flag.values["asked"] for flag in row.flags if flag.kind == "smaller-batch"] == [32]
    assert evaluate(results).series[0].points[0].blocked_by == ["constant-work"]


@pytest.mark.slow
def test_fsdp_is_measured_beside_ddp_and_what_it_cannot_do_is_left_out_by_name(run_ranks, tmp_path):
    arguments = [
        *("-m", "pytest", str(ROOT / "bench"), "-m", "weak", "--size=smoke", "--device=cpu"),
        *("--threads-per-rank=1", "--benchmark-json=out.json", "--set=strategy=ddp,fsdp"),
    ]
    ended = run_ranks([arguments] * 2, tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stdout
    found = {row.factors["strategy"]: row for row in gather([tmp_path / "out.json"]).rows}
    assert (bool(found["ddp"].rank_variant_s), bool(found["fsdp"].rank_variant_s)) == (True, False)
    assert found["fsdp"].peak_memory_bytes
    assert found["fsdp"].details["gradient_bytes"] == found["ddp"].details["gradient_bytes"]
