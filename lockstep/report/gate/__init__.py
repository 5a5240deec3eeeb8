"""Targets that results must reach: `lockstep gate`."""
