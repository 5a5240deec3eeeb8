"""Sets of results, point by point: `lockstep compare`."""
