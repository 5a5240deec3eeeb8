"""How often `lockstep check` names what was planted, and accuses clean campaigns: beside the goals.

Run it by hand, `python tests/validation/figures_check.py --draws 20`: every measured campaign is
drawn that many times, each with other noise. Acceptance is one draw, which `tests/test_check.py`
repeats; `tests/test_check_gates.py` puts defects into campaigns that were really measured.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import planted  # noqa: E402, since the paths above make it known
from planted import CLEAN, PLANTED  # noqa: E402

from lockstep.report.check.checker import Finding, check  # noqa: E402
from lockstep.report.load.reading import gather  # noqa: E402


def findings(make: Callable[[Path], Path]) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        return check(gather([make(Path(folder) / "set")]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draws", type=int, default=5, help="How often noise is drawn anew.")
    draws = options.parse_args().draws
    missed: Counter[str] = Counter()
    accused: Counter[tuple[str, str]] = Counter()
    silent = 0
    for draw in range(draws):
        planted.SEED_OFFSET = 1000 * draw
        for name, plant in PLANTED.items():
            found = findings(plant.make)
            named = [one for one in found if one.rule == plant.rule and plant.where in one.where]
            missed[name] += not named
        for name, make in CLEAN.items():
            rules = {one.rule for one in findings(make)}
            silent += not rules
            accused.update((name, rule) for rule in rules)
    share = 1 - missed.total() / (draws * len(PLANTED))
    print(f"{draws} draws of {len(PLANTED)} planted and {len(CLEAN)} clean campaigns")
    print(f"planted and named   {share:8.2%}   goal 100 % of the first draw")
    print(f"clean and silent    {silent / draws / len(CLEAN):8.2%}   goal 100 % of the first draw")
    for name, count in (+missed).most_common():
        print(f"  {count:3} missed    {name}")
    for (name, rule), count in accused.most_common():
        print(f"  {count:3} accused   {rule}: {name}")


if __name__ == "__main__":
    main()
