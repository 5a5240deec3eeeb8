import json
import re
from pathlib import Path

import commands
import pytest

from lockstep.report.compute.alternatives import compare_devices
from lockstep.report.compute.scaling import series_of
from lockstep.report.load import imports
from lockstep.report.load.imports import write
from lockstep.report.load.reading import load
from lockstep.report.report_cli import import_table, report

DATA = Path(__file__).parent / "data"
JOBS = [DATA / f"epochs_{job}.csv" for job in (2644, 2648, 2649)]


def read(paths, dataset_size=50_000):
    return imports.read(paths, dataset_size)


def csv_file(path, text):
    path.write_text(text)
    return path


def table_of(tmp_path, text):
    return read([csv_file(tmp_path / "table.csv", text)])


def points_of(imported, tmp_path, baseline=None):
    write(imported, [], tmp_path / "out")
    return series_of(load([tmp_path / "out"]).rows, baseline)


@pytest.mark.parametrize(
    ("column", "values", "tables"),
    [("strategy", ("ddp", "fsdp"), 2), ("tuned", ("yes", ""), 2), ("host", ("n1", "n2"), 1)],
)  # fmt: skip
def test_lines_of_one_size_that_differ_in_a_factor_are_no_repeats(tmp_path, column, values, tables):
    lines = [f"{n},{100 * n},throughput,images/s,{value}" for n in (1, 2) for value in values]
    imported = table_of(tmp_path, "\n".join([f"n,value,metric,unit,{column}", *lines]))
    assert len(imported.tables) == tables
    assert {len(table["rows"]) for table in imported.tables.values()} == {4 // tables}
    assert len(points_of(imported, tmp_path)) == tables


def test_the_tutorial_that_ships_goes_from_a_cpu_to_four_gpus(tmp_path):
    path = imports.built_in()["cyclone"]
    cpu, gpus = points_of(read([path], 60_000), tmp_path)
    assert [p.time_s for p in (*cpu.points, *gpus.points)] == pytest.approx(
        [192.25, 73.48, 42.06, 25.61], abs=5e-3
    )
    (found,) = compare_devices([cpu, gpus])
    assert found.speedup == pytest.approx(2.616, abs=5e-4)
    assert [p.speedup for p in gpus.above] == pytest.approx([1.747, 2.869], abs=5e-4)
    assert [p.parallel_efficiency for p in gpus.above] == pytest.approx([0.873, 0.717], abs=5e-4)
    assert (cpu.base.device_hours, cpu.above) == (None, [])  # its cores are no GPUs
    said = " ".join(commands.run(report, tmp_path / "out").stdout.split())
    for shown in ("2.62x the rate of 10 CPU cores", "1.75 87.3 %", "2.87 71.7 %"):
        assert shown in said


def throughputs(imported):
    (table,) = imported.tables.values()
    return [round(row["throughput_samples_per_s"], 6) for row in table["rows"]]


LONG = "n,value,metric,unit"
# Units that are not understood, and what the message advises.
UNITS = [
    ("it/s", "global_batch"), ("tokens/s/8 GPUs", "samples/s/GPU"), ("ms/image", "samples/s"),
    ("samples/s/node", "nodes"), ("tokens/s/node/GPU", "all ranks"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "rest"), [
    (LONG, ",throughput,tokens/s/GPU"), (LONG, ",throughput,img/(s*GPU)"),
    (LONG, ",throughput,samples\u00b7s\u207b\u00b9\u00b7GPU\u207b\u00b9"),
    (f"{LONG},note", ",throughput,images/s,per GPU"), ("n,samples/s/node,nodes", ",{n}"),
    ("# all numbers per GPU, bf16\ngpus,samples/s", ""),
])  # fmt: skip
def test_a_rate_of_one_device_or_node_becomes_that_of_all_with_a_word_said(tmp_path, columns, rest):
    lines = (f"{n},{rate}{rest.format(n=n)}" for n, rate in ((4, 100), (8, 95)))
    imported = table_of(tmp_path, "\n".join([columns, *lines, ""]))
    assert throughputs(imported) == [400.0, 760.0]
    assert imported.tables["table"]["conversion"] in " ".join(imported.facts)
    assert imported.tables["table"]["unit"].count("/") == 1


@pytest.mark.parametrize("text", [
    "gpus,samples/s,note\n4,400,batch 32 per GPU\n8,760,4 GPUs per node; 6 loaders per GPU\n",
    "gpus,total samples/s,note\n4,400,n x the published rate per GPU\n8,760,summed over ranks\n",
    "Measured on 4 GPUs per node:\n\n| GPUs | samples/s |\n|---|--:|\n| 4 | 400 |\n| 8 | 760 |\n",
])  # fmt: skip
def test_what_else_is_per_device_changes_no_rate(tmp_path, text):
    imported = table_of(tmp_path, text)
    assert throughputs(imported) == [400.0, 760.0]
    assert not any("conversion" in table for table in imported.tables.values())


@pytest.mark.parametrize(("columns", "lines"), [
    ("gpus,value,metric,unit,local_batch", ("4,5,throughput,it/s,20", "8,4.75,throughput,it/s,20")),
    ("gpus,sec/it,global_batch", ("4,0.2,80", "8,0.2105263157894737,160")),
    ("gpus,value,metric,unit,batch_per_device",
     ("4,200,throughput,ms/batch,20", "8,210.5263157894737,step_time,ms/step,20")),
])  # fmt: skip
def test_a_rate_of_steps_is_one_of_the_samples_in_their_batch(tmp_path, columns, lines):
    imported = table_of(tmp_path, "\n".join([columns, *lines, ""]))
    rates = [row["throughput_samples_per_s"] for one in imported.tables.values()
             for row in one["rows"]]  # fmt: skip
    assert rates == pytest.approx([400.0, 760.0])


def test_tables_are_read_as_people_head_them(tmp_path):
    text = (
        "# Nodes,GPUs per node,batch/GPU,Img/sec,Step time (ms),Speed-up\n"
        "1,4,32,1000,128,1\n2,4,32,1950,131,1.95\n"
    )
    rate, step = points_of(table_of(tmp_path, text), tmp_path)
    assert [(p.world_size, p.rows[0].num_nodes, p.rows[0].local_batch) for p in rate.points] == [
        (4, 1, 32), (8, 2, 32),
    ]  # fmt: skip
    assert (rate.row.sample_unit, rate.row.scaling) == ("images", "weak")
    assert [p.step_s for p in step.points] == [0.128, 0.131]


@pytest.mark.parametrize(("text", "sizes", "rates"), [
    ("GPUs,images/s\n1,\"1,226.38\"\n8,\"2,470\"\n", [1, 8], [1226.38, 2470]),
    ("GPUs;images/s\n1;938\n4;2,470\n8;4,800\n", [1, 4, 8], [938, 2470, 4800]),
    ("GPUs,throughput\n1,352 img/s\n2,~690 img/s\n", [1, 2], [352, 690]),
    ("GPUs,images/s\n1,352 \u00b1 3\n2,690 +/- 8 (1.96x)\n", [1, 2], [352, 690]),
    ("gpus,tokens/s\n8,10.5k\n16,1.5e4\n", [8, 16], [10500, 15000]),
    ("config,img/s\n1x V100,345\n8x V100,2500\n", [1, 8], [345, 2500]),
    ("setup,img/s\n1 node x 8 GPUs,1000\n2 nodes x 8 GPUs,1900\n", [8, 16], [1000, 1900]),
    ("Ladder:\n\n| # GPUs | img/s |\n|:--|--:|\n| 1 | 1,352 |\n| 2 | 690.5 |\n", [1, 2],
     [1352, 690.5]),
])  # fmt: skip
def test_numbers_are_read_as_people_type_them(tmp_path, text, sizes, rates):
    imported = table_of(tmp_path, text)
    (table,) = imported.tables.values()
    assert imported.warnings == []
    assert [row["world_size"] for row in table["rows"]] == sizes
    assert [row["throughput_samples_per_s"] for row in table["rows"]] == pytest.approx(rates)


@pytest.mark.parametrize(("text", "metric", "seconds"), [
    ("gpus,training time\n8,3.5 days\n64,12 h\n", "time", [302_400, 43_200]),
    ("gpus,time\n1,1h30m\n2,48min\n", "time", [5400, 2880]),
    ("gpus,batch_time (ms),scaling\n8,29,weak\n", "step_time", [0.029]),
    ("ranks,time [h]\n1,1:30:00\n2,48:12:00\n", "time", [5400, 173_520]),
    ("ranks,epoch time (mm:ss)\n1,48:12\n2,09:05.5\n", "epoch_time", [2892, 545.5]),
])  # fmt: skip
def test_times_are_read_as_people_type_them(tmp_path, text, metric, seconds):
    (table,) = table_of(tmp_path, text).tables.values()
    assert table["metric"] == metric
    found = [row["step_s"] if metric == "step_time" else row["time_s"] for row in table["rows"]]
    assert found == pytest.approx(seconds)


def test_an_import_prints_how_it_reads_each_column(tmp_path):
    path = csv_file(tmp_path / "table.csv", "setup,Img/sec,acc\n2 nodes x 8 GPUs,10.5k,0.9\n")
    ended = commands.run(import_table, path, "--to", tmp_path / "out", "--dry-run")
    assert [re.split(r"\s{2,}", line) for line in ended.output.splitlines()[1:4]] == [
        ["setup", "n", "-", "2 nodes x 8 GPUs", "2 x 8"],
        ["Img/sec", "throughput", "Img/sec", "10.5k", "10500"],
        ["acc", "unknown column; lockstep report --csv prints it", "-", "0.9", "0.9"],
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "advice"), [
    ("gpus,throughput\n1,100\n", "'throughput .samples/s.'"), ("gpus,time\n1,9\n", "'time .s.'"),
    ("p50,images/s\n8,9\n", "column of this number n or gpus"),
    ("Nodes,time (s)\n1,100\n", "column 'Nodes' counts nodes, .* GPUs per node.*: gpus,Nodes,time"),
    ("gpus,ranks,images/s\n1,2,100\n", "both mean n"), ("gpus,time (h)\n1,12:30\n", "h:mm:ss"),
    ("gpus,nodes,gpus_per_node,img/s\n8,2,2,100\n", "2 nodes with 2"),
    ("GPUs;images/s\n1;1.352\n2;2.690\n", "may mean 1352 or 1.352; write 1352 or 1.352"),
    ("n,value,metric,unit\n0,10,time,s\n", r"no line .* can be imported: table\.csv line 2"),
    *((f"n,value,metric,unit\n8,100,throughput,{unit}\n", advice) for unit, advice in UNITS),
])  # fmt: skip
def test_a_table_that_leaves_something_open_is_refused_with_what_to_write(tmp_path, text, advice):
    with pytest.raises(ValueError, match=advice):
        table_of(tmp_path, text)


@pytest.mark.parametrize(("column", "cell", "origin"), [
    ("note", "ideal (linear)", "target"), ("table_id", "theoretical peak", "target"),
    ("note", "near ideal, as expected", "cited"), ("lr_schedule", "linear", "cited"),
])  # fmt: skip
def test_a_row_that_calls_itself_ideal_is_no_result(tmp_path, column, cell, origin):
    text = f"gpus,images/s,{column}\n1,100,\n2,200,{cell}\n"
    imported = table_of(tmp_path, text)
    assert [row["origin"] for table in imported.tables.values() for row in table["rows"]] == [
        "cited", origin,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "efficiency"),
    [
        (("1,100,step_time,ms,weak", "8,125,step_time,ms,weak"), 0.8),  # which needs no batch
        (("1,100,step_time,ms,strong", "4,40,step_time,ms,strong"), 0.625),
        (("1,10,time,min,weak", "4,12.5,time,min,weak"), 0.8),
        # The smallest size is the baseline where one is missing.
        (("8,100,throughput,tokens/s,", "256,1250,throughput,tokens/s,"), 12.5 / 32),
    ],
)
def test_efficiency_follows_from_what_a_table_holds(tmp_path, lines, efficiency):
    text = "\n".join(("n,value,metric,unit,scaling", *lines, ""))
    (series,) = points_of(table_of(tmp_path, text), tmp_path)
    assert series.baseline == series.points[0].world_size
    assert series.points[1].parallel_efficiency == pytest.approx(efficiency)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0,10,time,s", "column n has '0', which is not a positive number"),
        ("1,-3,time,s", "column value has '-3', which is not a positive number"),
        ("1,10,efficiency,percent", "metric 'efficiency' is unknown; write throughput"),
        ("1,10,time,fortnights", "unit 'fortnights' is not a unit of time"),
        ("1,10,step_time,ms", "a table of step times needs a column global_batch"),
    ],
)
def test_a_line_that_says_nothing_is_left_out_by_number(tmp_path, line, reason):
    imported = table_of(tmp_path, f"n,value,metric,unit\n{line}\n1,10,time,s\n")
    (warning,) = imported.warnings
    assert warning.startswith(f"table.csv line 2 is left out: {reason}")
    assert sum(len(t["rows"]) for t in imported.tables.values()) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_spreadsheets_encode_as_they_like(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes("n,value,metric,unit,source\n1,10,time,s,J\u00fclich\n".encode(encoding))
    imported = read([path])
    assert imported.tables["t"]["source"] == "J\u00fclich"


def test_epoch_logs_are_computed_anew_from_their_times(tmp_path):
    imported = read(JOBS)
    assert [fact.split(" on ")[0] for fact in imported.facts] == [
        "job 2644: 4507 images/s", "job 2648: 2226 images/s", "job 2649: 2505 images/s",
    ]  # fmt: skip
    (series,) = points_of(imported, tmp_path)
    # Mean epochs of 11.0945 s at one rank; of 22.4667 s and 19.9562 s at two, median 21.2115 s.
    assert series.points[1].num_launches == 2
    assert series.points[1].parallel_efficiency == pytest.approx(11.0945 / 21.2115 / 2, rel=1e-5)


def test_a_logged_rate_that_counts_ranks_twice_is_flagged():
    imported = read(JOBS)
    flagged = {w.split(":")[1].strip(): w for w in imported.warnings}
    assert set(flagged) == {"job 2648", "job 2649"}
    assert "2 times the rate that follows from the epoch times" in flagged["job 2648"]
    (rows,) = [table["rows"] for table in imported.tables.values()]
    assert [len(row["flags"]) for row in rows] == [0, 1, 1]


def test_the_first_epoch_warms_up(tmp_path):
    head = "jobid,epoch,world_size,global_batch,epoch_time_s,images_per_sec\n"
    text = head + "7,1,1,10,999,1\n7,2,1,10,10,100\n7,3,1,10,30,33.3\n"
    imported = read([csv_file(tmp_path / "e.csv", text)], dataset_size=1000)
    (table,) = imported.tables.values()
    assert table["rows"][0]["time_s"] == 20.0
    assert table["rows"][0]["throughput_samples_per_s"] == pytest.approx(50.0)


def test_times_and_throughputs_of_one_table_are_one_row_for_each_size(tmp_path):
    time, _ = points_of(table_of(tmp_path, "GPUs,hours,samples/s\n1,12,40\n4,3.5,137\n"), tmp_path)
    ended = commands.run(report, tmp_path / "out").stdout.split("\n\n")[0].splitlines()
    assert {"GPU-hours", "GPU-h/1e6", "throughput", "time"} < set(ended[0].split())
    assert [line.split()[0] for line in ended[2:]] == [str(size) for size in time.sizes]
    assert ended[3].split()[4:] == ["14", "8.11", "137", "samples/s", "3.5", "h"]


def test_an_import_is_not_overwritten(tmp_path):
    imported = read([DATA / "hours.csv"])
    target = write(imported, [DATA / "hours.csv"], tmp_path)
    before = target.read_bytes()
    document = json.loads(before)
    assert (document["schema"], document["sources"][0]["file"]) == (1, "hours.csv")
    assert len(document["sources"][0]["sha256"]) == 64
    with pytest.raises(ValueError, match="exists"):
        write(imported, [], tmp_path)
    assert target.read_bytes() == before
    write(imported, [], tmp_path, force=True)
    assert target.read_bytes() != before
