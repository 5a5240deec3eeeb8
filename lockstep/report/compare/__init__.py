"""Sets of results, point by point: `lockstep compare`.

`pairing` matches the points, `judging` has the rule, `circumstances` finds what else differs,
`comparison` puts them together, `outcome` says what they come to; `compare_wording` and
`outcome_wording` have the text, `side_by_side` the page.
"""
