import json
import re
import socket
import sys
from dataclasses import asdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lockstep.before.doctor.doctor_cli import doctor as command
from lockstep.machine import network, nvidia, system


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return system.system_facts(tmp_path_factory.mktemp("work"))


@pytest.fixture
def kernel(tmp_path):
    """A tree like /sys/class: one real link, one virtual one, one bond, one InfiniBand port."""
    for name, speed in (("eth0", "25000\n"), ("veth1", "10000\n"), ("bond0", "-1\n")):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "speed").write_text(speed)
    (tmp_path / "net/eth0/device").mkdir()
    (tmp_path / "net/bond0/bonding").mkdir()
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("InfiniBand\n")
    return tmp_path


def test_the_entry_is_complete_and_of_this_machine(facts):
    text = system.to_markdown(facts)
    assert text.startswith(f"## {socket.gethostname()}\n")
    assert not re.search(r"TBD|TODO|None|unknown|\?\?|\|\s*\|$", text, re.MULTILINE)
    for title in ("Hardware", "Network", "Software", "Settings"):
        assert f"\n### {title}\n" in text
    assert facts["hardware"]["memory_bytes"] > 2**28
    assert facts["hardware"]["hardware_threads"] >= 1
    assert facts["software"]["python"] == ".".join(str(n) for n in sys.version_info[:3])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d\d:\d\d", facts["date"])
    assert json.loads(json.dumps(facts)) == facts


def test_it_works_without_torch_and_without_tools(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", "")
    facts = system.system_facts(tmp_path)
    assert facts["software"]["torch"] is facts["software"]["slurm"] is None
    assert facts["partitions"] == []
    text = system.to_markdown(facts)
    assert "| torch | - |" in text
    assert "| Usable from torch | - |" in text
    assert "### Slurm partitions" not in text


def test_the_network_is_that_of_hardware(facts, kernel, tmp_path):
    network_facts = system.network_facts(kernel)
    assert network_facts["interfaces"] == [
        {"name": "bond0", "speed_gbit_per_s": None},
        {"name": "eth0", "speed_gbit_per_s": 25.0},
    ]
    text = system.to_markdown(facts | {"network": network_facts})
    assert "| Interface bond0 | - |\n| Interface eth0 | 25 Gbit/s |\n" in text
    assert "| mlx5_0 port 1 | InfiniBand, 200 Gb/sec (4X HDR), 4: ACTIVE |" in text
    text = system.to_markdown(facts | {"network": system.network_facts(tmp_path / "empty")})
    assert "| InfiniBand | no InfiniBand |" in text


def test_gpus_are_read_and_equal_ones_counted(facts):
    listing = "NVIDIA H200, 143771, 570.86.15\nNVIDIA H200, 143771, 570.86.15"
    gpus = nvidia.parse_gpus(listing)
    assert gpus[0] == nvidia.Gpu("NVIDIA H200", 143771 * 1024 * 1024, "570.86.15")
    hardware = facts["hardware"] | {"gpus": list(map(asdict, gpus))}
    text = system.to_markdown(facts | {"hardware": hardware})
    assert "| GPUs | 2 x NVIDIA H200, 140.4 GiB |" in text
    (gpu,) = nvidia.parse_gpus("NVIDIA GB10, [N/A], 580.95.05")  # without memory of its own
    assert gpu.memory_bytes is None


def test_a_value_cannot_break_the_table(facts):
    facts = facts | {"settings": facts["settings"] | {"environment": {"NCCL_X": "a|b\n<i>"}}}
    assert "| NCCL_X | a\\|b &lt;i> |" in system.to_markdown(facts).splitlines()


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path):
    assert network.file_system(Path("/proc/1")) == "proc"
    kind = network.file_system(tmp_path)
    assert network.file_system(tmp_path / "not" / "there") == kind != "proc"


def test_entries_are_renewed_in_place_and_others_kept():
    first = system.merge_entry("", "## node1\n\nold\n")
    assert first.startswith("# Systems\n")
    both = system.merge_entry(first, "## node10\n\nother\n")
    renewed = system.merge_entry(both, "## node1\n\nnew\n")
    assert "old" not in renewed
    assert renewed.index("## node1\n\nnew\n") < renewed.index("## node10\n\nother\n")
    assert system.merge_entry(renewed, "## node1\n\nnew\n") == renewed
    text = "# Our cluster\n\nIt hums.\n"
    assert system.merge_entry(text, "## node1\n\nx\n") == text + "\n## node1\n\nx\n"


def test_the_command_prints_writes_and_renews(tmp_path):
    path = tmp_path / "SYSTEM.md"
    shown = CliRunner().invoke(command, ["--system"])
    assert shown.output.startswith("## ")
    for _ in range(2):
        assert CliRunner().invoke(command, ["--system", "--output", str(path)]).exit_code == 0
    assert path.read_text().count(f"## {socket.gethostname()}\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["SYSTEM.md"]
    assert json.loads(CliRunner().invoke(command, ["--system", "--json"]).stdout)["hardware"]
    with pytest.raises(click.UsageError, match="give either --json or --output"):
        command.main(["--system", "--json", "--output", str(path)], standalone_mode=False)


@pytest.mark.parametrize(
    ("backend", "environ", "gb_per_s"),
    [
        ("nccl", {}, 25.0),
        ("nccl", {"NCCL_IB_DISABLE": "1"}, 3.125),
        ("gloo", {"GLOO_SOCKET_IFNAME": "eth0"}, 3.125),
        ("gloo", {"GLOO_SOCKET_IFNAME": "veth1"}, None),  # its rate is nobody's
    ],
)
def test_the_wire_is_what_the_back_end_sends_through(kernel, backend, environ, gb_per_s):
    assert network.wire_gb_per_s(backend, environ, kernel) == gb_per_s
