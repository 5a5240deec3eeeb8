import csv
import io
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
from lockstep.report.page.by_study import imported_panel
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


def test_an_option_has_its_time_throughput_and_ratios_in_one_row(tmp_path):
    write(read([imports.built_in()["guide"]]), [], tmp_path / "out")
    results = load([tmp_path / "out"])
    series = [s for s in series_of(results.rows) if s.row.origin == "target"]
    hours, _ = imported_panel(results, series, "target", 0.7, {})["tables"]
    columns = [column["label"] for column in hours["columns"]]
    rows = [dict(zip(columns, row, strict=True)) for row in hours["rows"]]
    found = [[row[name] for name in ("Time", "Throughput", "Speed-up")] for row in rows]
    assert found == [
        ["12.0", "40.0", "1.00"], ["6.50", "80.0", "1.85"], ["3.50", "160", "3.43"],
        ["2.00", "240", "6.00"],
    ]  # fmt: skip
    assert "Throughput is that of guide_throughput" in hours["note"]


@pytest.mark.parametrize(
    ("nodes", "noun", "shown"), [((2, 4), "node", ["2", "4"]), ((1, 2), "device", ["1", "2"])]
)
def test_a_table_that_counts_nodes_has_them_on_the_page(tmp_path, nodes, noun, shown):
    lines = "".join(f"{n},{count},{100 / n}\n" for n, count in zip((2, 4), nodes, strict=True))
    write(table_of(tmp_path, f"n,nodes,time_s\n{lines}"), [], tmp_path / "out")
    results = load([tmp_path / "out"])
    (series,) = series_of(results.rows)
    assert series.noun == noun
    (table,) = imported_panel(results, [series], "cited", 0.7, {})["tables"]
    place = [column["label"] for column in table["columns"]].index("Nodes")
    assert [row[place] for row in table["rows"]] == shown


@pytest.mark.parametrize(
    ("column", "values", "tables"),
    [("strategy", ("ddp", "fsdp"), 2), ("bucket_cap_mb", (1, 25), 2), ("tuned", ("yes", ""), 2),
     ("seed", (0, 1), 1), ("host", ("n1", "n2"), 1), ("loss", (0.3, 0.4), 1),
     ("speedup", ("1.8x", "1.9x"), 1), ("accelerator", ("A100", "A100"), 1)],
)  # fmt: skip
def test_lines_of_one_size_that_differ_in_a_factor_are_no_repeats(tmp_path, column, values, tables):
    lines = [f"{n},{100 * n},throughput,images/s,{value}" for n in (1, 2) for value in values]
    imported = table_of(tmp_path, "\n".join([f"n,value,metric,unit,{column}", *lines]))
    assert len(imported.tables) == tables
    assert {len(table["rows"]) for table in imported.tables.values()} == {4 // tables}
    assert len(points_of(imported, tmp_path)) == tables


@pytest.mark.parametrize(("unit", "seconds"), [("sec", 1.0), ("hours", 3600.0), ("d", 86400.0)])
def test_a_time_is_shown_in_the_unit_of_its_table(tmp_path, unit, seconds):
    imported = table_of(tmp_path, f"n,value,metric,unit\n1,3,time,{unit}\n")
    assert imported.tables["table"]["rows"][0]["time_s"] == 3 * seconds
    write(imported, [], tmp_path / "out")
    results = load([tmp_path / "out"])
    panel = imported_panel(results, series_of(results.rows), "cited", 0.7, {})
    (table,) = panel["tables"]
    column = [c["unit"] for c in table["columns"]].index(unit)
    assert table["rows"][0][column] == "3.00"


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


@pytest.mark.parametrize(
    "changed", ["locator=another page", "model=another", "accelerator=10 CPU cores", "steps=9000"]
)
def test_other_work_or_another_source_is_no_replacement(tmp_path, changed):
    column, value = changed.split("=")
    with imports.built_in()["cyclone"].open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        line["accelerator"] = {"cyclone_cpu": "10 CPU cores"}.get(line["table_id"], "a GPU")
        if line["table_id"] == "cyclone":
            line[column] = value
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0])
    writer.writeheader()
    writer.writerows(lines)
    assert compare_devices(points_of(table_of(tmp_path, text.getvalue()), tmp_path)) == []


def throughputs(imported):
    (table,) = imported.tables.values()
    return [round(row["throughput_samples_per_s"], 6) for row in table["rows"]]


LONG = "n,value,metric,unit"
# Units that are not understood, and what the message advises.
UNITS = [
    ("it/s", "global_batch"), ("iterations per second", "global_batch"), ("s/it", "global_batch"),
    ("samples/s/A100", "samples/s/GPU"), ("tokens/s/8 GPUs", "samples/s/GPU"),
    ("images/GPU", "samples/s/GPU"), ("samples/s per core", "samples/s/GPU"),
    ("ms/image", "samples/s"), ("micro-batches/s", "samples/s"), ("samples/s/node", "nodes"),
    ("images", "samples/s"), ("samples/step", "samples/s"), ("tokens/s/node/GPU", "all ranks"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "rest"), [
    (LONG, ",throughput,tokens/s/GPU"), (LONG, ",throughput,seq/s per device"),
    (LONG, ",throughput,img/(s*GPU)"), (LONG, ",throughput,per-rank samples/s"),
    (LONG, ",throughput,TFLOPS/GPU"), (LONG, ",throughput,TGS"),
    (LONG, ",throughput_per_gpu,samples s^-1"),
    (LONG, ",throughput,samples\u00b7s\u207b\u00b9\u00b7GPU\u207b\u00b9"),
    (f"{LONG},note", ",throughput,images/s,per GPU"),
    (f"{LONG},basis", ",throughput,images/s,measured per card"),
    ("# all numbers per GPU, bf16\ngpus,samples/s", ""), ("num_gpus,tokens_per_sec_per_gpu", ""),
    ("gpus,Throughput (per GPU),unit", ",img/s"), ("n,samples/s/node,nodes", ",{n}"),
    ("gpus,Per-GPU throughput (img/s)", ""), ("gpus,speed [tok/s/gpu]", ""),
])  # fmt: skip
def test_a_rate_of_one_device_or_node_becomes_that_of_all_with_a_word_said(tmp_path, columns, rest):
    lines = (f"{n},{rate}{rest.format(n=n)}" for n, rate in ((4, 100), (8, 95)))
    imported = table_of(tmp_path, "\n".join([columns, *lines, ""]))
    assert throughputs(imported) == [400.0, 760.0]
    assert imported.tables["table"]["conversion"] in " ".join(imported.facts)
    assert imported.tables["table"]["unit"].count("/") == 1


@pytest.mark.parametrize("text", [
    "gpus,samples/s,note\n4,400,batch 32 per GPU\n8,760,4 GPUs per node; 6 loaders per GPU\n",
    "gpus,samples/s (bf16),batch_policy\n4,400,fixed per GPU\n8,760,fixed per GPU\n",
    "gpus,total samples/s,note\n4,400,n x the published rate per GPU\n8,760,summed over ranks\n",
    "Measured on 4 GPUs per node:\n\n| GPUs | samples/s |\n|---|--:|\n| 4 | 400 |\n| 8 | 760 |\n",
])  # fmt: skip
def test_what_else_is_per_device_changes_no_rate(tmp_path, text):
    imported = table_of(tmp_path, text)
    assert throughputs(imported) == [400.0, 760.0]
    assert not any("conversion" in table for table in imported.tables.values())


def test_a_note_on_some_lines_alone_leaves_out_the_others(tmp_path):
    text = "gpus,img/s,remarks\n4,100,values are averaged per GPU\n8,95,\n"
    imported = table_of(tmp_path, text)
    assert throughputs(imported) == [400.0]
    assert "line 3 is left out" in imported.warnings[0]


@pytest.mark.parametrize(("columns", "lines"), [
    ("gpus,value,metric,unit,local_batch", ("4,5,throughput,it/s,20", "8,4.75,throughput,it/s,20")),
    ("gpus,steps/s,global_batch", ("4,5,80", "8,4.75,160")),
    ("gpus,batches per second,batch size per GPU", ("4,5,20", "8,4.75,20")),
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
    ("GPU;images/s\n1;352,5\n2;1.690,1\n", [1, 2], [352.5, 1690.1]),
    ("GPUs;images/s\n1;938\n4;2,470\n8;4,800\n", [1, 4, 8], [938, 2470, 4800]),
    ("gpus,img/s\n1,1 234\n2,2 345\n", [1, 2], [1234, 2345]),
    ("GPUs,throughput\n1,352 img/s\n2,~690 img/s\n", [1, 2], [352, 690]),
    ("GPUs,images/s\n1,352 \u00b1 3\n2,690 +/- 8 (1.96x)\n", [1, 2], [352, 690]),
    ("gpus,tokens/s\n8,10.5k\n16,1.5e4\n", [8, 16], [10500, 15000]),
    ("gpus,samples/min\n1,6000\n", [1], [100]),
    ("config,img/s\n1x V100,345\n8x V100,2500\n", [1, 8], [345, 2500]),
    ("setup,img/s\n1 node x 8 GPUs,1000\n2 nodes x 8 GPUs,1900\n", [8, 16], [1000, 1900]),
    ("nodes x gpus,img/s\n1x1,100\n2x8,1500\n", [1, 16], [100, 1500]),
    ("GPUs,img/s\n8 GPUs,352\n16 (2 nodes),5000\n", [8, 16], [352, 5000]),
    ("A100s,img/s,speedup\n8,352,1.0x\n64,2000,5.7x\n", [8, 64], [352, 2000]),
    ("np,img/s\n1,100\n", [1], [100]),
    ("GPUs | img/s\n--- | ---\n1 | 352\n8 | **2500**\n", [1, 8], [352, 2500]),
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
    ("gpus,hours\n1,29\n", "time", [104_400]),
    ("n,Value,Metric,unit\n1,3,time,min\n", "time", [180]),
    ("gpus;epoch (s)\n1;345,2\n", "epoch_time", [345.2]),
    ("gpus,minutes per epoch\n8,29\n", "epoch_time", [1740]),
    ("gpus,batch_time (ms),scaling\n8,29,weak\n", "step_time", [0.029]),
    ("gpus,Time/iter,scaling\n8,0.52 s/it,weak\n", "step_time", [0.52]),
    ("gpus,step,scaling\n8,120ms,weak\n", "step_time", [0.12]),
    ("ranks,time [h]\n1,1:30:00\n2,48:12:00\n", "time", [5400, 173_520]),
    ("ranks,epoch time (mm:ss)\n1,48:12\n2,09:05.5\n", "epoch_time", [2892, 545.5]),
    ("ranks,Time per epoch (s)\n1,0:01:40\n2,55\n", "epoch_time", [100, 55]),
])  # fmt: skip
def test_times_are_read_as_people_type_them(tmp_path, text, metric, seconds):
    (table,) = table_of(tmp_path, text).tables.values()
    assert table["metric"] == metric
    found = [row["step_s"] if metric == "step_time" else row["time_s"] for row in table["rows"]]
    assert found == pytest.approx(seconds)


def test_two_columns_of_rates_are_two_tables(tmp_path):
    imported = table_of(tmp_path, "gpus,fp32 (img/s),amp (img/s)\n1,352,800\n2,690,1580\n")
    rates = {
        name: [row["throughput_samples_per_s"] for row in table["rows"]]
        for name, table in imported.tables.items()
    }
    assert rates == {"fp32 (img/s)": [352, 690], "amp (img/s)": [800, 1580]}


def test_an_import_prints_how_it_reads_each_column(tmp_path):
    path = csv_file(tmp_path / "table.csv", "setup,Img/sec,acc\n2 nodes x 8 GPUs,10.5k,0.9\n")
    ended = commands.run(import_table, path, "--to", tmp_path / "out", "--dry-run")
    assert [re.split(r"\s{2,}", line) for line in ended.output.splitlines()[1:4]] == [
        ["setup", "n", "-", "2 nodes x 8 GPUs", "2 x 8"],
        ["Img/sec", "throughput", "Img/sec", "10.5k", "10500"],
        ["acc", "unknown column, kept as a detail", "-", "0.9", "0.9"],
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "advice"), [
    ("gpus,throughput\n1,100\n", "'throughput .samples/s.'"), ("gpus,time\n1,9\n", "'time .s.'"),
    ("p50,images/s\n8,9\n", "column of ranks n or gpus"),
    ("speed,images/s\n1,100\n", "of ranks n or gpus"), ("gpus,result\n1,100\n", "samples/s/GPU"),
    ("Nodes,time (s)\n1,100\n", "column 'Nodes' counts nodes, .* GPUs per node.*: gpus,Nodes,time"),
    ("gpus,ranks,images/s\n1,2,100\n", "both mean n"), ("gpus,time (h)\n1,12:30\n", "h:mm:ss"),
    ("gpus,nodes,gpus_per_node,img/s\n8,2,2,100\n", "2 nodes with 2"),
    ("GPUs;images/s\n1;1.352\n2;2.690\n", "may be 1352 or 1.352; write 1352 or 1.352"),
    ("GPUs\timages/s\n1\t3,120\n2\t5,980\n", "may be 3120 or 3.120"),
    ("n,value,metric,unit\n0,10,time,s\n", r"no line .* can be used: table\.csv line 2"),
    *((f"n,value,metric,unit\n8,100,throughput,{unit}\n", advice) for unit, advice in UNITS),
])  # fmt: skip
def test_a_table_that_leaves_something_open_is_refused_with_what_to_write(tmp_path, text, advice):
    with pytest.raises(ValueError, match=advice):
        table_of(tmp_path, text)


@pytest.mark.parametrize(("column", "cell", "origin"), [
    ("note", "ideal (linear)", "target"), ("kind", "extrapolated from 4", "target"),
    ("table_id", "theoretical peak", "target"), ("note", "near ideal, as expected", "cited"),
    ("lr_schedule", "linear", "cited"), ("note", "estimated time of arrival 5 h", "cited"),
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


def test_tables_of_one_file_are_kept_apart(tmp_path):
    text = (
        "table_id,n,value,metric,unit\na,1,10,time,s\nb,1,20,time,s\n"
        "a,1,5,throughput,images/s\na,2,6,time,s\n"
    )
    found = points_of(table_of(tmp_path, text), tmp_path)
    sizes = {s.case: [p.world_size for p in s.points] for s in found}
    assert sizes == {"a": [1, 2], "b": [1], "a throughput": [1]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0,10,time,s", "n is '0', not a positive number"),
        ("1.5,10,time,s", "n is '1.5', not a whole number"),
        ("two,10,time,s", "n is 'two', not a number"),
        ("1,-3,time,s", "value is '-3', not a positive number"),
        ("1,nan,time,s", "value is 'nan', not a positive number"),
        ("1,,time,s", "value is '', not a number"),
        ("1,10,efficiency,percent", "metric 'efficiency' is neither a time nor a throughput"),
        ("1,10,time,fortnights", "unit 'fortnights' is not one of"),
        ("1,10,step_time,ms", "a step time needs its global_batch or its scaling"),
    ],
)
def test_a_line_that_says_nothing_is_left_out_by_number(tmp_path, line, reason):
    imported = table_of(tmp_path, f"n,value,metric,unit\n{line}\n1,10,time,s\n")
    (warning,) = imported.warnings
    assert warning.startswith(f"table.csv line 2 is left out: {reason}")
    assert sum(len(t["rows"]) for t in imported.tables.values()) == 1


def test_a_scaling_that_says_nothing_is_named_once(tmp_path):
    lines = "1,10,time,s,stong\n2,6,time,s,stong\n1,10,time,s,strong\n4,3,time,s,\n"
    imported = table_of(tmp_path, "n,value,metric,unit,scaling\n" + lines)
    assert imported.warnings == [
        "table.csv line 2: scaling 'stong' does not begin with any of strong, weak, fixed-epochs, "
        "so it is taken as unknown"
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_spreadsheets_encode_as_they_like(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes("n,value,metric,unit,source\n1,10,time,s,J\u00fclich\n".encode(encoding))
    imported = read([path])
    assert imported.tables["t"]["source"] == "J\u00fclich"


def test_workers_are_no_devices_and_cost_nothing(tmp_path):
    text = "n,value,metric,unit,scaling\n8,70,throughput,samples/s,workers instead of GPUs\n"
    (series,) = points_of(table_of(tmp_path, text), tmp_path)
    assert series.points[0].device_hours is None


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


def test_a_job_is_one_launch_over_however_many_files(tmp_path):
    header, *lines = JOBS[0].read_text().splitlines()
    parts = [csv_file(tmp_path / f"{name}.csv", "\n".join([header, *own, ""]))
             for name, own in (("later", lines[4:]), ("first", lines[:4]))]  # fmt: skip
    (whole,), (both,) = (
        [row for table in read(paths).tables.values() for row in table["rows"]]
        for paths in (JOBS[:1], parts)
    )
    assert both == whole


def test_a_single_epoch_is_kept_apart_and_flagged(tmp_path):
    head = "jobid,epoch,world_size,global_batch,epoch_time_s,images_per_sec\n"
    path = csv_file(tmp_path / "e.csv", head + "7,1,1,10,10,5000\n")
    imported = read([path, JOBS[0]])
    assert len(imported.tables) == 2
    assert any("run has only one epoch" in warning for warning in imported.warnings)


def test_a_log_with_a_broken_time_names_the_job(tmp_path):
    head = "jobid,epoch,world_size,global_batch,epoch_time_s,images_per_sec\n"
    path = csv_file(tmp_path / "e.csv", head + "7,1,1,10,x,1\n")
    with pytest.raises(ValueError, match="job 7: epoch_time_s is 'x', not a number"):
        read([path])


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
