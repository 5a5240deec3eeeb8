"""The pack: what a programme that grants compute time asks for, filled in from results.

What a programme asks for, in its own order and words, is in `reports/pack/*.toml`.
"""
