"""From result files to the page: load -> compute -> page -> report_cli.

| room | holds |
|---|---|
| `load` | `sources` finds and reads files, `contents` checks them, `reading` makes the table, |
| | `layout` tells launches of one size apart, `conflicts` lists what may not be pooled; |
| | `results` is what is returned; `imports` reads other people's tables |
| `compute` | `scaling` the points, `evaluation` what the check says of them, `statistics` the |
| | intervals, `diagnosis` the rounds; `quantities` what a step is lost to, `slow` to whom, |
| | `alternatives` settings and devices side by side |
| `page` | `content_of_page`, its panels and `plots`, what `drawing` makes of them, `facts`, |
| | `twelve_rules` and `render` |
| `words` | headlines, cards, the next step, and the lines of a terminal |
| `pack`, `bundle`, `tracker` | what a programme asks for; one archive of all; MLflow and others |
| `check`, `compare`, `gate`, `predict` | the commands that judge results |

`columns` has each column of `lockstep report --csv` and `--json`: its unit, its meaning and how its
value is made; `frames` returns the same table, and those of launches and of rounds, as pandas data
frames.

`--json` prints {"schema": 1, "points": [...], "left_out": [...]}: a record of each point, and
{case, world_size, launches} of each point some of whose launches may not be pooled. There `flags`
holds records {kind, ..., words}: the kind, its facts, and both in words.

In CSV semicolons separate the flags, the details are one JSON object, and text that a
spreadsheet would run as a formula has a single quote before it.
"""
