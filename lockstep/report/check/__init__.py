"""Is a set of runs a valid scaling study? The rules of `lockstep check`, by what they look at.

`work` looks at what was computed, `ladder` at the curve over world sizes, `launches` at versions,
hosts and repeats, `cases` at single results; `checker` has the table of them all. A rule is one
function from `Evidence` to hits and one row of that table.
"""
