"""What the variants of a step, which say where its time goes, add to the time of a case."""

from collections.abc import Callable, Sequence

# One case of the weak study, whose rounds take seconds: 5 warm-up rounds and 12 of 5 steps.
CASE = (
    *("bench", "-m", "weak", "-q", "--size=smoke", "--device=cpu", "--rounds=12"),
    *("--warmup-rounds=5", "--steps-per-round=5", "--workload=mlp:width=512,depth=3"),
)


def ratios(
    wall_s: Callable[[Sequence[str]], float],
    torchrun: Callable[..., Sequence[str]],
    repeats: int,
) -> list[float]:
    """Return the time of a case at two ranks over that with --no-causes, the start taken off both.

    Args:
        wall_s: Returns how long a command takes.
        torchrun: Returns the command of so many ranks.
        repeats: Ratios to take.
    """
    found = []
    for _ in range(repeats):
        start_s, without_s, with_s = (
            wall_s(torchrun(2, "-m", "pytest", *CASE, *more))
            for more in (("--benchmark-disable",), ("--no-causes",), ())
        )
        found.append((with_s - start_s) / (without_s - start_s))
    return found
