"""A training loop of the user's own: measured where it runs, and left as it was."""
