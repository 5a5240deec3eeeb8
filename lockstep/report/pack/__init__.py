"""The pack: what a programme that grants compute time asks for, filled in from results.

`objections` says what forbids it, `chosen` which series and job size it is about, `planned_runs`
and `node_hours` what the user plans and what that costs, `outcomes` what accounting knows.
`sections` puts them together, `pack_tables` and `pack_wording` into cells and sentences, `writing`
into files. What a programme asks for, in its own order and words, is in
`reports/pack/*.toml`.
"""
