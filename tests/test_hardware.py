import re

import pytest

from lockstep.machine import hardware

# name as torch prints it; fp32, tf32, bf16, fp16 in TFLOP/s; memory in GB, its GB/s, the TDP in W,
# multiprocessors and the link's GB/s; from the sheets, None where no sheet says so
TABLE = [
    ("Tesla V100-SXM2-16GB", 15.7, None, None, 125, 16, 900, 300, 80, 150),
    ("Tesla V100-SXM2-32GB", 15.7, None, None, 125, 32, 900, 300, 80, 150),
    ("Tesla V100-PCIE-16GB", 14, None, None, 112, 16, 900, 250, 80, None),
    ("Tesla V100-PCIE-32GB", 14, None, None, 112, 32, 900, 250, 80, None),
    ("Tesla V100S-PCIE-32GB", 16.4, None, None, 130, None, None, None, None, None),
    ("Tesla T4", 8.1, None, None, 65, 16, None, 70, 40, 16),
    ("NVIDIA A100-SXM4-40GB", 19.5, 156, 312, 312, 40, 1555, 400, 108, 300),
    ("A100-SXM4-40GB", 19.5, 156, 312, 312, 40, 1555, 400, 108, 300),
    ("NVIDIA A100-SXM4-80GB", 19.5, 156, 312, 312, 80, 2039, 400, 108, 300),
    ("NVIDIA A100-PCIE-40GB", 19.5, 156, 312, 312, 40, 1555, None, 108, None),
    ("NVIDIA A100 80GB PCIe", 19.5, 156, 312, 312, 80, 1935, 300, 108, None),
    ("NVIDIA A40", 37.4, 74.8, 149.7, 149.7, 48, 696, 300, None, None),
    ("NVIDIA L4", 30.3, 60, 121, 121, 24, 300, 72, None, 32),
    ("NVIDIA L40S", 91.6, 183, 362.05, 362.05, 48, 864, 350, None, 32),
    ("NVIDIA H100 PCIe", 51.2, 378, 756, 756, None, None, 350, 114, None),
    ("NVIDIA H100 80GB HBM3", 66.9, 494.7, 989.4, 989.4, 80, 3350, 700, 132, 450),
    ("NVIDIA H200", 66.9, 494.7, 989.4, 989.4, 141, 4800, 700, None, 450),
    ("AMD Instinct MI250X", 47.85, None, 191.5, 191.5, 64, 1600, None, 110, None),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_known_gpu_has_its_datasheet_figures_and_names_the_sheet(row):
    name, *peaks, gb, gb_per_s, tdp_w, num_sms, link = row
    for precision, tera in zip(("fp32", "tf32", "bf16", "fp16"), peaks, strict=True):
        expected = None if tera is None else pytest.approx(tera * 1e12)
        assert hardware.peak_flop_per_s(name, precision) == expected
    row = hardware.find(name)
    assert (row.memory_gb, row.memory_gb_per_s, row.tdp_w) == (gb, gb_per_s, tdp_w)
    assert (row.num_sms, row.link_gb_per_s) == (num_sms, link)
    assert bool(row.board_source) == any((gb, gb_per_s, tdp_w))


UNKNOWN = [
    "", "NVIDIA A100", "AMD EPYC 7763 64-Core Processor", "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "NVIDIA A100-SXM-64GB",  # a custom part with more units than the A100 of the sheet
    "NVIDIA A4000", "NVIDIA L40", "NVIDIA H200 NVL", "AMD Instinct MI250",
]  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_gpu_or_precision_has_no_peak(name):
    assert hardware.find(name) is None
    assert hardware.peak_flop_per_s(name, "fp32") is None
    assert hardware.peak_flop_per_s("NVIDIA H200", "fp8") is None


def test_every_row_is_tested_and_no_name_matches_two():
    for name, *_ in TABLE:
        assert sum(bool(re.fullmatch(row.pattern, name)) for row in hardware.DEVICES) == 1
    found = [hardware.find(name).name for name, *_ in TABLE]
    assert set(found) == {row.name for row in hardware.DEVICES}
    for row in hardware.DEVICES:
        assert row.source
        assert row.peak_flop_per_s["fp16"] == max(row.peak_flop_per_s.values())
