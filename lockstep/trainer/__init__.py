"""The trainer: whole epochs, for `lockstep run train`, and the check that DDP learns, `verify`."""
