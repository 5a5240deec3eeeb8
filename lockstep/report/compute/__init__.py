"""From rows to numbers: speed-up, efficiency, intervals and lost time."""
