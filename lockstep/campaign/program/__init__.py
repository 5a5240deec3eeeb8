"""Any program as a study: how it is started, what is read of its output, and its record."""
