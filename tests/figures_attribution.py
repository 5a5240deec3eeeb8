"""What a report says of losses that were put into real launches, beside what is true.

    python tests/figures_attribution.py

measures six scenarios at one rank and at two, in three launches of each, three times over, and
prints what was put in, the cause that the report names, and whether that is right. A report that
says "not enough evidence" is not wrong; the right-hand column counts how often it names the cause.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import injected  # noqa: E402, this script's own folder

TIMES = 3
PUT_IN = {
    "nothing": "nothing",
    "straggler": "20 ms on rank 1",
    "in_turn": "20 ms on each rank in turn",
    "hook_on_all": "20 ms before the all-reduce, on both ranks",
    "hook_on_one": "20 ms before the all-reduce, on rank 1",
    "compute": "20 ms of compute on both ranks",
}


def main() -> None:
    """Print one line for each scenario and time, then how many are right."""
    print(f"{'put in':<42}  {'the report says':<22}  right")
    found = []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory() as folder:
            found += injected.judged(injected.measure(Path(folder)))
    for scenario, text in PUT_IN.items():
        for one in (one for one in found if one.scenario == scenario):
            print(f"{text:<42}  {one.said:<22}  {'yes' if one.is_right else 'NO'}")
    named = sum(one.said not in ("little lost", injected.NO_EVIDENCE) for one in found)
    print(f"{sum(one.is_right for one in found)} of {len(found)} right, {named} with a cause named")


if __name__ == "__main__":
    main()
