"""What of a section is seen at once: its main table and first figures; a reader opens the rest.

What is folded keeps a line that says what it finds, so that no verdict is hidden.
"""

from collections.abc import Iterator, Sequence

from lockstep.core.formats import counted
from lockstep.core.studies import LADDERS
from lockstep.report.page.panels.parts import Figure, Panel, Table

# A longer table is folded, but for that of a ladder, which is read as a whole.
MAX_ROWS = 15
MAX_TABLES, MAX_FIGURES = 1, 2
# Findings of one group that its line holds.
MAX_FINDINGS = 2
# Sections of records, which are looked up and not read.
FOLDED = ("twelve-rules", "provenance")
# Of their sentences the first is read.
READ_LATER = ("method",)


def fold(sections: Sequence[Panel]) -> None:
    """Part each section into `seen` and `folds`, and give each table a `key` that links lead to.

    A fold has a `summary`, a `finding`, whether it `prints`, and `texts`, `figures` and `tables`.
    """
    for section in sections:
        for number, one in enumerate(section["tables"], start=1):
            one["key"] = f"{section['id']}-table-{number}"
        seen = list(_seen(section))
        folded = [one for one in section["tables"] if one["folded"]]
        texts, figures = section["lead"], section["figures"]
        later = 1 if section["id"] in READ_LATER else len(texts)
        section["seen"] = {
            "lead": texts[:later], "figures": figures[:MAX_FIGURES], "tables": seen,
        }  # fmt: skip
        section["folds"] = [
            *_of_tables(folded), *_of_figures(figures[MAX_FIGURES:]), *_of_texts(texts[later:]),
        ]  # fmt: skip


def _seen(section: Panel) -> Iterator[Table]:
    """Yield the tables that are seen at once, and mark the others as folded."""
    shown = 0
    for one in section["tables"]:
        long = len(one["rows"]) > MAX_ROWS and section["id"] not in LADDERS
        late = shown >= MAX_TABLES or section["id"] in FOLDED
        one["folded"] = one.get("folded", False) or long or late
        if not one["folded"]:
            shown += 1
            yield one


def _of_figures(figures: Sequence[Figure]) -> Iterator[Panel]:
    if figures:
        titles = "; ".join(one["title"] for one in figures)
        yield _fold(f"{counted(len(figures), 'more figure')}", titles, figures=figures)


def _of_texts(texts: Sequence[str]) -> Iterator[Panel]:
    if texts:
        yield _fold("What each number means", "", prints=True, texts=texts)


def _of_tables(folded: Sequence[Table]) -> Iterator[Panel]:
    """Yield a fold of each table without a group, which has a verdict, then of each group."""
    groups: dict[str, list[Table]] = {}
    for one in folded:
        groups.setdefault(one.get("group") or one["key"], []).append(one)
    for tables in sorted(groups.values(), key=lambda some: bool(some[0].get("group"))):
        first, prints = tables[0], any(one.get("prints") for one in tables)
        rows = counted(sum(len(one["rows"]) for one in tables), "row")
        found = list(dict.fromkeys(one["finding"] for one in tables if one.get("finding")))
        said = "; ".join(found[:MAX_FINDINGS])
        if len(found) > MAX_FINDINGS:
            said += f"; and {len(found) - MAX_FINDINGS} more"
        summary = first.get("group") or first["caption"]
        if len(tables) > 1:
            summary += f" ({counted(len(tables), 'table')})"
        yield _fold(summary, said or rows, prints=prints, tables=tables)


def _fold(summary: str, finding: str, *, prints: bool = False, **held: object) -> Panel:
    empty: Panel = {"texts": [], "figures": [], "tables": []}
    return empty | {"summary": summary, "finding": finding, "prints": prints} | held
