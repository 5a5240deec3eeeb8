"""Predictions of unmeasured sizes, and the size to choose: `lockstep predict`."""
