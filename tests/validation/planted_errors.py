"""Copies of a really measured campaign with one planted defect each: errors, and warnings.

Each is edited in place; the campaign is `fp32` of `measured.py`: strong, weak, bucket and
collective cases at world sizes 1 and 2, three launches each.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lockstep.core.flags import flag
from lockstep.core.record import KEY, case_name

Json = dict[str, Any]
STUDIES = ("strong", "weak", "bucket", "collective")


@dataclass(frozen=True)
class Plant:
    """A defect, the rule that must name it, and whose verdicts at two ranks it takes away."""

    rule: str
    edit: Callable[[Path], None]
    studies: tuple[str, ...] = ("strong",)


def copied(campaign: Path, root: Path) -> Path:
    """Copy a campaign without its journals, which would stand in for an edited result."""
    shutil.copytree(campaign, root, ignore=shutil.ignore_patterns("journal.jsonl", "log.txt"))
    return root


def result(root: Path, size: int, repeat: int = 1) -> Path:
    return root / "launches" / f"w{size}-r{repeat}" / "result.json"


def _cases(document: Json, study: str) -> list[Json]:
    return [one for one in document["benchmarks"] if one["extra_info"][KEY]["study"] == study]


# What of a launch's result a defect is put into; of cases, those of one study.
PARTS: dict[str, Callable[[Json, str], list[Json]]] = {
    "launch": lambda document, study: [document],
    "facts": lambda document, study: [document[KEY]],
    "provenance": lambda document, study: [document[KEY]["provenance"]],
    "rank": lambda document, study: document[KEY]["provenance"]["ranks"],
    "case": _cases,
    "block": lambda document, study: [c["extra_info"][KEY] for c in _cases(document, study)],
    "checks": lambda document, study: [c["checks"] for c in PARTS["block"](document, study)],
    "stats": lambda document, study: [c["stats"] for c in _cases(document, study)],
}


def each(
    part: str,
    change: Callable[[Json], None],
    *sizes: int,
    study: str = "strong",
    repeats: tuple[int, ...] = (0, 1, 2),
) -> Callable[[Path], None]:
    """Change a part of the results of these world sizes and repeats."""

    def edit(root: Path) -> None:
        for size, repeat in product(sizes, repeats):
            path = result(root, size, repeat)
            document = json.loads(path.read_text())
            for holder in PARTS[part](document, study):
                change(holder)
            path.write_text(json.dumps(document))

    return edit


def times(name: str, factor: float) -> Callable[[Json], None]:
    def change(holder: Json) -> None:
        holder[name] *= factor

    return change


def scaled(factor: float, size: int, repeats: tuple[int, ...]) -> Callable[[Path], None]:
    """Multiply a strong case's rounds and all that follows from them."""

    def change(entry: Json) -> None:
        block = entry["extra_info"][KEY]
        block["rank_round_s"] = [[s * factor for s in rank] for rank in block["rank_round_s"]]
        block["elapsed_s"] *= factor
        block["mean_throughput_samples_per_s"] /= factor
        for name in ("min", "max", "mean", "median", "stddev"):
            entry["stats"][name] *= factor

    return each("case", change, size, repeats=repeats)


def peaked(fraction: float) -> Callable[[Json], None]:
    """State a peak of the device of which the case reaches this multiple."""

    def change(block: Json) -> None:
        block["flop_per_sample"] = 1e6
        rate = block["mean_throughput_samples_per_s"] * 1e6 / block["world_size"]
        block["peak_flop_per_s"] = rate / fraction

    return change


def copy_rounds(root: Path) -> None:
    """Give the second launch of two ranks the results of the first."""
    first, second = (json.loads(result(root, 2, repeat).read_text()) for repeat in (0, 1))
    result(root, 2, 1).write_text(json.dumps(second | {"benchmarks": first["benchmarks"]}))


def drop_case(document: Json) -> None:
    kept = [e for e in document["benchmarks"] if e["extra_info"][KEY]["study"] != "strong"]
    document["benchmarks"] = kept


def fail_case(document: Json) -> None:
    (gone,) = (e for e in document["benchmarks"] if e["extra_info"][KEY]["study"] == "strong")
    document["benchmarks"].remove(gone)
    case = f"bench/test_strong_scaling.py::{case_name(gone)}"
    document[KEY]["failed"] = [{"case": case, "reason": "rank 1 ran out of memory"}]


def remove_launch(root: Path) -> None:
    shutil.rmtree(result(root, 2).parent)


def cut_launch(root: Path) -> None:
    result(root, 2).write_text(result(root, 2).read_text()[:500])


def only_rank_0(entry: Json) -> None:
    """Keep of a case the rounds of rank 0, and what follows from them."""
    block = entry["extra_info"][KEY]
    block["rank_round_s"] = block["rank_round_s"][:1]
    settle(entry)


def give(**values: object) -> Callable[[Json], None]:
    def change(holder: Json) -> None:
        holder |= values

    return change


def copy_launch(root: Path) -> None:
    shutil.copytree(result(root, 2).parent, root / "launches" / "copy")


def claim_two_ranks(entry: Json) -> None:
    """Let a case say that it ran on two ranks, by name and by number."""
    entry["extra_info"][KEY]["world_size"] = 2
    entry["name"] = entry["name"].replace("world_size=1]", "world_size=2]")


def settle(entry: Json) -> None:
    """Make all that is stored of the rounds follow from them."""
    block = entry["extra_info"][KEY]
    rounds = [max(each) for each in zip(*block["rank_round_s"], strict=True)]
    block["samples"] = block["samples_per_step"] * block["steps_per_round"] * len(rounds)
    block["elapsed_s"] = sum(rounds)
    block["mean_throughput_samples_per_s"] = block["samples"] / sum(rounds)
    entry["stats"] |= {"median": median(rounds), "mean": fmean(rounds), "rounds": len(rounds)}


def cold(entry: Json) -> None:
    """Make the first round of a case four times as long as the longest of the others."""
    block = entry["extra_info"][KEY]
    longest = max(map(max, (rank[1:] for rank in block["rank_round_s"])))
    for rank in block["rank_round_s"]:
        rank[0] = 4 * longest
    settle(entry)


def twins(*factors: float) -> Callable[[Path], None]:
    """Let the strong case of two ranks take so many times as long as the weak one, its equal."""

    def longer(document: Json, factor: float) -> None:
        ((strong,), (weak,)) = (_cases(document, study) for study in ("strong", "weak"))
        rounds = weak["extra_info"][KEY]["rank_round_s"]
        strong["extra_info"][KEY]["rank_round_s"] = [[s * factor for s in rank] for rank in rounds]
        settle(strong)

    def edit(root: Path) -> None:
        for repeat, factor in enumerate(factors):
            each("launch", partial(longer, factor=factor), 2, repeats=(repeat,))(root)

    return edit


# What may mislead and is no error: the rule that must name it.
WARNED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "NCCL steered at two ranks only": ("circumstances", each("provenance",
        lambda known: known["environment"].update(NCCL_P2P_DISABLE="1"), 2)),
    "another day at two ranks": (
        "circumstances", each("facts", give(started="2020-01-01T12:00:00+00:00"), 2)),
    "all repeats of two ranks in one job": (
        "shared-job", each("provenance",
            lambda known: known["slurm"].update(SLURM_JOB_ID="17"), 2)),
    "a first round of four times": ("cold-start", each("case", cold, 2)),
}  # fmt: skip

PLANTED: dict[str, Plant] = {
    "128 threads on 64 cores": Plant("oversubscription", each("rank",
        give(num_threads=64, cores=list(range(64))), 2), STUDIES),
    "a utilisation of 26": Plant("above-peak", each("block", peaked(26), 1, 2)),
    "a stored throughput of eight times": Plant(
        "samples-time", each("block", times("mean_throughput_samples_per_s", 8), 1, 2)),
    "a stored throughput multiplied by the ranks": Plant(
        "doubled-world-size", each("block", times("mean_throughput_samples_per_s", 2), 2)),
    "parameters that differ": Plant(
        "wrong-result", each("checks", give(parameters_equal=False), 2)),
    "a loss that rises": Plant(
        "wrong-result", each("checks", give(loss_first=2.0, loss_last=7.5), 2, repeats=(0,))),
    "a copied launch": Plant("duplicate", copy_rounds, STUDIES),
    "a launch that was stopped": Plant(
        "unfinished-launch", each("facts", times("complete", 0), 2, repeats=(1,)), STUDIES),
    "a launch cut short on disk": Plant("unreadable-launch", cut_launch, STUDIES),
    "a case that failed": Plant("failed-case", each("launch", fail_case, 2, repeats=(1,))),
    "a case of which nothing is there": Plant(
        "missing-case", each("launch", drop_case, 2, repeats=(2,))),
    "a launch that was removed": Plant("missing-case", remove_launch, STUDIES),
    "samples that a batch does not hold": Plant("other-samples", each("block",
        give(flags=[flag("other-samples", samples=2, items=256).to_dict()]), 1, 2)),
    "bf16 asked for and fp32 computed": Plant("precision-fell-back", each("block",
        lambda block: block["factors"].update(precision="bf16"), 1, 2)),
    "a step that became shorter than its part": Plant(
        "alone-longer", scaled(0.02, 2, (0, 1, 2))),
    "milliseconds for seconds in one launch": Plant("unit", scaled(1000.0, 2, (1,))),
    "the rounds of rank 0 only": Plant("ranks-missing", each("case", only_rank_0, 2)),
    "a case that says it ran on another world size": Plant(
        "launch-disagrees", each("case", claim_two_ranks, 1, repeats=(0,))),
    "two ranks on one GPU": Plant(
        "shared-gpu", each("rank", give(device="cuda:0", gpu_uuid="GPU-1"), 2), STUDIES),
    # What may not be pooled with the rest.
    "another driver in one launch": Plant(
        "mixed-provenance", each("provenance", give(driver="560"), 2, repeats=(1,)), STUDIES),
    "bf16 in one launch": Plant(
        "mixed-cases", each("block", give(precision="bf16"), 2, repeats=(2,))),
    "another batch at two ranks": Plant("constant-work", each("block", give(global_batch=128), 2)),
}  # fmt: skip
