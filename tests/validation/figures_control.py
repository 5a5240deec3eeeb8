"""What the control plane costs: handshake, verdicts and journal of a case that is empty.

Every rank runs this file under torchrun.
"""

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

from lockstep.core import sizes
from lockstep.launch import options, session
from lockstep.launch.verdict import Ended

NUM_CASES = 100
WORLD_SIZE = 4
GOAL_MS = 10.0


def case_ms(journal: Path) -> list[float]:
    """Return this rank's milliseconds of each case, shape (num_cases,)."""
    settings = options.Settings(
        size_name="smoke",
        size=sizes.find("smoke"),
        device="cpu",
        timeout_s=60.0,
        budget_s=180.0,
        threads_per_rank=1,
        seed=0,
        order_seed=None,
        result_path=None,
        journal_path=journal,
        resume=False,
        skip_failed=False,
        after="",
        goal=None,
        part=None,
        stop_file=None,
        causes=True,
        data_root=Path(),
        labels={},
    )
    launch = session.join(settings)
    launch.prepare([])
    launch.open_journal([], {})
    names = [f"case {number}" for number in range(NUM_CASES + 1)]
    found = []
    for name, next_name in pairwise(names):
        start = time.perf_counter()
        launch.begin(name)
        launch.end_set_up(Ended())
        launch.end_call(Ended(), lambda n=name: ({"kind": "case", "case": n, "benchmark": {}}, ""))
        launch.leave_case(Ended(), next_name)
        found.append((time.perf_counter() - start) * 1e3)
    launch.close()
    return found


def main() -> None:
    """Go through the cases, and let rank 0 write its times to the file named."""
    path = Path(sys.argv[1])
    found = case_ms(path.with_suffix(".journal.jsonl"))
    if int(os.environ["RANK"]) == 0:
        path.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
