"""What explain and the fixture tell of steps as repositories have them, at one rank and at two.

    python tests/validation/figures_steps.py

Both must tell the same kind, and shares that add up to the step. Takes about ten minutes; what is
measured is kept until the product changes.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lab_runs
import torch
import torch.distributed as dist
from lab_runs import LOCAL_BATCH, WIDTH, Made, Run, Told, net
from parts import line
from torch.nn.parallel import DistributedDataParallel

# What a device takes for a batch; a sleep, so that other work on the cores matters little.
DEVICE_S = 0.1
LATER_S, FETCH_S = 0.05, 0.07
MICRO_BATCHES = 8
TINY_OPERATIONS = 12_000


def make(run: Run, rank: int) -> Made:
    torch.manual_seed(0)
    return STEPS[run["kind"]](rank)


def _batch() -> torch.Tensor:
    return torch.randn(LOCAL_BATCH, WIDTH)


class Slow:
    """A loader whose batches each take a while to come."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(20):
            time.sleep(FETCH_S)
            yield _batch()


def _trained(
    model: Any,
    ddp: Any,
    *,
    device_s: float = DEVICE_S,
    batches: Any = None,
    read: Callable[[Any], torch.Tensor] = lambda batch: batch,
    more: Callable[[torch.Tensor], object] = lambda loss: None,
) -> Made:
    """Return the step that trains a model; `more` is done with the loss of each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    fixed = _batch()

    def step(batch: Any = None) -> None:
        inputs = fixed if batch is None else read(batch)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        time.sleep(device_s * len(inputs) / LOCAL_BATCH)
        loss.backward()
        more(loss)
        optimizer.step()

    def whole() -> None:
        step()

    return Made(whole if batches is None else step, ddp, batches, LOCAL_BATCH)


def _plain(**more: Any) -> Made:
    ddp = DistributedDataParallel(net())
    return _trained(ddp, ddp, **more)


def _tiny(_rank: int) -> Made:
    weights = torch.ones(4)

    def tiny(_loss: torch.Tensor) -> None:
        for _ in range(TINY_OPERATIONS):
            weights.add(1.0)

    return _plain(more=tiny, device_s=0.02, batches=[_batch() for _ in range(20)])


def _accumulated(syncs: bool) -> Made:
    ddp = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    fixed = _batch()

    def step() -> None:
        optimizer.zero_grad()
        for number in range(MICRO_BATCHES):
            is_last = number == MICRO_BATCHES - 1
            with contextlib.nullcontext() if syncs or is_last else ddp.no_sync():
                loss = ddp(fixed).square().mean() / MICRO_BATCHES
                time.sleep(DEVICE_S / MICRO_BATCHES)
                loss.backward()
        optimizer.step()

    return Made(step, ddp, None, MICRO_BATCHES * LOCAL_BATCH)


def _sharded(_rank: int) -> Made:
    from torch.distributed.fsdp import fully_shard

    return _trained(fully_shard(net()), None)


def _compiled(_rank: int) -> Made:
    ddp = DistributedDataParallel(net())
    return _trained(torch.compile(ddp), ddp, batches=[_batch() for _ in range(20)])


def _of_dict(_rank: int) -> Made:
    batches = [{"x": _batch(), "y": torch.zeros(LOCAL_BATCH)} for _ in range(20)]
    return _plain(batches=batches, read=lambda batch: batch["x"])


STEPS: Mapping[str, Callable[[int], Made]] = {
    "plain": lambda rank: _plain(),
    "slow rank": lambda rank: _plain(device_s=DEVICE_S + LATER_S * (rank == 1)),
    "slow data": lambda rank: _plain(batches=Slow()),
    "tiny operations": _tiny,
    "accumulation, no_sync": lambda rank: _accumulated(syncs=False),
    "accumulation": lambda rank: _accumulated(syncs=True),
    "scales, but slow": lambda rank: _plain(device_s=3 * DEVICE_S),
    "FSDP2": _sharded,
    "compiled": _compiled,
    "dict batch": _of_dict,
    "loss all-reduced": lambda rank: _plain(more=lambda loss: dist.all_reduce(loss.detach())),
}


RANKS, SECONDS = (1, 2), 20.0
RUNS = [{"kind": kind, "seed": 0, "seconds": SECONDS} for kind in STEPS]
# Of a sum of shares.
ROUNDING = 1e-6
NOTHING = "no causes"
WIDTHS = ("<22", ">5", "<14", "<14", "<5", "")


def measure(out: Path) -> None:
    for ranks in RANKS:
        lab_runs.explain("figures_steps", RUNS, out / f"explain-{ranks}.jsonl", ranks)
    sizes = ",".join(map(str, RANKS))
    lab_runs.fixture("figures_steps", RUNS, out / "fixture", sizes, repeats=1)


def explained(out: Path) -> dict[tuple[str, int], Told | None]:
    """Return what explain told of each step and number of ranks; None where it told no causes."""
    found: dict[tuple[str, int], Told | None] = {}
    for ranks in RANKS:
        for each in lab_runs.explained(out / f"explain-{ranks}.jsonl"):
            told = each.get("bound")
            has_causes = told and told["shares"]
            found[lab_runs.name_of(each["run"]), ranks] = told if has_causes else None
    return found


def show(out: Path) -> None:
    of_explain = explained(out)
    told_of = lab_runs.judged(out / "fixture" / "measured")
    of_fixture = {(name, ranks): told for name, ranks, told in told_of}
    print(line(["step", "ranks", "explain", "fixture", "same", "explain's shares"], WIDTHS))
    same = whole = 0
    for name, ranks in (keys := sorted(of_explain.keys() & of_fixture.keys(), key=_place)):
        both = of_explain[name, ranks], of_fixture[name, ranks]
        kinds = [told["kind"] if told else NOTHING for told in both]
        is_same = kinds[0] == kinds[1]
        problems = [text for told in both if told for text in _problems(told)]
        same, whole = same + is_same, whole + (not problems)
        cells = [name.removesuffix(" 0"), str(ranks), *kinds, "yes" if is_same else "NO"]
        print(line([*cells, _shares(both[0])], WIDTHS))
        print(line([""] * 5 + ["; ".join([_shares(both[1]), *problems])], WIDTHS))
    print(f"the same kind from both: {same} of {len(keys)} (goal all)")
    print("shares of both add up to 100 %, each is from 0 to 100 %, computing is above 0: "
          f"{whole} of {len(keys)} (goal all)")  # fmt: skip


def _place(key: tuple[str, int]) -> tuple[int, int]:
    return [lab_runs.name_of(run) for run in RUNS].index(key[0]), key[1]


def _problems(told: Told) -> list[str]:
    """Return what cannot be right of the shares."""
    shares = lab_runs.shares(told)
    total = sum(shares.values())
    found = [f"sum {total:.1%}"] if abs(total - 1) > ROUNDING else []
    found += [f"{name} {share:.1%}" for name, share in shares.items() if not 0 <= share <= 1]
    return found + (["computing 0"] if told["compute_s"] <= 0 else [])


def _shares(told: Told | None) -> str:
    if told is None:
        return NOTHING
    shares = lab_runs.shares(told)
    shown = ", ".join(f"{name} {100 * share:.1f}" for name, share in shares.items())
    return f"{shown}: sum {100 * sum(shares.values()):.1f} %"


if __name__ == "__main__":
    kept = lab_runs.kept("lab-steps")
    measure(kept)
    show(kept)
