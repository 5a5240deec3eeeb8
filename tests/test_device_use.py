"""What telemetry tells on the page of the devices of a launch."""

from typing import Any

from data.report_samples import document, record, write

from lockstep.report.load.reading import gather
from lockstep.report.page import facts

STEP = "test_weak_scaling[workload=mlp]"


def gauge(*means: float) -> dict[str, Any]:
    return {part: list(means) for part in ("mean", "least", "most")}


def watched(world_size: int = 2, study: str = "weak", **gauges: Any) -> Any:
    seen = {"elapsed_s": [1.0] * world_size} | gauges
    return record(study, world_size, details={"telemetry": seen})


def test_the_table_of_ranks_has_the_means_over_the_cases_by_their_time(tmp_path):
    long = watched(power_w=gauge(300, 200), gpu_memory_bytes=gauge(4e9, 5e9), elapsed_s=[3.0, 1.0])
    short = watched(power_w=gauge(100, 400))
    write(tmp_path, document("w2-r0", 2, {"test_a[x=1]": long, "test_a[x=2]": short}))
    table = facts.provenance(gather([tmp_path]))["tables"][-2]
    assert table["caption"] == "Ranks of launch w2-r0"
    names = [column["label"] for column in table["columns"]]
    assert names[-2:] == ["GPU memory in use", "Power"]
    assert [row[-2:] for row in table["rows"]] == [["4.00", "250"], ["5.00", "300"]]
    assert "telemetry/" in table["note"]


def test_a_launch_that_was_not_watched_has_no_such_column(tmp_path):
    write(tmp_path, document("w1-r0", 1, {STEP: record("weak")}))
    table = facts.provenance(gather([tmp_path]))["tables"][-2]
    assert [column["label"] for column in table["columns"]][-1] == "Device name"
    assert "note" not in table
