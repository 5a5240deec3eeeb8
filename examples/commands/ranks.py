"""A rank of a program as MPI's launchers start it, without MPI: its share of a series for pi.

srun, Open MPI and MPICH each tell a process its rank and their number in variables of their own.
"""

import argparse
import os

# (rank, number of ranks) by launcher
VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def place():
    """Return this process's rank, and the number of ranks; 0 of 1 if no launcher started it."""
    for rank, size in VARIABLES:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def main():
    """Print this rank's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terms", type=int, default=1_000_000)
    given = parser.parse_args()
    rank, size = place()
    share = range(rank, given.terms, size)
    part = sum((-1) ** (k & 1) / (2 * k + 1) for k in share)
    print(f"rank {rank} of {size}: {len(share)} terms, {4 * part:.6f} of pi")


if __name__ == "__main__":
    main()
