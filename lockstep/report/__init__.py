"""From result files to the page: load -> compute -> page -> report_cli.

| room | holds |
|---|---|
| `load` | from files and imported tables to rows, and what may not be pooled |
| `compute` | from rows to finished points and series, with what the check says of them |
| `page` | the panels and figures of the page, and how they are rendered |
| `words` | headlines, cards, the next step, and the lines of a terminal |
| `pack`, `bundle`, `tracker` | what a programme asks for; one archive of all; MLflow and others |
| `check`, `gate` (its targets), `compare`, `predict` | what judges results |

`columns` has each column of `lockstep report --csv` and `--json`: its unit, its meaning and how its
value is made. Its `read` returns the same table, and those of launches, rounds and epochs, as
pandas data frames.

`--json` prints {"schema": 1, "points": [...], "left_out": [...]}: a record of each point, and
{case, world_size, launches} of each point some of whose launches may not be pooled. There `flags`
holds records {kind, ..., words}: the kind, its facts, and both in words.

In CSV semicolons separate the flags, the details are one JSON object, and text that a
spreadsheet would run as a formula has a single quote before it.
"""
