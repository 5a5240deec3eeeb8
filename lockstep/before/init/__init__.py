"""`lockstep init`: writes a first site file and campaign file."""
