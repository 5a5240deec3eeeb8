"""What takes the time of a step and the devices: causes, phases, shares, slow hosts and ranks."""
