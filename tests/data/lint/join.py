"""Join as torch does by default, by variables that Slurm does not set."""

from torch import distributed

distributed.init_process_group("gloo")
