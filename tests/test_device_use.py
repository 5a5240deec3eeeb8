"""What telemetry tells on the page of the devices of a launch."""

from typing import Any

import pytest
from data.report_samples import document, record, write

from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import gather
from lockstep.report.page import collective_tables

STEP = "test_weak_scaling[workload=mlp]"


def gauge(*means: float) -> dict[str, Any]:
    return {part: list(means) for part in ("mean", "least", "most")}


def watched(world_size: int = 2, study: str = "weak", **gauges: Any) -> Any:
    seen = {"elapsed_s": [1.0] * world_size} | gauges
    return record(study, world_size, details={"telemetry": seen})


def gpu_ladder(folder: Any, **gauges: Any) -> Any:
    """Write a ladder over one and two GPUs, of which the larger has what is given."""
    write(folder, document("w1-r0", 1, {STEP: watched(1, gpu_utilisation=gauge(0.1))}))
    write(folder, document("w2-r0", 2, {STEP: watched(**gauges)}))
    return gather([folder])


def health(results: Any) -> dict[str, list[str]]:
    made = collective_tables.panel_of(results, series_of(results.rows))
    return {row[0]: row[1:] for row in made["tables"][0]["rows"]} if made else {}


def test_what_is_near_its_limit_passes_and_the_rest_is_warned_of(tmp_path):
    found = health(gpu_ladder(
        tmp_path, gpu_utilisation=gauge(0.95, 0.91), power_w=gauge(390, 350),
        power_limit_w=gauge(400, 400), gpu_memory_bytes=gauge(8e9, 8e9),
        gpu_memory_total_bytes=gauge(80e9, 80e9),
    ))  # fmt: skip
    assert {name: (row[0], row[2], row[3]) for name, row in found.items()} == {
        "GPU in use": ("pass", "from 90.0 %", "93.0 %"),
        "power, as a share of the board's limit": ("pass", "from 90.0 %", "92.5 %"),
        "GPU memory in use, as a share of all GPU memory": ("warn", "from 90.0 %", "10.0 %"),
    }


@pytest.mark.parametrize(
    ("idle", "launches", "verdict"), [(0.03, 3, "pass"), (0.3, 3, "warn"), (0.03, 1, "not shown")]
)
def test_the_best_loader_setting_may_leave_a_step_waiting_for_less_than_5_per_cent(
    tmp_path, idle, launches, verdict
):
    for repeat in range(launches):
        cases = {
            f"test_loader[num_workers={n}]": record(
                "loader", 1, details={"loader_idle": share * (1 + 0.01 * repeat)}
            )
            for n, share in enumerate((0.4, idle))
        }
        write(tmp_path, document(f"w1-r{repeat}", 1, cases))
    ((name, row),) = health(gather([tmp_path])).items()
    assert (row[0], row[2]) == (verdict, "below 5.0 %")
    assert name == "share of a step spent waiting for the loader with its best setting"


@pytest.mark.parametrize(
    ("num_nodes", "gb_per_s", "verdict"), [(2, 13.0, "pass"), (2, 12.0, "warn")]
)
def test_an_all_reduce_between_nodes_reaches_100_gigabits(tmp_path, num_nodes, gb_per_s, verdict):
    # Of two ranks busbw is algbw: what is sent is the message.
    cases = {
        f"test_collectives[collective=all_reduce-message_bytes={size}]": record(
            "collective", 2, 1e-5 + size / (gb_per_s * 1e9), workload="all_reduce",
            num_nodes=num_nodes, factors={"collective": "all_reduce", "message_bytes": size},
            rank_hosts=["a", "b"][:num_nodes] * (2 // num_nodes),
        )
        for size in (2**20, 2**24, 2**28)
    }  # fmt: skip
    write(tmp_path, document("w2-r0", 2, cases, num_nodes=num_nodes))
    found = health(gather([tmp_path])).get("all_reduce between nodes, busbw")
    assert (found and found[0]) == verdict
