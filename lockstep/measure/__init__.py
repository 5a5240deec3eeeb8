"""How a case is measured: rounds, training steps, collectives and data loading."""
