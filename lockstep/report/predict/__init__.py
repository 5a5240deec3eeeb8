"""Sizes nobody measured, and which measured one to take: `lockstep predict`.

`known` is a series as predictions see it, `rules` continue its curve, `prediction` chooses among
them and draws the interval, `refusals` are the reasons not to; `models` finds peak and breaks, and
`recommendation` applies a rule of cost or efficiency to the sizes measured.
"""
