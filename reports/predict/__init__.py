"""Sizes nobody measured, and which measured one to take: `lockstep predict`.

`models` fits what a ladder's times follow and finds where they break, `prediction` chooses the
model and draws its interval, `recommendation` applies a rule to the sizes measured.
"""
