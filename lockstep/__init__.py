"""Lockstep: how PyTorch data-parallel training scales, and why it stops."""
