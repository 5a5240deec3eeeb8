"""The image: its definitions, `pytorch.def` on the NGC base and `cpu.def` on Debian."""
