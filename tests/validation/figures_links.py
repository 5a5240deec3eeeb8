"""Does the fit of a collective sweep find the rate of a link that is known?

Two nodes of this machine are joined by links that `tc` holds to a rate. Their ranks measure the
suite's own collectives, in several launches, and the fit of the report is put beside what was set.
As root: `tests/validation/figures_links.py`.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from namespaces import PAYLOAD_SHARE, linked  # noqa: E402

from lockstep.report.compute import links  # noqa: E402
from lockstep.report.compute.scaling import series_of  # noqa: E402
from lockstep.report.load.reading import load  # noqa: E402
from lockstep.report.page.collective_tables import sweeps  # noqa: E402

NUM_RANKS, NUM_LAUNCHES = 2, 3
RATES_BIT_PER_S = (250e6, 500e6, 1000e6)
OPTIONS = ("-q", "--device=cpu", "--threads-per-rank=1", "-m", "collective", "--size=laptop")
PATIENCE_S = 600
# How far a fitted rate may be from the one that was set.
TOLERANCE = 0.1
# By the interfaces' counters gloo's reduce-scatter sends as much as an all-reduce, twice what it
# needs, and its all-gather sends what it needs but lets the wire rest in between: shares of the
# wire of 0.4 and 0.6, which are gloo's own.
JUDGED = ("all_reduce", "broadcast", "reduce")


def judge(folder: Path, rate_bit_per_s: float) -> bool:
    """Print each collective's fit beside the rate, and return whether all judged are near it."""
    are_near = True
    for (name, _), points in sweeps(series_of(load([folder]).rows)).items():
        found = links.fit_points(name, points)
        if found is None:
            continue
        ratio = found.beta_gb_per_s * 8e9 / rate_bit_per_s
        low, high = (end * 8e9 / rate_bit_per_s for end in found.beta_interval or (0.0, 0.0))
        is_near = abs(ratio - 1) <= TOLERANCE
        are_near &= is_near or name not in JUDGED
        verdict = ("yes" if is_near else "NO") if name in JUDGED else "not judged"
        sys.stdout.write(
            f"{rate_bit_per_s / 1e6:5.0f} Mbit/s  {name:15} {ratio:.3f} of the rate "
            f"({low:.3f} to {high:.3f}), {ratio / PAYLOAD_SHARE:.3f} of its payload, alpha "
            f"{found.alpha_s * 1e6:.0f} us, error {found.error:.1%}, within 10 %: {verdict}\n"
        )
    return are_near


def main() -> None:
    """Measure at each rate, and end with 1 where a fit is far from it."""
    are_near = True
    with linked(RATES_BIT_PER_S[0], NUM_RANKS) as joined:
        for rate in RATES_BIT_PER_S:
            joined.set_rate(rate)
            with tempfile.TemporaryDirectory(prefix="lockstep-links-") as folder:
                for repeat in range(NUM_LAUNCHES):
                    result = f"--benchmark-json={folder}/w{NUM_RANKS}-r{repeat}.json"
                    command = ["-m", "pytest", "bench", *OPTIONS, result]
                    joined.run(command, Path(folder), PATIENCE_S)
                are_near &= judge(Path(folder), rate)
    sys.exit(0 if are_near else 1)


if __name__ == "__main__":
    main()
