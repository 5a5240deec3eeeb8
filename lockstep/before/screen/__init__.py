"""`lockstep screen`: find a slow node, device or link before a campaign does."""
