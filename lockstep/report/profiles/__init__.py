"""Profiles of other tools, read back: where the time of a step goes."""
