"""The figures of a report as files, for a proposal, a paper or slides."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.page.figures import FORMATS, Format, saved
from lockstep.vocabulary.system.files import write_atomically


def write(page: Mapping[str, Any], folder: Path, formats: Sequence[Format] = FORMATS) -> list[Path]:
    """Write every figure of a page as files named by the figure's id.

    Returns:
        The files, in the order of the page. The same data give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for spec in specs(page):
        for kind in formats:
            path = folder / f"{spec['id']}.{kind}"
            write_atomically(path, saved(spec, page["source"], kind))
            made.append(path)
    return made


def specs(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the descriptions of a page's figures, in its order."""
    for section in page["sections"]:
        yield from section["figures"]
