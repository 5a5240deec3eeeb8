"""What a rank's device and host do while its rounds run: sampled, counted, and put side by side."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from lockstep.machine import memory, network, telemetry
from lockstep.machine.telemetry import Host, Telemetry

BUSY_S = 0.6


class Scripted:
    """A source whose gauge and counter are told."""

    gauges = ("power_w",)

    def __init__(self) -> None:
        self.counter = 0.0
        self.gauge = iter(range(1, 1000))
        self.threads: set[int] = set()

    def sample(self) -> dict[str, float]:
        self.threads.add(threading.get_ident())
        return {"power_w": next(self.gauge)}

    def sample_apart(self) -> dict[str, float]:
        return {}

    def totals(self) -> dict[str, float]:
        self.counter += 5.0
        return {"energy_j": self.counter}


def test_gauges_are_spans_and_counters_grow_over_all_that_was_watched():
    source = Scripted()
    watch = Telemetry([source], interval_s=0.02)
    for _ in range(2):
        with watch:
            time.sleep(0.1)
    facts = watch.facts()
    number = next(source.gauge) - 1
    assert number >= 2
    assert facts["power_w"] == [pytest.approx((1 + number) / 2), 1.0, number]
    assert facts["energy_j"] == 10.0
    assert facts["elapsed_s"] >= 0.2
    assert watch.timeline.rows[0][1] == {"power_w": 1}
    assert len(source.threads) >= 2, "a thread's of its own, and the rank's at the end"
    assert not [one for one in threading.enumerate() if one.name == "telemetry"]


def test_a_busy_process_is_seen_by_its_cores_and_time():
    watch = Telemetry([Host()], interval_s=telemetry.INTERVAL_S)
    with watch:
        begun = time.process_time()
        while time.process_time() - begun < BUSY_S:
            pass
    facts = watch.facts()
    assert facts["cpu_s"] >= BUSY_S * 0.9, "with that of processes it started"
    assert 0 < facts["process_cores"][0] <= 1.2
    assert 0 < facts["core_utilisation"] <= 1.0
    assert facts["rss_bytes"][1] > 1e7


def test_a_busy_child_is_apart_from_the_process():
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"],
                             stdout=subprocess.PIPE)  # fmt: skip
    child.stdout.readline()
    watch = Telemetry([Host()], interval_s=0.1)
    with watch:
        time.sleep(BUSY_S)
        child.kill()
        child.communicate()
    facts = watch.facts()
    assert 0 < facts["child_cores"] <= 1.2, "with a child that ended meanwhile"
    assert facts["cpu_s"] >= facts["child_cores"] * facts["elapsed_s"] * 0.99
    assert "child_s" not in facts


def test_what_infiniband_ports_sent_is_counted_in_words_of_four_bytes(tmp_path):
    assert network.sent_bytes(tmp_path) is None
    for name, count in (("mlx5_0", "250000000"), ("mlx5_1", "N/A (no PMA)")):
        port = tmp_path / "infiniband" / name / "ports" / "1" / "counters"
        port.mkdir(parents=True)
        (port / "port_xmit_data").write_text(f"{count}\n")
    assert network.sent_bytes(tmp_path) == 10**9


def test_the_loopback_sends_nothing_to_other_hosts(tmp_path, monkeypatch):
    counters = {name: SimpleNamespace(bytes_sent=sent) for name, sent in SENT.items()}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: counters)
    assert network.interfaces_sent_bytes(tmp_path) == sum(SENT.values()) - SENT["lo"]


SENT = {"lo": 1000, "eth0": 10, "veth1": 1, "bond0": 10, "ib0": 7}


def test_ranks_stand_side_by_side_by_quantity():
    gpu = {"gpu_utilisation": [0.5, 0.1, 0.9], "energy_j": 7.0}
    assert telemetry.columns([gpu, {}]) == {
        "gpu_utilisation": {"mean": [0.5, None], "least": [0.1, None], "most": [0.9, None]},
        "energy_j": [7.0, None],
    }
    assert telemetry.columns([{}, {}]) == {}


@pytest.mark.parametrize(
    ("line", "folder", "stat", "seconds"),
    [
        ("0::/job/step", "job", "nr_throttled 3\nthrottled_usec 2500000\n", 1.25),
        ("3:cpu,cpuacct:/job", "cpu/job", "throttled_time 1500000000\n", 0.75),
        ("0::/job", "job", "throttled_usec many\n", None),
    ],
)
def test_time_that_a_quota_took_of_two_cores(tmp_path, monkeypatch, line, folder, stat, seconds):
    (tmp_path / "own").write_text(line + "\n")
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "cpu.stat").write_text(stat)
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    assert telemetry.read_throttled_s() == seconds
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "none")
    assert telemetry.read_throttled_s() is None


def test_a_file_has_a_row_a_second_and_the_columns_names_once(tmp_path):
    path = telemetry.file_of(tmp_path / "journal.jsonl", 3)
    for case in ("weak[a]", "weak[b]"):
        kept = telemetry.Timeline(["power_w", "temperature_c"])
        for quarter in range(120):  # 30 seconds
            kept.add(1000 + quarter / 4, {"power_w": 250 + quarter / 1000})
        kept.append_to(path, case)
    lines = path.read_text().splitlines()
    assert path.relative_to(tmp_path).as_posix() == "telemetry/journal-rank-3.csv"
    assert lines[0] == "time_s,case,power_w,temperature_c"
    assert len(lines) == 1 + 2 * 30
    assert lines[1:3] == ["1000.000,weak[a],250,", "1001.000,weak[a],250,"]
    assert lines[31].startswith("1000.000,weak[b],")
