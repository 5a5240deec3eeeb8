"""One launch: what its ranks agree on, and what becomes of each case."""
