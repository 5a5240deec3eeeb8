"""From result files to the page: load -> compute -> page -> report_cli.

| room | holds |
|---|---|
| `load` | `sources` finds and reads files, `contents` checks them, `rows` makes the tidy table, |
| | `layout` tells launches of one size apart, `conflicts` lists what may not be pooled; `reading` |
| | puts them together, `results` is what they return; `imports` reads other people's tables |
| `compute` | `scaling` and `point_table` the points, `statistics` the intervals, `rounds` and |
| | `diagnosis` the rounds, `attribution` what a step is lost to, `slow` who is slow |
| `page` | `content_of_page`, its `panels`, `figures`, `facts`, `twelve_rules` and `render` |
| `words` | tables and lines for a terminal |
| `check`, `compare`, `gate`, `predict` | the commands that judge results |

What `lockstep report --csv` and `--json` print for each point:

| column | meaning |
|---|---|
| origin | measured, cited or target: never mixed in one series |
| study, series, case | the question, the series' label, the benchmark's name |
| workload, scaling, precision, local_batch, global_batch | what was run |
| world_size, num_nodes, num_launches, rounds | how large, and how often |
| num_jobs, interval_over | Slurm jobs of the launches; launches, jobs, or launches of one job |
| ranks_per_node, layout | most ranks on a node; what tells it from the series' main layout |
| step_s, step_s_low, step_s_high | median over launches of a launch's median step, 95 % interval |
| min_step_s, max_step_s, mean_step_s, stddev_step_s | over all rounds of all launches, per step |
| time_s | time of a whole run, where a table gives times |
| throughput_samples_per_s, _low, _high | samples of all ranks per second, 95 % interval |
| sample_unit, samples_per_step | what a sample is, and how many one step takes |
| baseline_world_size | what the ratios of this row divide by |
| speedup, parallel_efficiency, each with _low, _high | ratios, never per cent |
| time_ratio | baseline step time / step time (weak and fixed-epochs) |
| device_hours, device_hours_per | world size times hours, for one run or for 1e6 samples |
| extra_device_hours, cost | device-hours over the baseline's less 1; times `--cost-per-gpu-hour` |
| num_far_out | rounds far outside their launch's quartiles, of 8 rounds or more; none is left out |
| mfu, peak_memory_bytes | model FLOP/s over peak; largest rank |
| joules_per_sample | mean power of all ranks' boards over the throughput, where it was sampled |
| flags | reasons for which the point is no proposal evidence |
| details | what a study or a table's further columns add: name -> distinct values over launches |

`--json` prints {"schema": 1, "points": [...], "left_out": [...]}: a record of each point, and
{case, world_size, launches} of each point some of whose launches may not be pooled. There `flags`
holds records {kind, ..., words}: the kind, its facts, and both in words.

In CSV semicolons separate the flags, the details are one JSON object, and text that a
spreadsheet would run as a formula has a single quote before it.
"""
