"""Sizes that were not measured, and which measured size to take: `lockstep predict`."""
