"""`lockstep screen`: finds slow nodes, devices and links before a campaign."""
