"""`lockstep doctor`: checks whether this machine, a site and its image are ready to measure."""
