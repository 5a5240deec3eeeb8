"""Two sets of results, point by point: `lockstep compare`.

`pairing` matches the points, `judging` has the rule, `circumstances` finds what else differs,
`comparison` puts them together, and `compare_wording` has the text.
"""
