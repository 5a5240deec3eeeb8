"""One module a panel of the page, and the parts that panels are made of."""
