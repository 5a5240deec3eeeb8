"""Profiles read back: shares of steps whose truth is known, whatever tool recorded them."""

import json
import re

import pytest
from click.testing import CliRunner
from data.profile_samples import (
    LAUNCHED,
    TRUTH,
    profile_sleeps,
    write_ncu,
    write_sqlite,
    write_trace,
)
from data.report_samples import strong_tree

from lockstep.cli import lockstep
from lockstep.core.phases import Span, phases, phases_of
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load.reading import load
from lockstep.report.page.content_of_page import page
from lockstep.report.profiles.explain_cli import explain
from lockstep.report.profiles.profiles import read
from lockstep.report.profiles.roofline import roofline


@pytest.mark.parametrize(
    ("name", "write", "rank"),
    [("trace.json.gz", write_trace, 1), ("step-1-rank-3.sqlite", write_sqlite, 3)],
)
def test_the_phases_of_a_known_step_add_up_to_it(name, write, rank, tmp_path):
    profile = read(write(tmp_path / name))
    assert profile.rank == rank
    assert profile.phases.step_s == pytest.approx(0.1)
    assert {key: getattr(profile.phases, key) for key in TRUTH} == pytest.approx(TRUTH)
    assert profile.phases.overlap == pytest.approx(1 / 3)
    assert [kernel.count for kernel in profile.kernels] == [1, 1, 1]
    found = {name: profile.phases.parts[name] for name in LAUNCHED}
    assert found == pytest.approx(LAUNCHED)  # by when the host launched them
    assert "optimizer" not in profile.phases.parts  # it launched nothing
    printed = ask(profile.path).output
    for name, seconds in LAUNCHED.items():
        assert re.search(
            rf"^of it {name} +{1e3 * seconds:g}\.0 ms +{1e3 * seconds:g}\.0 %", printed, re.M
        )


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_timeline_of_a_step_has_a_lane_for_each_part(ending, tmp_path):
    files = [write_trace(tmp_path / "trace.json.gz"), write_sqlite(tmp_path / "rank-3.sqlite")]
    to = tmp_path / f"step{ending}"
    ended = CliRunner().invoke(explain, [*map(str, files), "--timeline", str(to)])
    assert (ended.exit_code, to.stat().st_size > 1000) == (0, True)
    if ending == ".svg":
        drawn = re.findall(r"<!-- (.*?) -->", to.read_text())
        parts = {span.part for span in read(files[0]).spans}
        assert parts <= set(drawn)
        assert {"rank 1: 100 ms", "rank 3: 100 ms"} <= set(drawn)


def test_a_moment_counts_once_however_many_ranges_overlap():
    spans = [Span("compute", "forward", 0, 4), Span("compute", "backward", 3, 6)]
    spans += [Span("communication", "communication", 5, 12), Span("input", "data", 11, 30)]
    found = phases(spans, [(0, 10), (10, 20)])
    times = (found.compute_s, found.exposed_s, found.input_s, found.idle_s)
    assert times == pytest.approx((3, 3, 4, 0))
    assert sum(times) == pytest.approx(found.step_s)
    assert phases(spans, []) is None


def test_a_wait_for_others_within_a_backward_is_no_computing():
    ranges = [
        ("lockstep:step", 0, 10),
        ("lockstep:forward", 0, 2),
        ("lockstep:backward", 2, 9),
        ("autograd::engine::evaluate_function: AddmmBackward0", 2, 5),
        ("lockstep:bucket 0", 4, 4.1),
        ("gloo:all_reduce", 4.2, 8),  # when gloo's own thread began it
        ("lockstep:optimizer", 9, 10),
    ]
    found = phases_of(ranges)
    assert (found.compute_s, found.exposed_s, found.idle_s) == pytest.approx((7, 3, 0))
    parts = {"forward": 2, "backward": 4, "optimizer": 1, "communication": 3.8, "bucket 0": 3.8}
    assert found.parts == pytest.approx(parts)


STATS = """Processing [report.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,60000000,3,20000000.0,20000000.0,1,2,0.0,gemm
40.0,20000000,1,20000000.0,20000000.0,1,2,0.0,"ncclDevKernel_AllReduce(a, b)"

Processing [report.sqlite] with [cuda_gpu_mem_time_sum.py]...

Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,20000000,4,5000000.0,5000000.0,1,2,0.0,[CUDA memcpy HtoD]
"""


def test_sums_of_nsys_stats_are_shares_of_the_busy_device(tmp_path):
    path = tmp_path / "stats.csv"
    path.write_text(STATS)
    profile = read(path)
    assert profile.busy_s == pytest.approx({"compute": 0.06, "communication": 0.02, "copy": 0.02})
    assert profile.phases is None
    assert "compute 60.0 %" in ask(path).output


def ncu_rows():
    launches = [("0", "2", "50"), ("1", "4", "70")]
    metrics = [
        ("Duration", "usecond"),
        ("Achieved Occupancy", "%"),
        ("dram__bytes.sum", "Mbyte"),
        ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst"),
    ]
    yield "==PROF== Connected to process 1"
    yield '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    for number, duration, occupancy in launches:
        for (metric, unit), value in zip(
            metrics, (duration, occupancy, "1", "1,000,000"), strict=True
        ):
            yield f'"{number}","gemm","{metric}","{unit}","{value}"'


def test_a_kernel_of_ncu_has_its_occupancy_bandwidth_and_place_under_the_roofline(tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text("\n".join(ncu_rows()))
    (kernel,) = read(path).kernels
    assert (kernel.count, kernel.seconds) == (2, pytest.approx(6e-6))
    assert kernel.occupancy == pytest.approx(0.6)
    assert (kernel.flop, kernel.num_bytes) == pytest.approx((4e6, 2e6))
    assert "667" in ask(path).output  # 10^9 FLOP/s


def test_the_roofline_of_what_ncu_counted(tmp_path):
    profile = read(write_ncu(tmp_path / "kernels.csv"))
    gemm, add, _ = profile.kernels
    # 400,000 operations a cycle, 10^9 cycles a second, 1 ms; 1,000 GB/s and 3,000 GB/s.
    assert (gemm.precision, add.precision) == ("bf16", "fp32")
    assert (gemm.flop, gemm.num_bytes) == pytest.approx((4e11, 1e9))
    assert (add.flop, add.num_bytes) == pytest.approx((3e8, 3e9))
    bound, slow = roofline(profile).places
    assert (bound.limit, slow.limit) == ("compute", "memory")
    assert (bound.flop_per_byte, bound.flop_per_s) == pytest.approx((400, 4e14))
    assert slow.roof_flop_per_s == pytest.approx(0.1 * 3350e9)
    printed = ask(tmp_path / "kernels.csv").output
    assert "Roofline of H100 SXM, 3350 GB/s" in printed
    assert re.search(r"^gemm +compute +bf16 +400 +400 +989 +40\.4$", printed, re.M)
    assert re.search(r"^add +memory +fp32 +0\.100 +0\.300 +0\.335 +89\.6$", printed, re.M)
    assert "1 kernel without known FLOP" in printed
    assert re.search(r" 1000 +- .* gemm$", printed, re.M)  # GB/s


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("device", "change", "why"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", ("", ""), "does not know the datasheet peaks of"),
        (H100, ("dram__bytes", "l2__bytes"), "no kernel of kernels.csv has both a count"),
        (H100, ("display_name", "x"), "does not name its GPU"),
    ],
)
def test_no_roofline_without_peaks_or_counts(device, change, why, tmp_path):
    path = write_ncu(tmp_path / "kernels.csv", device)
    path.write_text(path.read_text().replace(*change) if change[0] else path.read_text())
    with pytest.raises(ValueError, match=why) as refused:
        roofline(read(path))
    assert str(refused.value) in ask(path).output


def test_the_page_has_the_roofline_of_profiles_in_the_results_folder(tmp_path):
    strong_tree(tmp_path, {1: (0.1,)})
    (tmp_path / "campaign.json").write_text('{"schema": 1, "name": "demo", "launches": []}')
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "other.csv").write_text("a,b\n1,2\n")
    write_ncu(tmp_path / "profiles" / "ncu-7" / "w1-r0" / "kernels.csv")
    sections = page(evaluate(load([tmp_path])), 0.7)["sections"]
    (made,) = (section for section in sections if section["id"] == "roofline")
    assert [row[:3] for row in made["tables"][0]["rows"]] == [
        ["1", "gemm", "compute"],
        ["2", "add", "memory"],
    ]
    assert made["figures"][0]["peaks"] == pytest.approx({"bf16": 989.4, "fp32": 66.9})


def ask(*words):
    return CliRunner().invoke(explain, [str(word) for word in words], standalone_mode=False)


def test_two_profiles_are_compared_phase_by_phase(tmp_path):
    one, two = write_trace(tmp_path / "one.json.gz"), write_trace(tmp_path / "two.json.gz", 2.0)
    asked = ask(one, "--against", two)
    assert asked.output.count("2.00x") == 6 + 7
    assert re.search(r"^  of it bucket 0 +30\.0 ms -> +60\.0 ms", asked.output, re.M)
    both = json.loads(ask(one, "--against", two, "--json").output)["profiles"]
    assert [each["phases"]["step_s"] for each in both] == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("content", [b"{}", b"a,b\n1,2\n", b"SQLite format 3\0rubbish"])
def test_what_is_no_profile_is_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.json: "):
        read(path)


def test_a_folder_is_refused_with_the_commands_that_read_folders(tmp_path):
    ended = CliRunner().invoke(lockstep, ["explain", str(tmp_path)])
    assert isinstance(ended.exception, ValueError)
    for command in ("report", "check"):
        assert f"lockstep {command} {tmp_path}" in str(ended.exception)


@pytest.mark.slow
def test_a_step_of_known_sleeps_and_its_card_name_the_same_phase(tmp_path):
    printed = profile_sleeps(tmp_path)
    found = read(tmp_path / "trace.json").phases
    # A busy machine sleeps longer.
    slept = {"compute_s": 0.05, "input_s": 0.04, "idle_s": 0.01}
    assert all(getattr(found, name) >= seconds for name, seconds in slept.items())
    assert sum(getattr(found, name) for name in slept) == pytest.approx(found.step_s)
    asked = ask(tmp_path / "trace.json", tmp_path / "lockstep-explain.json")
    assert asked.exception is None
    assert "Input-bound" in asked.output
    assert "Input-bound" in printed
    card = tmp_path / "lockstep-explain.json"
    assert "step" in ask(card, "--against", card).output
    assert "bound:" not in ask(card).output
