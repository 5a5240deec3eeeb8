"""From result files to the page: load -> compute -> page -> report_cli.

| room | holds |
|---|---|
| `load` | from files and imported tables to rows, and what may not be pooled |
| `compute` | from rows to finished points and series, with what the check says of them |
| `page` | the panels and figures of the page, and how they are rendered |
| `words` | headlines, cards, the next step, and the lines of a terminal |
| `pack`, `bundle`, `tracker` | texts for a proposal; one archive of all; MLflow and others |
| `check`, `gate` (its targets), `compare`, `predict` | what judges results |

`--json` prints {"schema": 1, "points": [...], "left_out": [...]}: a record of each point, and
{case, world_size, launches} of each point with launches that may not be pooled. A point's `flags`
are records {kind, ..., words}: the kind, its facts, and a sentence.

In CSV semicolons separate the flags, the details are one JSON object, and text that a
spreadsheet would run as a formula has a single quote before it.
"""
