"""Questions about any job of Slurm, also one that Lockstep did not send."""
