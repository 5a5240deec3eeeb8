"""Whether the batches of a plan fit into memory, by what other campaigns measured."""

import json
from dataclasses import replace

import pytest
import stand_ins
from data.job_samples import SITE_FILE, campaign_of
from data.report_samples import document, record, write
from measured import write_campaign

from lockstep.campaign.choosing.memory_needed import Held, Step, need, on_line, planned
from lockstep.report.load.reading import gather

GB = 10**9
GPU_GB = 80
MODEL = {"workload": "resnet50", "precision": "bf16"}
USUAL = MODEL | {"strategy": "ddp", "activation_checkpointing": False}


def step(local_batch, accumulation=1):
    return Step(USUAL, (1,), local_batch, accumulation)


def held(local_batch, gb, *, used=None, accumulation=1, **changes):
    """Return what a step held of a GPU of 80 GB, of which 2 GB are in use beside PyTorch's."""
    of_step, tensors = step(local_batch, accumulation), used or gb
    known = {"outside_bytes": 2 * GB, "total_bytes": GPU_GB * GB} | changes
    return Held(of_step, int(gb * GB), int(tensors * GB), **known)


@pytest.mark.parametrize(
    ("peaks", "batch", "expected"),
    [
        ([(32, 14), (64, 24)], 128, 44),  # 4 and 5/16 a sample
        ([(32, 14), (64, 24), (64, 20), (96, 34)], 16, 9),  # of each batch the largest
        ([(0.5, 1), (1, 2)], 4, 8),
        ([(32, 14)], 32, None),
        ([(32, 14), (32, 15)], 64, None),
        ([(32, 14), (64, 14)], 128, None),  # it does not grow
        ([(32, 10), (64, 30)], 128, None),  # less than nothing without a sample
    ],
)
def test_peaks_of_two_batches_or_more_are_on_a_line(peaks, batch, expected):
    assert on_line(peaks, batch) == expected


# what is planned, what is known, by what and how many GB are claimed, whether it fits
CLAIMS = [
    (step(64), [], None, None, None),
    (step(64), [held(64, 24), held(64, 25), held(32, 14)], "measured", 25, True),
    # 4 GB and 0.3125 a sample; 2 of the 80 are not PyTorch's.
    (step(128), [held(32, 14), held(64, 24)], "estimate", 44, True),
    # What is held in parts also has the input of those that wait.
    (step(128), [held(32, 14), held(64, 24), held(96, 30, accumulation=3)], "estimate", 44, True),
    (step(240), [held(32, 14), held(64, 24)], "estimate", 79, False),
    (step(240), [held(32, 14, total_bytes=None), held(64, 24, total_bytes=None)],
     "estimate", 79, None),
    # What the allocator holds unused shows no lack: tensors take 75 GB of it.
    (step(240), [held(32, 14, used=10), held(64, 24, used=20)], "estimate", 79, None),
    (step(48), [held(64, 24)], "bound", 24, True),
    (step(128), [held(64, 24)], None, None, None),
    (step(48), [held(64, 24, on_gpu=False, total_bytes=None)], "bound", 24, None),
    # A larger batch in as large parts is no bound of a whole one.
    (step(64), [held(128, 24, accumulation=4)], None, None, None),
    (step(128, 4), [held(64, 24)], None, None, None),
    (step(128, 4), [held(128, 44), held(64, 24)], "estimate", 14, True),
    # 64 was measured after 128 was refused.
    (step(128), [held(64, 24, is_halved=True)], "refused", None, False),
    (step(256), [held(64, 24, is_halved=True)], "refused", None, False),
    (step(64), [held(64, 24, is_halved=True)], None, None, None),
    (step(128, 2), [held(64, 24, is_halved=True)], None, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "known", "by", "gb", "fits"), CLAIMS)
def test_no_more_is_claimed_than_was_measured(asked, known, by, gb, fits):
    found = need(asked, known)
    peak = found.peak_bytes
    assert (found.by, peak and peak / GB, found.fits) == (by, gb, fits)


def test_what_does_not_fit_names_the_least_accumulation_that_would():
    known = [held(32, 14), held(64, 24)]
    # 512 samples take 164 GB, 256 84 and 128 44; a third of 512 is none.
    assert need(step(512), known).fitting_accumulation == 4
    assert need(step(128), known).fitting_accumulation is None
    assert need(step(251), known).fitting_accumulation is None  # a prime, and one is no batch
    assert need(step(512, 4), known).fits


def test_only_what_is_like_the_newest_counts():
    old = held(64, 24, started="2025", alike=("A100", "SGD", None))
    new = held(64, 30, started="2026", alike=("H100", "SGD", None))
    assert need(step(64), [new, replace(old, held_bytes=40 * GB)]).peak_bytes == 30 * GB
    assert need(step(32), [old, new]).devices == "H100"
    fp32 = replace(new, step=Step(USUAL | {"precision": "fp32"}, (1,), 64))
    assert need(step(64), [fp32]).by is None


def test_a_plan_has_each_step_once_with_the_sizes_that_take_it():
    factors = {"accumulation": [1, 4]}
    found = planned(campaign_of(studies=["strong", "weak"], world_sizes=[4, 8], factors=factors))
    assert [(one.world_sizes, one.local_batch, one.accumulation) for one in found] == [
        ((4,), 256, 1),
        ((4, 8), 128, 1),
        ((4,), 256, 4),
        ((4, 8), 128, 4),
    ]


def test_ranks_that_share_their_parameters_are_not_compared_across_world_sizes():
    found = planned(campaign_of(studies=["weak"], factors={"strategy": ["fsdp"]}))
    assert [one.settings["world_size"] for one in found] == [1, 2, 4, 8]


def on_gpu(root, local_batch, gb):
    """Write a campaign that was measured at a batch, on a GPU of 80 GB."""
    gauges = {"gpu_memory_bytes": (gb + 2) * GB, "gpu_memory_total_bytes": GPU_GB * GB}
    telemetry = {name: {"most": [value], "least": [value]} for name, value in gauges.items()}
    case = record(
        "weak", factors=MODEL | {"local_batch": local_batch}, local_batch=local_batch,
        peak_memory_bytes=[(gb - 1) * GB], peak_reserved_bytes=[gb * GB],
        details={"telemetry": telemetry},
    )  # fmt: skip
    folder = root / f"batch{local_batch}"
    write(folder, document("w1-r0", 1, {"test_weak_scaling[x=1]": case}))
    (folder / "campaign.json").write_text('{"schema": 1}')


def plan(folder, options="", **campaign):
    """Return what a plan says, for a site without Slurm."""
    asked = {"schema": 1, "name": "ladder", "repeats": 1, **campaign}
    write_campaign(folder / "campaign.toml", **asked)
    (folder / "site.toml").write_text(SITE_FILE)
    ended = stand_ins.lockstep(f"plan campaign.toml --site site.toml {options}", folder, "/nowhere")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_what_else_is_in_use_of_a_gpu_is_not_free(tmp_path):
    on_gpu(tmp_path / "results", 32, 14)
    on_gpu(tmp_path / "results", 64, 24)
    # 240 samples are 79 GB by what is held, 78 by the tensors, and 80 with what else is in use.
    said = plan(
        tmp_path, "--json", **STRONG | {"studies": ["weak"]}, world_sizes=[1], local_batch=240
    )
    (found,) = json.loads(said)["memory"]
    assert (found["peak_bytes"], found["fits"]) == (79 * GB, None)


STRONG = {"studies": ["strong"], "size": "node", "precision": "bf16", "global_batch": 512}


def test_a_plan_has_batch_memory_and_accumulation_of_each_size(tmp_path):
    on_gpu(tmp_path / "results", 32, 14)
    on_gpu(tmp_path / "results", 64, 24)
    lines = plan(tmp_path, **STRONG, world_sizes=[1, 4, 8]).splitlines()
    first = next(number for number, line in enumerate(lines) if "memory, GB" in line)
    assert [line.split() for line in lines[first + 1 : first + 4]] == [
        ["1", "512", "1", "about", "164", "32,", "64", "no;", "4", "parts", "would"],
        ["4", "128", "1", "about", "44.0", "32,", "64", "yes"],
        ["8", "64", "1", "24.0", "64", "yes"],
    ]
    assert "A batch in parts is [factors] accumulation = [4] in the campaign." in lines
    assert "Memory is the peak of a rank on H100, which has 80.0 GB." in lines
    assert max(map(len, lines)) <= 80


def test_a_plan_without_records_says_how_to_find_out(tmp_path):
    said = " ".join(plan(tmp_path, **STRONG, world_sizes=[1, 4]).split())
    assert "No result in the folder of --to says whether a batch fits: first send a copy" in said
    assert "memory, GB" not in said
    (found, _) = json.loads(plan(tmp_path, "--json", **STRONG, world_sizes=[1, 4]))["memory"]
    assert (found["step"]["local_batch"], found["by"], found["fits"]) == (512, None, None)


def test_a_plan_on_cpus_has_the_peaks_that_were_really_measured(measured, tmp_path):
    asked = {"studies": ["weak"], "size": "smoke", "device": "cpu", "world_sizes": [1, 2]}
    said = plan(tmp_path, f"--to {measured} --json", **asked, local_batch=64)
    (found,) = json.loads(said)["memory"]
    rows = gather([measured / "batch", measured / "fp32"]).rows
    like = [row for row in rows if row.local_batch == 64 and row.precision == "fp32"]
    assert found["peak_bytes"] == max(row.peak_memory_bytes for row in like)
    assert (found["by"], found["fits"], found["total_bytes"]) == ("measured", None, None)
    said = plan(tmp_path, f"--to {measured} --json", **asked | {"device": "cuda"}, local_batch=64)
    assert json.loads(said)["memory"][0]["by"] is None  # what CPUs held is nothing to a GPU
