"""A campaign on this machine: `lockstep run` and `diagnose`, the ladder, and what is seen of it."""
