"""How each kind of figure is drawn: what `lockstep.report.page.figures` calls, and nobody else."""

from matplotlib import artist

# Else Matplotlib writes the docstrings of its artists as it is imported, which takes as long as
# all else of that, and nobody reads them here. Others in this process may read their own.
_written = artist.kwdoc
artist.kwdoc = lambda _: ""  # type: ignore[assignment]  # the name of its argument
import matplotlib.backends.backend_svg  # noqa: E402
import matplotlib.figure  # noqa: E402, F401

artist.kwdoc = _written
