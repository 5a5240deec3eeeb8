"""Results as one archive: what is measured, how, the page, and how to make it again."""
