"""The models that are measured: sizes, costs, determinism, and how one's own is added."""

import sys

import pytest
import torch

from lockstep import workloads
from lockstep.workloads.costs import flop_per_item

CPU = torch.device("cpu")

OWN_WORKLOAD = """
import torch
from lockstep.workloads import Workload


def ridge(features: int = 3):
    def make_batch(num_items, device, generator):
        inputs = torch.randn(num_items, features, device=device, generator=generator)
        return inputs, inputs.sum(dim=1, keepdim=True)

    return Workload(
        name="ridge",
        build=lambda: torch.nn.Linear(features, 1),
        make_batch=make_batch,
        loss=torch.nn.functional.mse_loss,
        sample_unit="rows",
    )


def not_a_workload():
    return 3


def fails():
    raise RuntimeError("boom\\nand more")


def waits():
    raise KeyboardInterrupt


def judges(rows: int = 0):
    raise ValueError("rows must be above 0")


def needs(columns):
    return columns


number = 3
"""


@pytest.mark.parametrize(
    ("spec", "num_parameters"),
    [
        ("resnet18", 11_181_642),
        ("resnet18_cifar", 11_173_962),
        ("resnet50", 25_557_032),
        ("mnist_cnn", 1_199_882),
        ("mlp:width=64,depth=2", 2 * (64 * 64 + 64) + 64 * 10 + 10),
        ("gpt:size=124m", 124_439_808),
    ],
)
def test_models_have_their_published_number_of_parameters(spec, num_parameters):
    with torch.device("meta"):
        model = workloads.make(spec).build()
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_an_image_workload_knows_how_many_samples_an_epoch_has():
    known = [workloads.make(spec).epoch_samples for spec in ("mnist_cnn", "resnet18", "resnet50")]
    assert known == [60_000, 50_000, 1_281_167]
    assert workloads.make("resnet50:image=64").epoch_samples is None


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("resnet18", (2, 3, 32, 32)),
        ("resnet18:image=64", (2, 3, 64, 64)),
        ("resnet18_cifar:width=4,image=16", (2, 3, 16, 16)),
        ("mnist_cnn", (2, 1, 28, 28)),
        ("mlp:width=8", (2, 8)),
        ("gpt:seq=5", (2, 5)),
        ("vit_b_16:image=32,classes=10", (2, 3, 32, 32)),
    ],
)
def test_a_batch_has_its_shape_and_goes_through_the_model(spec, shape):
    torch.manual_seed(0)
    workload = workloads.make(spec)
    inputs, targets = workload.make_batch(2, CPU, torch.Generator().manual_seed(0))
    assert tuple(inputs.shape) == shape
    assert len(targets) == 2
    assert workload.name == spec
    assert torch.isfinite(workload.loss(workload.build()(inputs), targets))


@pytest.mark.parametrize("spec", [*sorted(workloads.TABLE), "mobilenet_v3_small:image=32"])
def test_a_seed_fixes_weights_and_batch(spec):
    def first_weights_and_batch():
        torch.manual_seed(7)
        workload = workloads.make(spec)
        inputs, targets = workload.make_batch(2, CPU, torch.Generator().manual_seed(3))
        named = inputs.values() if isinstance(inputs, dict) else [inputs]
        return [*workload.build().parameters(), *named, targets]

    for tensor, other in zip(first_weights_and_batch(), first_weights_and_batch(), strict=True):
        assert torch.equal(tensor, other)


def padded_tokens(spec, rank):
    """Return the tokens of the longest text in each step of a rank, to which all are padded."""
    generator = torch.Generator().manual_seed(rank)
    inputs, _ = workloads.make(spec).make_batch(16, CPU, generator)
    return inputs["lengths"].max(0).values.float()


def test_bucketing_by_length_takes_the_imbalance_of_padding_away():
    shares = []
    for spec in ("sequences", "sequences:bucketed=1"):
        ranks = torch.stack([padded_tokens(spec, rank) for rank in range(2)])
        longest = ranks.max(0).values
        shares.append(float((longest - ranks.mean(0)).sum() / longest.sum()))
    mixed, bucketed = shares
    assert mixed > 0.08
    assert bucketed < mixed / 2


def test_language_models_do_not_see_the_future():
    torch.manual_seed(0)
    model = workloads.make("gpt").build()
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_flop_are_those_counted_by_hand_and_published():
    width, depth, classes = 32, 3, 10
    forward = 2 * (depth * width * width + width * classes)
    # Backward costs each layer two such products, but the first has no input gradient.
    expected = 3 * forward - 2 * width * width
    assert flop_per_item(workloads.make(f"mlp:width={width},depth={depth}")) == expected
    layers, tokens, width, vocabulary = 2, 16, 64, 256
    dense = 2 * tokens * 12 * width**2
    attention = 2 * 2 * tokens**2 * width
    logits = 2 * tokens * width * vocabulary
    expected = 3 * (layers * (dense + attention) + logits)
    assert flop_per_item(workloads.make(f"gpt:seq={tokens}")) == expected
    for spec, gigaflop in (("resnet18", 0.2173), ("resnet18_cifar", 3.3290)):
        assert round(flop_per_item(workloads.make(spec)) / 1e9, 4) == gigaflop


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "ownmodels.py").write_text(OWN_WORKLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ownmodels", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("resnet19", "resnet18"),
        ("vit_b_61", "vit_b_16"),
        ("xyzzy", "gpt, mlp"),
        ("mlp:width=", "width="),
        ("mlp:wide=3", "width, depth"),
        ("mlp:width=wide", "whole number"),
        ("mlp:width=0", "width of 1 or more"),
        ("mlp:width=99999999999999999999999", "more than the maximum of 1000000"),
        ("gpt:size=1t", "toy, small, 124m"),
        ("no.such.module:thing", "No module named 'no'"),
        ("lockstep.workloads.mlp:nothing", "no attribute 'nothing'"),
        ("ownmodels:not_a_workload", "made a int"),
        ("ownmodels:number", "of type int"),
        ("ownmodels:fails", "raised RuntimeError: boom;"),
        ("ownmodels:needs", "raised TypeError: .*'columns';"),
        ("ownmodels:judges", "rows must be above 0$"),
        ("ownbroken:x", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_sentence(spec, names, own_module):
    (own_module / "ownbroken.py").write_text("def x(:")
    with pytest.raises(ValueError, match=names) as caught:
        workloads.make(spec)
    assert "\n" not in str(caught.value)


def test_a_users_workload_is_named_by_module_and_callable(own_module):
    workload = workloads.make("ownmodels:ridge:features=5")
    inputs, targets = workload.make_batch(4, CPU, None)
    assert workload.loss(workload.build()(inputs), targets).ndim == 0
    assert workload.sample_unit == "rows"
    # One dense layer on data: forward, and the weight's gradient.
    assert flop_per_item(workload) == 2 * (2 * 5)
    with pytest.raises(KeyboardInterrupt):
        workloads.make("ownmodels:waits")


def test_a_users_workload_is_found_by_its_entry_point(own_module):
    facts = own_module / "ownmodels-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: ownmodels\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[lockstep.workloads]\nridge = ownmodels:ridge\n")
    assert workloads.make("ridge:features=2").build().in_features == 2
