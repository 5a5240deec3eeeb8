"""The training step: what it computes, also on two ranks, and which precisions it refuses."""

from dataclasses import replace

import pytest
import torch
from launched import printed_by_two
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from lockstep import workloads
from lockstep.core.sizes import OPTIMIZERS
from lockstep.measure.step import precision as precisions
from lockstep.measure.step import train_step
from lockstep.measure.step.train_step import StepConfig, TrainStep, parameter_checksum

CPU = torch.device("cpu")

# Run by two processes: what only several ranks can show, on one start of torch.
TWO_RANKS = """
import json, sys, warnings
import torch
from torch import distributed
from lockstep.measure.step import train_step; from lockstep import workloads
from lockstep.measure.step.train_step import StepConfig, TrainStep

warnings.simplefilter("error")
rank, rendezvous = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
cpu = torch.device("cpu")

def half_batch(spec, num_items, double=False):
    workload = workloads.make(spec)
    inputs, targets = workload.make_batch(num_items, cpu, torch.Generator().manual_seed(1))
    part = slice(rank * num_items // 2, (rank + 1) * num_items // 2)
    torch.manual_seed(0)
    model = workload.build()
    if double:
        model, inputs = model.double(), inputs.double()
    return workload, model, inputs[part], targets[part]

def train(config):
    workload, model, inputs, targets = half_batch("mlp:width=16,depth=2", 16, double=True)
    step = TrainStep(model, workload.loss, config, cpu)
    for _ in range(2):
        step.run(inputs, targets)
    return step, [parameter.tolist() for parameter in model.parameters()]

def buckets(cap):
    workload, model, inputs, targets = half_batch("resnet18", 4)
    step = TrainStep(model, workload.loss, StepConfig(bucket_cap_mb=cap), cpu)
    for _ in range(3):
        step.run(inputs, targets)
    return train_step.bucket_bytes(step.ddp), train_step.parameter_checksum(model)

step, weights = train(StepConfig(momentum=0.9, weight_decay=0.1))
caps = {str(cap): buckets(cap) for cap in (1, 50)}
print(json.dumps({
    "weights": weights,
    "checksum": train_step.parameter_checksum(step.ddp),
    "accumulated": train(StepConfig(accumulation=4))[1],
    "plain": train(StepConfig())[1],
    "buckets": {cap: sizes for cap, (sizes, _) in caps.items()},
    "resnet_checksums": [checksum for _, checksum in caps.values()],
}))
distributed.destroy_process_group()
"""


@pytest.fixture
def one_rank(tmp_path):
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return printed_by_two(TWO_RANKS, tmp_path_factory.mktemp("ranks"))


def take_steps(spec, num_items, config, num_steps):
    """Train a double-precision model on one batch; everything is seeded."""
    torch.manual_seed(0)
    workload = workloads.make(spec)
    inputs, targets = workload.make_batch(num_items, CPU, torch.Generator().manual_seed(1))
    step = TrainStep(workload.build().double(), workload.loss, config, CPU)
    for _ in range(num_steps):
        step.run(inputs.double(), targets)
    return step


def assert_same_weights(step, weights):
    for parameter, other in zip(step.ddp.parameters(), weights, strict=True):
        expected = torch.as_tensor(other, dtype=torch.float64)
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fused_optimizer_updates_like_the_usual_one(one_rank, name):
    usual = take_steps("mlp:width=8", 12, StepConfig(optimizer=name), 3)
    fused = take_steps("mlp:width=8", 12, StepConfig(optimizer=name, fused=True), 3)
    assert type(fused.optimizer).__name__.lower() == name
    assert fused.optimizer.defaults["fused"]
    assert not usual.optimizer.defaults["fused"]
    assert_same_weights(fused, [parameter.detach() for parameter in usual.ddp.parameters()])


def test_a_step_is_the_update_of_plain_sgd(one_rank):
    config = StepConfig(lr=0.1, momentum=0.5, weight_decay=0.01)
    step = take_steps("mlp:width=8", 12, config, 3)
    torch.manual_seed(0)
    workload = workloads.make("mlp:width=8")
    model = workload.build().double()
    inputs, targets = workload.make_batch(12, CPU, torch.Generator().manual_seed(1))
    velocity = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in range(3):
        loss = workload.loss(model(inputs.double()), targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            rows = zip(model.parameters(), velocity, gradients, strict=True)
            for parameter, speed, gradient in rows:
                speed.mul_(0.5).add_(gradient + 0.01 * parameter)
                parameter.sub_(0.1 * speed)
    assert_same_weights(step, [parameter.detach() for parameter in model.parameters()])


def test_bf16_computes_in_bf16_and_keeps_fp32_weights(one_rank):
    seen = []
    workload = workloads.make("mlp:width=8")

    def loss(outputs, targets):
        seen.append(outputs.dtype)
        return workload.loss(outputs, targets)

    step = TrainStep(workload.build(), loss, StepConfig(precision="bf16"), CPU)
    step.run(*workload.make_batch(4, CPU, None))
    assert seen == [torch.bfloat16]
    assert {parameter.dtype for parameter in step.ddp.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "fp8"}, "choose from fp32, tf32, bf16, fp16"),
        ({"accumulation": 0}, "at least 1, but is 0"),
        ({"bucket_cap_mb": 0.0}, "must be positive, but is 0.0"),
    ],
)
def test_settings_that_no_step_can_have_are_refused(one_rank, options, says):
    with pytest.raises(ValueError, match=says):
        StepConfig(**options)
    with pytest.raises(ValueError, match="local batch of 10 does not split into 4"):
        take_steps("mlp:width=8", 10, StepConfig(accumulation=4), 1)


def test_a_step_sets_the_precision_switches_and_a_case_restores_them(one_rank):
    precisions.set_precision_switches("tf32")
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
    take_steps("mlp:width=8", 4, StepConfig(precision="fp32"), 0)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    with pytest.raises(RuntimeError), precisions.restore_precision_switches():
        precisions.set_precision_switches("tf32")
        raise RuntimeError
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("precision", "capability", "refused"),
    [
        ("fp32", (7, 5), None),
        ("bf16", (7, 5), "capability 8.0 or newer; this rank runs on compute capability 7.5"),
        ("bf16", (8, 0), None),
        ("bf16", None, None),
        ("tf32", None, "capability 8.0 or newer; this rank runs on a CPU"),
        ("fp16", None, "fp16 needs a GPU"),
    ],
)
def test_what_the_hardware_lacks_is_refused_with_numbers(precision, capability, refused):
    reason = precisions.refusal(precision, capability)
    assert reason is None if refused is None else refused in str(reason)


def test_an_emulated_precision_is_measured_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(precisions, "_cpu_flags", lambda: frozenset({"avx2"}))
    assert "bf16" in precisions.find_unsupported(CPU, chosen="fp32")
    assert "bf16" not in precisions.find_unsupported(CPU, chosen="bf16")
    for known in ({"avx512f", "avx512_bf16"}, {"asimd", "bf16"}, set()):  # or nothing is known
        monkeypatch.setattr(precisions, "_cpu_flags", lambda known=known: frozenset(known))
        assert "bf16" not in precisions.find_unsupported(CPU, chosen="fp32")


def test_frozen_parameters_send_no_gradients():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert train_step.gradient_bytes(model) == 4 * 6


def test_the_checksum_sees_one_bit_of_a_parameter_and_no_buffer():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    before = parameter_checksum(model)
    model(torch.randn(4, 3))  # moves the running statistics, which are buffers
    assert parameter_checksum(model) == before
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nextafter(model[0].weight[0, 0], torch.tensor(9.0))
    assert parameter_checksum(model) != before


@pytest.mark.slow
def test_two_ranks_update_like_one_rank_on_the_whole_batch(one_rank, two_ranks):
    config = StepConfig(momentum=0.9, weight_decay=0.1)
    whole = take_steps("mlp:width=16,depth=2", 16, config, 2)
    plain = take_steps("mlp:width=16,depth=2", 16, StepConfig(), 2)
    for rank in two_ranks:
        assert_same_weights(whole, rank["weights"])
        for variant in ("plain", "accumulated"):
            assert_same_weights(plain, rank[variant])
    zero, other = two_ranks
    assert zero["checksum"] == other["checksum"]
    assert zero["resnet_checksums"] == other["resnet_checksums"]


@pytest.mark.slow
def test_a_bucket_of_50_mib_is_one_for_resnet18(two_ranks):
    for rank in two_ranks:
        assert rank["buckets"]["50"] == [44_726_568]
        assert len(rank["buckets"]["1"]) > 5
        assert sum(rank["buckets"]["1"]) == 44_726_568


def test_the_settings_of_ddp_are_those_in_force(one_rank):
    found = []
    for own in ({}, {"ddp": {"static_graph": True}, "comm_hook": bf16_compress_hook}):
        workload = replace(workloads.make("mlp:width=16,depth=1"), **own)
        cap = StepConfig(bucket_cap_mb=2 if own else None)
        step = TrainStep(workload.build(), workload.loss, cap, CPU, workload)
        found.append(train_step.buckets(step.ddp)["ddp_settings"])
    defaults = {
        "bucket_cap_mb": 25, "gradient_as_bucket_view": False, "static_graph": False,
        "find_unused_parameters": False, "comm_hook": None,
    }  # fmt: skip
    changed = {"bucket_cap_mb": 2, "static_graph": True, "comm_hook": "bf16_compress_hook"}
    assert found == [defaults, defaults | changed]
