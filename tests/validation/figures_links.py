"""Does the fit of a collective sweep find the rate of a link that is known?

Two nodes of this machine are joined by links that `tc` holds to a rate. Their ranks measure the
suite's own collectives, in several launches, and the fit of the report is put beside what was set.
As root: `tests/validation/figures_links.py [--rates 500 1000] [--repeats 3]`.
"""

import argparse
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

NUM_RANKS = 2
OPTIONS = ("-q", "--device=cpu", "--threads-per-rank=1", "-m", "collective")
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[500.0, 1000.0], help="Mbit/s")
    parser.add_argument("--repeats", type=int, default=3, help="launches at each rate")
    parser.add_argument("--size", default="laptop", help="message sizes and rounds")
    asked = parser.parse_args()
    are_near = True
    with linked(asked.rates[0] * 1e6, NUM_RANKS) as joined:
        for rate in asked.rates:
            joined.set_rate(rate * 1e6)
            with tempfile.TemporaryDirectory(prefix="lockstep-links-") as folder:
                for repeat in range(asked.repeats):
                    result = f"--benchmark-json={folder}/w{NUM_RANKS}-r{repeat}.json"
                    command = ["-m", "pytest", "bench", *OPTIONS, f"--size={asked.size}", result]
                    joined.run(command, Path(folder), PATIENCE_S)
                are_near &= judge(Path(folder), rate * 1e6)
    sys.exit(0 if are_near else 1)


if __name__ == "__main__":
    main()
