"""What a report says of losses that were put into real launches, beside what is true.

    python tests/validation/figures_attribution.py

measures six scenarios at one rank and at two, in three launches of each, three times over, and
prints what was put in, the cause that the report names first, what it names beside it with its
share of the first, and whether that is right: the true cause comes first, and others have at most a
third of it, which a busy machine may really add. A report that says "not enough evidence" is not
wrong.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
    print(_line("put in", "the report says", "right", "beside it"))
    found = []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory() as folder:
            found += injected.judged(injected.measure(Path(folder)))
    for scenario, text in PUT_IN.items():
        for one in (one for one in found if one.scenario == scenario):
            beside = ", ".join(f"{cause} {share:.0%}" for cause, share in one.beside.items())
            print(_line(text, one.said, "yes" if one.is_right else "NO", beside))
    named = sum(one.said not in ("little lost", injected.NO_EVIDENCE) for one in found)
    others = sum(bool(one.beside) for one in found)
    right = sum(one.is_right for one in found)
    print(f"{right} of {len(found)} right, {named} with a cause named, {others} with one beside it")


def _line(put_in: str, said: str, right: str, beside: str) -> str:
    return f"{put_in:<42}  {said:<22}  {right:<5}  {beside}".rstrip()


if __name__ == "__main__":
    main()
