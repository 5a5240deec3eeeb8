"""The rules of `lockstep check`: each is a function from `Evidence` to hits.

`work` looks at what was computed, `ladders` at the curve over world sizes, `launches` at versions,
hosts and repeats, `points` at the repeats of points, `recorded_facts` at what else is recorded and
differs, `cases` at single results,
`entries` at results as they are stored, `published` at imported tables, and `identical` at cases
that do the same work. `checker` has the table of them all.
"""
