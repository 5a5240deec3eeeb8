"""Two sets of results, point by point: `lockstep compare`.

`comparison` matches the points and judges them, `circumstances` says what else differs.
"""
