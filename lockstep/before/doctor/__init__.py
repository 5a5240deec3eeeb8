"""`lockstep doctor`: is this machine, site and image fit to measure."""
