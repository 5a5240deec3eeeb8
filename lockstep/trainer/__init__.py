"""Training of whole epochs for `lockstep run train`, and its check `verify`."""
