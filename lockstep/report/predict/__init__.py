"""Sizes that were not measured, and which measured size to take: `lockstep predict`.

`known` is a series as predictions see it, `ladder_rules` continue its curve, `prediction` chooses
among them and draws the interval, `unpredictable` has the reasons not to; `models` finds peak and
breaks, `recommendation` applies a criterion of cost or efficiency to the sizes measured.
`predict_record` is what the command prints as JSON, `predict_wording` what it prints as text.
"""
