"""Results as one archive: the measurement, the page, and how to reproduce both."""
