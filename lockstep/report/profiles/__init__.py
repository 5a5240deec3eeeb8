"""Readers of other tools' profiles: where the time of a step goes."""
