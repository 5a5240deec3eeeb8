"""Targets that results must reach: `lockstep check --targets`."""
