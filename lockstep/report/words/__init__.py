"""How numbers and tables are written, on a page and in a terminal."""
