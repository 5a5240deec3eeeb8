"""Record the campaign of `lockstep demo`: ranks on nodes that links of a known rate join.

As root, on a machine that does nothing else: `tests/validation/record_demo.py`, some ten minutes.
Each node is a network namespace of this machine (see namespaces.py); what it takes to send the
gradients follows from the links' rate, so anybody can make the result again.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from namespaces import linked  # noqa: E402

from lockstep.campaign.campaign import Campaign, common_options, own_options, plan  # noqa: E402
from lockstep.campaign.folder import Folder  # noqa: E402
from lockstep.campaign.launcher import local_environment  # noqa: E402
from lockstep.report.load import recorded  # noqa: E402

US_PER_ITEM = 8000
PATIENCE_S = 900
RATE_BIT_PER_S = 1e9  # of each link
CAMPAIGN = Campaign(
    schema=1,
    name="demo",
    studies=("strong", "weak", "bucket", "collective"),
    world_sizes=(1, 2, 4),
    repeats=5,
    size="laptop",
    device="cpu",
    threads_per_rank=1,
    workload=f"waiting_device:model:us_per_item={US_PER_ITEM}",
)


def measure(folder: Folder) -> None:
    folder.claim(CAMPAIGN, plan(CAMPAIGN))
    for launch in folder.missing(CAMPAIGN, plan(CAMPAIGN)):
        path = folder.launch(launch.name)
        path.mkdir(parents=True, exist_ok=True)
        options = [*common_options(CAMPAIGN), *own_options(launch)]
        command = [
            *("-m", "pytest", str(ROOT / "bench"), "-p", "lockstep.launch.hooks"),
            *("--resume", "--journal", str(folder.journal(launch.name)), *options),
        ]
        environ = local_environment(os.environ, 1)
        environ["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parent}"
        with linked(RATE_BIT_PER_S, launch.world_size) as joined:
            joined.run(command, path, PATIENCE_S, **environ)
        folder.write_result(launch.name)
        sys.stdout.write(f"{launch.name}: {folder.outcome(launch.name).measured} cases\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "results" / "recorded")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "reports" / "recorded" / "demo.json.gz"
    )
    asked = parser.parse_args()
    asked.to.mkdir(parents=True, exist_ok=True)
    measure(Folder(asked.to))
    facts = {
        "kind": "links",
        "num_nodes": max(CAMPAIGN.world_sizes),
        "rate_bit_per_s": RATE_BIT_PER_S,
        "ms_per_item": US_PER_ITEM / 1e3,
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_bytes(recorded.pack(asked.to, facts))
    size_kb = asked.output.stat().st_size / 1e3
    sys.stdout.write(f"{asked.output}: {size_kb:.0f} kB\nNext: lockstep demo\n")


if __name__ == "__main__":
    main()
