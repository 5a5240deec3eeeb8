"""How text is read and written: numbers, durations, printable lines, a user's TOML files."""
