"""Targets that results must reach: `lockstep gate`.

`targets` reads the file, `gates` and `references` judge each target, `verdicts` has the rule and
its records, `gate_wording` their text.
"""
