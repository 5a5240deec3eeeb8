"""Is a set of runs a valid scaling study? The rules of `lockstep check`.

`evidence` is what the rules look at, `rules` holds them, and `checker` has the table of them all; a
new rule is one function and one row of that table. `wording` has the text of what was found.
"""
