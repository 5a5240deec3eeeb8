"""The pack: the texts that a compute-time programme requires, filled in from results.

`reports/pack/*.toml` has the headings of each programme, in its order and words.
"""
