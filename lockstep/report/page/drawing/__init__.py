"""How each kind of figure is drawn: what `lockstep.report.page.figures` calls, and nobody else."""

from matplotlib import artist

# Else Matplotlib writes the docstrings of its artists as it is imported, which takes as long as
# all else of that, and nobody reads them here.
artist.kwdoc = lambda _: ""  # type: ignore[assignment]  # the name of its argument
