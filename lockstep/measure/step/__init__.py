"""The training step: how it is built, what its variants and phases say, how a case measures it."""
