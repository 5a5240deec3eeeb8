"""A plugin for tests that must know which case follows which: the order is the files'."""

from lockstep.core import sizes

sizes.shuffle = lambda items, name_of, seed: list(items)
