"""Results as the runs of a tracker, whichever tracker it is."""
