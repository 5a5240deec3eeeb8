"""`lockstep lint`: finds errors in batch scripts and training scripts without running them."""
