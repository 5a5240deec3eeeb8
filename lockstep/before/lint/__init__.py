"""`lockstep lint`: errors in a user's own batch script, found by reading it."""
