"""Is a set of runs a valid scaling study? The rules of `lockstep check`."""
