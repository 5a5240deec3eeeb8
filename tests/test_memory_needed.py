"""What memory the batches of a plan took, where other campaigns measured them."""

import pytest
import stand_ins
from data.job_samples import SITE_FILE, campaign_of
from data.report_samples import document, record, write
from measured import write_campaign

from lockstep.slurm.submit import plan_cli
from lockstep.slurm.submit.plan_cli import Measured, needs, step_of

GB = 10**9
GPU_GB = 80
MODEL = {"workload": "resnet50", "precision": "bf16"}


def held(gb, **changes):
    return Measured(int(gb * GB), GPU_GB * GB, **changes)


def needed(monkeypatch, measured, **changes):
    """Return the memory of a campaign of one step, where steps of these batches were measured."""
    known = {}
    for (local_batch, accumulation, precision), memory in measured:
        factors = MODEL | {"precision": precision, "accumulation": accumulation}
        known.setdefault(step_of(factors, 1, local_batch), []).append(memory)
    monkeypatch.setattr(plan_cli, "read_memory", lambda *_, **__: known)
    asked = {"studies": ["weak"], "world_sizes": [1], "global_batch": None, "precision": "bf16"}
    return needs(campaign_of(**asked | changes), None, is_gpu=True)[0]


@pytest.mark.parametrize(
    ("asked", "measured", "gb"),
    [
        ({"local_batch": 64}, [], None),
        ({"local_batch": 64}, [((64, 1, "bf16"), held(24)), ((64, 1, "bf16"), held(25))], 25),
        ({"local_batch": 64}, [((64, 1, "fp32"), held(24))], None),
        (
            {"local_batch": 128, "factors": {"accumulation": [4]}},
            [((128, 1, "bf16"), held(44)), ((128, 4, "bf16"), held(24))],
            24,
        ),
    ],
)
def test_no_more_is_claimed_than_was_measured_at_this_batch(monkeypatch, asked, measured, gb):
    peak = needed(monkeypatch, measured, **asked).peak_bytes
    assert (peak and peak / GB) == gb


def test_only_what_is_like_the_newest_counts(monkeypatch):
    old = held(40, started="2025", alike=("A100", "SGD", None))
    new = held(30, started="2026", alike=("H100", "SGD", None))
    both = [((64, 1, "bf16"), memory) for memory in (new, old)]
    need = needed(monkeypatch, both, local_batch=64)
    assert (need.peak_bytes, need.devices) == (30 * GB, "H100")


def test_a_plan_has_each_step_once_with_the_sizes_that_take_it(monkeypatch):
    monkeypatch.setattr(plan_cli, "read_memory", lambda *_, **__: {})
    asked = {"studies": ["strong", "weak"], "world_sizes": [4, 8]}
    found = needs(campaign_of(factors={"accumulation": [1, 4]}, **asked), None, is_gpu=True)
    names = ("world_sizes", "local_batch", "accumulation")
    assert [tuple(need.step[name] for name in names) for need in found] == [
        ([4], 256, 1),
        ([4, 8], 128, 1),
        ([4], 256, 4),
        ([4, 8], 128, 4),
    ]


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
    asked = {"schema": 1, "name": "ladder", "repeats": 1, **campaign}
    write_campaign(folder / "campaign.toml", **asked)
    (folder / "site.toml").write_text(SITE_FILE)
    ended = stand_ins.lockstep(f"plan campaign.toml --site site.toml {options}", folder, "/nowhere")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


STRONG = {"studies": ["strong"], "size": "node", "precision": "bf16", "global_batch": 512}


def test_a_plan_has_batch_memory_and_accumulation_of_each_size(tmp_path):
    on_gpu(tmp_path / "results", 32, 14)
    on_gpu(tmp_path / "results", 64, 24)
    lines = plan(tmp_path, **STRONG, world_sizes=[1, 4, 8]).splitlines()
    first = next(number for number, line in enumerate(lines) if "memory, GB" in line)
    assert [line.split() for line in lines[first + 1 : first + 4]] == [
        ["1", "512", "1", "\u2013"],
        ["4", "128", "1", "\u2013"],
        ["8", "64", "1", "24.0"],
    ]
    assert "The column memory shows the peak memory of a rank on H100, which has 80.0 GB." in lines
    assert max(map(len, lines)) <= 80
