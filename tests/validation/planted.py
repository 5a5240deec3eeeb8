"""Campaigns with one planted defect each, and clean ones of the same kinds that come close to it.

Measured campaigns are result trees with launches whose times vary by 1 to 3 %; cited ones are CSV
tables brought in as `lockstep import` does. All noise is drawn from a seed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from data.report_samples import document, provenance, record, write
from data.training_samples import trained

from lockstep.core import journal
from lockstep.core.record import KEY
from lockstep.report.load import imports

ROUND_SD = 0.005
LAUNCH_SD = 0.01
# Added to every seed: `tests/validation/figures_check.py` draws the noise anew.
SEED_OFFSET = 0
Change = Callable[[int, int], dict[str, Any]]


def always(**changes: Any) -> Change:
    """Change the record, or the facts, of every launch alike."""
    return lambda size, repeat: changes


def strong(size: int, step_s: float = 0.1, serial: float = 0.02) -> float:
    """Seconds of a step whose serial share stays."""
    return step_s * ((1 - serial) / size + serial)


def weak(size: int, step_s: float = 0.1, added: float = 0.02) -> float:
    """Seconds of a step that each doubling lengthens by a share."""
    return step_s * (1 + added * np.log2(size))


@dataclass
class Case:
    """A case, the seconds of its step at each size, and what its record has of its own."""

    name: str = "strong[64]"
    study: str = "strong"
    step_s: Callable[[int], float] = strong
    changes: Change = field(default_factory=always)


WEAK = Case("weak[64]", "weak", weak)


def ranks(size: int, threads: int = 1, cores: int = 64, device: str = "cuda:0") -> dict[str, Any]:
    """Return provenance whose ranks know their threads and the cores of their host."""
    known = provenance(size, device, threads_per_rank=threads)
    for rank in known["ranks"]:
        rank |= {"num_threads": threads, "cores": list(range(cores))}
    return known


def measured(
    root: Path,
    seed: int,
    cases: tuple[Case, ...] = (Case(),),
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    launches: Callable[[int], int] = lambda size: 3,
    facts: Change = always(),  # noqa: B008, what it returns changes nothing
    sd: float = LAUNCH_SD,
) -> Path:
    """Write a campaign of noisy launches."""
    draw = np.random.default_rng(seed + SEED_OFFSET)
    for size in sizes:
        for repeat in range(launches(size)):
            made = {case.name: _record(draw, case, size, repeat, sd) for case in cases}
            own = {"provenance": ranks(size), "repeat": repeat} | facts(size, repeat)
            spread(own, next(iter(made.values())).num_nodes)
            write(root, document(f"w{size}-r{repeat}", size, made, **own))
    return root


def spread(facts: dict[str, Any], num_nodes: int) -> None:
    """Place the ranks of a launch on so many hosts."""
    facts["num_nodes"] = num_nodes
    placed = facts["provenance"].get("ranks") or []
    for rank in placed:
        rank["host"] = f"node{1 + rank['rank'] * num_nodes // len(placed)}"


def _record(draw: np.random.Generator, case: Case, size: int, repeat: int, sd: float) -> Any:
    own = {"num_nodes": max(1, size // 8)} | case.changes(size, repeat)
    plain = record(case.study, size, **own)
    times = 4 * case.step_s(size) * np.exp(sd * draw.standard_normal())
    noise = np.exp(ROUND_SD * draw.standard_normal((size, len(plain.rank_round_s[0]))))
    return record(case.study, size, **({"rank_round_s": (times * noise).tolist()} | own))


def cited(root: Path, text: str, *more: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    paths = [root / f"table{number}.csv" for number in range(1 + len(more))]
    for path, content in zip(paths, (text, *more), strict=True):
        path.write_text(content)
    imports.write(imports.read(paths, 50_000), paths, root / "imported")
    return root / "imported"


def table(
    values: dict[int, float], metric: str = "throughput", unit: str = "images/s", **columns: Any
) -> str:
    """Return a table as CSV, a column's value the same in all lines or given by the size."""
    names = ["n", "value", "metric", "unit", *columns]
    lines = [",".join(names)]
    for size, value in values.items():
        own = [one(size) if callable(one) else one for one in columns.values()]
        lines.append(",".join(map(str, [size, value, metric, unit, *own])))
    return "\n".join(lines) + "\n"


def joined(*tables: str) -> str:
    head = tables[0].splitlines()[0]
    return "\n".join([head, *(line for text in tables for line in text.splitlines()[1:])]) + "\n"


# Planted: what a campaign of each is made by, the rule that must name it, and where it must point.


@dataclass
class Planted:
    rule: str
    where: str
    make: Callable[[Path], Path]
    # What else is true of such a set and cannot be left out.
    also: tuple[str, ...] = ()


def journal_left(root: Path) -> Path:
    """Leave of one whole launch its journal only."""
    measured(root, 61)
    path = root / "launches" / "w2-r1" / "result.json"
    content = json.loads(path.read_text())
    facts, entries = content.pop(KEY), content.pop("benchmarks")
    cases = [entry["name"] for entry in entries]
    lines = [{"kind": "launch", "schema": facts["schema"], "launch": facts, "document": content,
              "expected": cases}]  # fmt: skip
    lines += [{"kind": "case", "case": entry["name"], "benchmark": entry} for entry in entries]
    text = "".join(json.dumps(line | {"attempt": "a"}) + "\n" for line in lines)
    path.with_name("journal.jsonl").write_text(text)
    path.unlink()
    return root


def planned(root: Path, *names: str, key: str = "launches") -> Path:
    """Write a campaign file that plans launches beyond those that are there."""
    there = sorted(path.name for path in (root / "launches").iterdir())
    known, more = (
        [{"name": name, "world_size": int(name.split("-")[0][1:])} for name in some]
        for some in (there, names)
    )
    content = {"schema": 1, "name": "demo", "launches": known}
    content[key] = [*content.get(key, []), *more]
    (root / "campaign.json").write_text(json.dumps(content))
    return root


def buckets(*sizes: tuple[int, list[int]]) -> tuple[Case, ...]:
    return tuple(
        Case(
            f"bucket[{cap}]", "bucket", weak,
            always(factors={"workload": "resnet18", "bucket_cap_mb": cap}, workload="resnet18",
                   details={"bucket_bytes": real}),
        )
        for cap, real in sizes
    )  # fmt: skip


def precisions(*asked: str, **changes: Any) -> tuple[Case, ...]:
    return tuple(
        Case(
            f"precision[{name}]", "precision", weak,
            always(**({"factors": {"workload": "mlp", "precision": name}, "precision": name}
                      | (changes if name != "fp32" else {}))),
        )
        for name in asked
    )  # fmt: skip


def curve(rates: dict[int, float]) -> Callable[[int], float]:
    """Return the step of a weak case whose throughput is so many times that of one rank."""
    return lambda size: 0.1 * size / rates[size]


TIMES = {1: 100.0, 2: 52.0, 4: 27.0, 8: 14.5}
RATES = {1: 500.0, 2: 962.0, 4: 1852.0, 8: 3448.0}
STUDY = {"source": "one study", "model": "resnet", "scaling": "strong"}
FIXED = {"global_batch": lambda size: 32 * size, "local_batch": 32}


def crowded_training(root: Path) -> Path:
    """Write a training whose rank has more threads than cores."""
    facts = ranks(1, threads=2, cores=1, device="cpu")
    write(root, document("w1-r0", 1, {"test_train[seed=0]": trained(0)}, provenance=facts))
    return root


def trainings(root: Path, accuracies: dict[int, float], seeds: int = 3) -> Path:
    """Write trainings whose global batch grows with the ranks; seeds differ by half a point."""
    for size, accuracy in accuracies.items():
        for seed in range(seeds):
            own_s = 1 + 0.002 * seed + 0.001 * size
            case = replace(
                trained(seed, size, accuracies=(accuracy + 0.005 * seed,) * 3, global_batch=None,
                        local_batch=64),
                scaling="fixed-epochs", local_batch=64, global_batch=64 * size,
                samples_per_step=64 * size, rank_round_s=[[own_s, own_s + 0.003]] * size,
            )  # fmt: skip
            name = f"test_train[local_batch=64-seed={seed}]"
            facts = {"provenance": ranks(size), "repeat": seed}
            write(root, document(f"w{size}-r{seed}", size, {name: case}, **facts))
    return root


def equals(slower: float) -> tuple[Case, Case]:
    """Return two cases with the same batch and gradient buckets."""
    changes = always(details={"bucket_bytes": [4096]})
    slow = Case("weak[b]", "weak", lambda size: slower * weak(size), changes)
    return Case("weak[a]", "weak", weak, changes), slow


def losses(last: float) -> dict[str, Any]:
    return {"checks": {"loss_first": 6.95, "loss_last": last}}


def halved_beside_journal(root: Path) -> Path:
    """Halve the rounds of one launch in its result, and leave them in its journal."""
    journal_left(root)
    path = root / "launches" / "w2-r1" / "journal.jsonl"
    document = journal.rebuild(path)
    for entry in document["benchmarks"]:
        entry["stats"]["median"] /= 2
        block = entry["extra_info"][KEY]
        block["rank_round_s"] = [[s / 2 for s in one] for one in block["rank_round_s"]]
    path.with_name("result.json").write_text(json.dumps(document))
    return root


PLANTED: dict[str, Planted] = {
    "a loss that stays at 8": Planted(
        "loss-stays", "strong[64] at world size 8",
        lambda root: measured(root, 201, (Case(changes=lambda n, r: losses(
            6.94 if n == 8 else 4.2)),)),
    ),
    "GPUs that wait at 8": Planted(
        "idle-devices", "strong[64] at world size 8",
        lambda root: measured(root, 202, (Case(changes=lambda n, r: {"details": {"telemetry": {
            "gpu_utilisation": {"mean": [0.35 if n == 8 else 0.97 + r / 100]}}}}),)),
    ),
    "one size after the other": Planted(
        "not-in-turn", "world size 2, 4", lambda root: measured(
            root, 203, sizes=(1, 2, 4), facts=lambda n, r: {
                "started": f"2026-11-20T{10 + n:02}:{10 * r:02}:00+00:00"}),
    ),
    "a run that is no faster than its epochs say": Planted(
        "epoch-against-run", "table table0 at world size 4",
        lambda root: cited(root, joined(
            table({1: 60, 2: 32, 4: 28}, "epoch_time", "s"),
            table({1: 900, 2: 480, 4: 918}, "time", "s"))),
        also=("break",),
    ),
    "more nodes than ranks": Planted(
        "impossible-line", "table table0 at world size 2",
        lambda root: cited(root, table(RATES, nodes=lambda n: {1: 1, 2: 4, 4: 1, 8: 1}[n])),
    ),
    "a batch of more than the data": Planted(
        "impossible-line", "table table0 at world size 8",
        lambda root: cited(root, table(
            RATES, local_batch=512, global_batch=lambda n: 512 * n, dataset_size=2500)),
    ),
    "a weak ladder that learns less": Planted(
        "less-accurate", "table table0 at world size 8",
        lambda root: cited(root, table(
            RATES, scaling="weak", top1=lambda n: {1: 76.2, 2: 76.3, 4: 75.9, 8: 73.1}[n])),
    ),
    "trainings of a growing batch, less accurate in one seed": Planted(
        "accuracy-open", "at world size 4",
        lambda root: trainings(root, {1: 0.91, 2: 0.9, 4: 0.86}, seeds=1), also=("no-repeat",),
    ),
    "a row of ideal numbers": Planted(
        "not-measured", "table table0 throughput",
        lambda root: cited(root, table({1: 100, 2: 190, 4: 400}, note=lambda n: {
            4: "ideal linear scaling"}.get(n, "measured"))),
    ),
    "a result of half the times of its journal": Planted(
        "journal-contradicts", "launch w2-r1", halved_beside_journal),
    "a training of more threads than cores": Planted(
        "crowded-training", "host node1, launch w1-r0", crowded_training, also=("no-repeat",)
    ),
    "half of the launches at two threads a rank": Planted(
        "several-settings", "strong[64] at world size 1, 2, 4, 8",
        lambda root: measured(root, 131, launches=lambda size: 6, facts=lambda size, repeat: {
            "provenance": ranks(size, threads=1 + repeat % 2)}),
    ),
    "identical work that takes longer under another name": Planted(
        "identical-work", "weak[a] and weak[b] at world size 2",
        lambda root: measured(root, 90, equals(1.5)),
    ),
    "fixed epochs called strong": Planted(
        "fixed-epochs-as-strong", "table table0",
        lambda root: cited(root, table(TIMES, "time", "s", scaling="strong", **FIXED)),
    ),
    "fixed epochs": Planted(
        "fixed-epochs", "table table0",
        lambda root: cited(root, table(TIMES, "time", "s", scaling="fixed epochs", **FIXED)),
    ),
    "hours and throughput that part": Planted(
        "contradiction", "table rate at world size 2, table time",
        lambda root: cited(
            root,
            table({1: 12, 2: 6.5, 4: 3.5}, "time", "h", table_id="time", **STUDY),
            table({1: 40, 2: 80, 4: 160}, "throughput", "samples/s", table_id="rate", **STUDY)),
    ),
    "512 samples on 12 ranks": Planted(
        "truncated-batch", "at world size 12",
        lambda root: measured(root, 16, (Case("strong[512]", "strong", strong, lambda n, repeat: {
            "factors": {"workload": "mlp", "global_batch": 512}, "global_batch": 504,
            "local_batch": 504 // n, "samples_per_step": 504} if n == 12 else {
            "factors": {"workload": "mlp", "global_batch": 504}, "global_batch": 504,
            "local_batch": 504 // n, "samples_per_step": 504}),),
            sizes=(1, 2, 3, 4, 6, 12)),
    ),
    "short steps that wait": Planted(
        "small-batch", "weak[64] at world size 2, 4",
        lambda root: measured(root, 18, (Case("weak[64]", "weak", lambda n: {
            1: 0.00392, 2: 0.00449, 4: 0.00521}[n]),), sizes=(1, 2, 4)),
    ),
    "faster than each rank alone": Planted(
        "super-linear", "weak[64] at world size 4",
        lambda root: measured(root, 19, (Case("weak[64]", "weak", curve(
            {1: 1, 2: 1.97, 4: 4.6, 8: 8.8})),), launches=lambda size: 5),
    ),
    "nothing between 2 and 8": Planted(
        "ladder-gap", "strong[64] at world size 2, 8",
        lambda root: measured(root, 21, sizes=(1, 2, 8)),
    ),
    "no single rank": Planted(
        "no-baseline", "strong[64] at world size 2",
        lambda root: measured(root, 22, sizes=(2, 4, 8)),
    ),
    "throughput falls at 8": Planted(
        "break", "weak[64] at world size 8",
        lambda root: measured(root, 23, (Case("weak[64]", "weak", curve(
            {1: 1, 2: 1.95, 4: 3.8, 8: 3.3})),)),
    ),
    "the edge of the node": Planted(
        "break", "weak[64] at world size 8",
        lambda root: measured(root, 25, (Case("weak[64]", "weak", curve(
            {1: 1, 2: 1.98, 4: 3.92, 8: 5.6, 16: 11.0}), lambda n, repeat: {
                "num_nodes": max(1, n // 4)}),), sizes=(1, 2, 4, 8, 16)),
    ),
    "one point far below its neighbours": Planted(
        "outlier", "table table0 at world size 2",
        lambda root: cited(root, table({1: 329, 2: 520.8, 4: 1249}, scaling="weak")),
    ),
    "repeats that differ by half": Planted(
        "launches-apart", "table table0 at world size 2",
        lambda root: cited(root, joined(
            table({1: 100, 2: 190, 4: 360, 8: 700}, scaling="weak"),
            table({2: 130}, scaling="weak"))),
    ),
    "a result taken away beside its journal": Planted(
        "journal-only", "launch w2-r1", journal_left),
    "eight threads of one rank against one of eight": Planted(
        "unequal-ranks", "strong[64]",
        lambda root: measured(root, 31, facts=lambda n, r: {
            "provenance": ranks(n, threads=8 // n, cores=8, device="cpu")}),
    ),
    "one launch at 4": Planted(
        "no-repeat", "strong[64] at world size 4",
        lambda root: measured(root, 32, launches=lambda size: 1 if size == 4 else 2),
    ),
    "five launches at 8 and two elsewhere": Planted(
        "uneven-repeats", "strong[64] at world size 1, 8",
        lambda root: measured(root, 33, launches=lambda size: 5 if size == 8 else 2),
    ),
    "three rounds of two steps": Planted(
        "too-few-steps", "strong[64] at world size 1, 2, 4, 8",
        lambda root: measured(root, 35, (Case(changes=lambda n, r: {
            "steps_per_round": 2, "rank_round_s": [
                [0.2 * strong(n) * (1 + 0.01 * k**n + 0.003 * r) for k in range(3)]] * n}),)),
    ),
    "a launch that never ran": Planted(
        "missing-case", "world size 16, launch w16-r0",
        lambda root: planned(measured(root, 39), "w16-r0"),
    ),
    "a launch that fewer repeats dropped": Planted(
        "dropped-launch", "world size 16, launch w16-r0",
        lambda root: planned(measured(root, 39), "w16-r0", key="dropped"),
    ),
    "bucket caps of 50 and 100 MB": Planted(
        "duplicate-buckets", "resnet18 at world size 2, 4",
        lambda root: measured(root, 43, buckets(
            (25, [9_460_000, 26_490_000, 8_740_000]), (50, [44_700_000]), (100, [44_700_000])),
            sizes=(2, 4)),
    ),
    "a straggler": Planted(
        "flagged", "strong[64] at world size 8, launches w8-r0, w8-r1 and w8-r2",
        lambda root: measured(root, 46, (Case(changes=lambda n, r: {"flags": [
            {"kind": "straggler", "rank": 3, "host": "node1", "ratio": 1.3}] if n == 8 else []}),)),
    ),
    "a speed-up stated beside times that do not have it": Planted(
        "published-ratio", "table table0 at world size 4",
        lambda root: cited(root, table(TIMES, "time", "s", scaling="strong", speedup=lambda n: {
            1: 1, 2: 1.92, 4: 3.99, 8: 6.9}[n])),
    ),
    "a line that stands there twice": Planted(
        "duplicate-line", "table table0 at world size 8",
        lambda root: cited(root, joined(table(RATES, scaling="weak"),
                                        table({8: RATES[8]}, scaling="weak"))),
    ),
}  # fmt: skip


# Clean: as near to each rule as it may come.


def others(root: Path, **about: list[dict[str, Any]]) -> Path:
    """Write two launches of someone else's benchmark, with what each says of itself."""
    root.mkdir(parents=True)
    for number, median in enumerate((0.2, 0.203)):
        stats = {"median": median, "mean": 0.21 + number / 1e3, "min": 0.19, "max": 0.25,
                 "stddev": 0.01, "rounds": 7}  # fmt: skip
        content: dict[str, Any] = {"benchmarks": [{"name": "test_sort", "stats": stats}]}
        content |= {name: each[number] for name, each in about.items()}
        (root / f"{number}.json").write_text(json.dumps(content))
    return root


def in_parts(root: Path) -> Path:
    """Write each launch as two parts of two cases each."""
    draw = np.random.default_rng(77 + SEED_OFFSET)
    for size in (1, 2, 4):
        for repeat in range(2):
            for part, case in enumerate((Case(), WEAK), start=1):
                made = {case.name: _record(draw, case, size, repeat, LAUNCH_SD)}
                facts = {"provenance": ranks(size), "repeat": repeat, "part": [part, 2]}
                write(root, document(f"w{size}-r{repeat}-p{part}", size, made, **facts))
    return root


LOADERS = tuple(
    Case(f"loader[{n}]", "loader", lambda size, n=n: 0.02 / (1 + n), always(
        scaling=None, precision=None, factors={"dataset": "memory", "num_workers": n}))
    for n in (0, 2, 4)
)  # fmt: skip
SETTINGS = tuple(
    Case(f"sensitivity[{rate}]", "sensitivity", lambda n, rate=rate: weak(n) * (1 + rate), always(
        factors={"workload": "mlp", "learning_rate": rate}))
    for rate in (0.1, 0.2)
)  # fmt: skip


def batch(size_of: int) -> Change:
    """Return a strong case's global batch over the ranks."""
    return lambda n, repeat: {
        "factors": {"workload": "mlp", "global_batch": size_of}, "global_batch": size_of,
        "local_batch": size_of // n, "samples_per_step": size_of,
    }  # fmt: skip


CLEAN: dict[str, Callable[[Path], Path]] = {
    "sizes in turn, settings and losses alike": lambda root: measured(
        root, 208, (Case(changes=lambda n, r: losses(4.2 + n / 1e3) | {"details": {
            "ddp_settings": {"comm_hook": None}, "basis": {"optimizer": "SGD"}}}),),
        facts=lambda n, r: {"started": f"2026-11-20T{10 + r:02}:{10 + n:02}:00+00:00"},
    ),
    "identical work, a fiftieth apart": lambda root: measured(root, 91, equals(1.02)),
    "a factor of two at most": lambda root: measured(
        root, 108, (Case(changes=batch(504)),), sizes=(1, 2, 3, 4, 6, 8, 12, 24)
    ),
    "noise of 3 % and five launches": lambda root: measured(
        root, 111, (WEAK,), launches=lambda size: 5, sd=0.03
    ),
    "trainings of a growing batch that learn as much": lambda root: trainings(
        root, {1: 0.91, 2: 0.912, 4: 0.908}
    ),
    "precisions that are what they say": lambda root: measured(
        root, 117, precisions("fp32", "bf16", checks={"precision": "bf16"})
    ),
    "every study": lambda root: measured(
        root, 119, (Case(), WEAK, *LOADERS, *SETTINGS, *precisions("fp32", "bf16")), sizes=(1, 2)
    ),
    "as many threads as cores": lambda root: measured(
        root, 122, facts=lambda n, r: {"provenance": ranks(n, threads=8, cores=8 * n)}
    ),
    "skipped for a reason": lambda root: measured(
        root, 125, facts=always(skipped=[{"case": "precision[fp16]", "reason": "needs a GPU"}])
    ),
    "nearly the peak": lambda root: measured(
        root, 127, (Case("weak[64]", "weak", weak, always(
            flop_per_sample=1.5e12, peak_flop_per_s=1e15)),)
    ),
    "short steps that do not wait": lambda root: measured(
        root, 129, (Case("weak[64]", "weak", lambda n: weak(n, 0.004)),)
    ),
    "parts of launches": in_parts,
    "a cited ladder of clean nodes and accuracies": lambda root: cited(
        root, table({1: 100, 2: 196, 4: 384, 8: 744, 16: 1420}, scaling="weak", local_batch=64,
                    global_batch=lambda n: 64 * n, nodes=lambda n: max(1, n // 8),
                    dataset_size=50_000, top1=lambda n: 76.2 - 0.01 * n),
    ),
    "a cited point 8 % below the line": lambda root: cited(
        root, table({1: 100, 2: 180, 4: 380, 8: 700}, scaling="weak")
    ),
    "cited tables of one study that agree": lambda root: cited(
        root,
        table(TIMES, "time", "s", samples=50_000, table_id="time", **STUDY),
        table({n: 1.03 * rate for n, rate in RATES.items()}, table_id="rate", **STUDY),
    ),
    "a speed-up and an efficiency that the times have": lambda root: cited(
        root, table(TIMES, "time", "s", scaling="strong", speedup=lambda n: {
            1: 1, 2: 1.92, 4: 3.7, 8: 6.9}[n], efficiency=lambda n: {
            1: 100, 2: 96, 4: 93, 8: 86}[n])
    ),
    "cited repeats a fifth apart": lambda root: cited(
        root, joined(table(RATES, scaling="strong"), table({4: 2220}, scaling="strong"))
    ),
    "strong scaling of a local batch that shrinks": lambda root: cited(
        root, table(TIMES, "time", "s", scaling="strong", local_batch=lambda n: 512 // n)
    ),
    "plain tables of which nobody says which belong together": lambda root: cited(
        root, table(TIMES, "time", "s"), table(RATES),
        table({1: 12, 2: 6.5, 4: 3.5, 8: 2}, "time", "h"),
    ),
}  # fmt: skip
