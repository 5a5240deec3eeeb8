"""Profiles read back: shares of steps whose truth is known, whatever tool recorded them."""

import json

import pytest
from click.testing import CliRunner
from data.profile_samples import TRUTH, profile_sleeps, write_sqlite, write_trace

from lockstep.core.phases import Span, phases
from lockstep.report.profiles.explain_cli import explain
from lockstep.report.profiles.profiles import read


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


def test_a_moment_counts_once_however_many_ranges_overlap():
    spans = [Span("compute", "forward", 0, 4), Span("compute", "backward", 3, 6)]
    spans += [Span("communication", "communication", 5, 12), Span("input", "data", 11, 30)]
    found = phases(spans, [(0, 10), (10, 20)])
    times = (found.compute_s, found.exposed_s, found.input_s, found.idle_s)
    assert times == pytest.approx((3, 3, 4, 0))
    assert sum(times) == pytest.approx(found.step_s)
    assert phases(spans, []) is None


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


def ask(*words):
    return CliRunner().invoke(explain, [str(word) for word in words], standalone_mode=False)


def test_two_profiles_are_compared_phase_by_phase(tmp_path):
    one, two = write_trace(tmp_path / "one.json.gz"), write_trace(tmp_path / "two.json.gz", 2.0)
    asked = ask(one, "--against", two)
    assert asked.output.count("2.00x") == 6
    both = json.loads(ask(one, "--against", two, "--json").output)["profiles"]
    assert [each["phases"]["step_s"] for each in both] == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"traceEvents": []}', b"a,b\n1,2\n", b"SQLite format 3\0rubbish"]
)
def test_what_is_no_profile_is_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.json: "):
        read(path)


@pytest.mark.slow
def test_a_step_of_known_sleeps_and_its_card_name_the_same_phase(tmp_path):
    printed = profile_sleeps(tmp_path)
    found = read(tmp_path / "trace.json").phases
    shares = [each / found.step_s for each in (found.compute_s, found.input_s, found.idle_s)]
    assert shares == pytest.approx([0.5, 0.4, 0.1], abs=0.05)
    asked = ask(tmp_path / "trace.json", tmp_path / "lockstep-explain.json")
    assert asked.exception is None
    assert "Input-bound" in asked.output
    assert "Input-bound" in printed
    card = tmp_path / "lockstep-explain.json"
    assert "step" in ask(card, "--against", card).output
    assert "bound:" not in ask(card).output
