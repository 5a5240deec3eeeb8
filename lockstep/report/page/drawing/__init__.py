"""How each kind of figure is drawn: what `lockstep.report.page.figures` calls, and nobody else."""
