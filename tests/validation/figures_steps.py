"""What explain and the fixture tell of steps as repositories have them, at one rank and at two.

    python tests/validation/figures_steps.py [--out FOLDER] [--only explain,fixture] [--judge]

Both must tell the same kind, and shares that add up to the step (`lab_steps.py`). Takes about ten
minutes; what is measured is kept until the product changes, and with --judge only the figures of
that are printed.
"""

import argparse
import sys
from pathlib import Path

import lab_runs
import lab_steps
from lab_runs import Told

RANKS, SECONDS = (1, 2), 20.0
RUNS = [{"kind": kind, "seed": 0, "seconds": SECONDS} for kind in lab_steps.STEPS]
# Of a sum of shares.
ROUNDING = 1e-6
NOTHING = "no causes"


def measure(asked: argparse.Namespace) -> None:
    """Measure what is missing of what was asked for."""
    if "explain" in asked.only:
        for ranks in RANKS:
            lab_runs.explain("lab_steps", RUNS, asked.out / f"explain-{ranks}.jsonl", ranks)
    if "fixture" in asked.only:
        sizes = ",".join(map(str, RANKS))
        lab_runs.fixture("lab_steps", RUNS, asked.out / "fixture", sizes, repeats=1)


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
    """Print the figures of all that a folder keeps."""
    of_explain = explained(out)
    folder = out / "fixture" / "measured"
    of_fixture: dict[tuple[str, int], Told | None] = {}
    if folder.exists():
        for name, ranks, told in lab_runs.judged(folder):
            of_fixture[name, ranks] = told
    print(_row("step", "ranks", "explain", "fixture", "same", "explain's shares"))
    same = whole = 0
    for name, ranks in (keys := sorted(of_explain.keys() & of_fixture.keys(), key=_place)):
        both = of_explain[name, ranks], of_fixture[name, ranks]
        kinds = [told["kind"] if told else NOTHING for told in both]
        is_same = kinds[0] == kinds[1]
        problems = [text for told in both if told for text in _problems(told)]
        same, whole = same + is_same, whole + (not problems)
        print(_row(name.removesuffix(" 0"), str(ranks), *kinds, "yes" if is_same else "NO",
                   _shares(both[0])))  # fmt: skip
        print(_row("", "", "", "", "", _shares(both[1]), *problems))
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


def _row(*cells: str) -> str:
    name, ranks, explain, fixture, same, *rest = cells
    return f"{name:22}{ranks:>5}  {explain:14}{fixture:14}{same:5}{'; '.join(rest)}".rstrip()


def main() -> None:
    """Measure what was asked for, and print the figures of all that is kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=lab_runs.kept("lab-steps"))
    parser.add_argument("--only", default="explain,fixture")
    parser.add_argument("--judge", action="store_true", help="print the figures of what is kept")
    asked = parser.parse_args()
    asked.out = asked.out.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    if not asked.judge:
        measure(asked)
    show(asked.out)


if __name__ == "__main__":
    sys.exit(main())
