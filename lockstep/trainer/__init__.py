"""The trainer: whole epochs, for `lockstep train`, and the check that DDP learns, `verify`."""
