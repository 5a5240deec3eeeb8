"""The links in NCCL's log: lines of several releases, and lines that must not be read."""

import random
from types import SimpleNamespace

import pytest

from lockstep.launch import preflight
from lockstep.machine import nccl_log, network
from lockstep.machine.nccl_log import Link, NcclLog

V2_19 = """n1:81:81 [0] NCCL INFO NET/IB : No device found.
n1:81:81 [0] NCCL INFO NET/Socket : Using [0]eth0:10.9.0.1<0>
NCCL version 2.19.3+cuda12.3
n1:81:90 [0] NCCL INFO Using network Socket
n1:81:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
n1:82:91 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0
n2:82:91 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/Socket/0
"""
V2_27 = """[2026-01-05 10:00:01] n1:9:9 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
[2026-01-05 10:00:01] n1:9:20 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa
[2026-01-05 10:00:01] n1:9:20 [0] NCCL INFO Initialized NET plugin AWS Libfabric
[2026-01-05 10:00:02] n1:9:20 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM/read
[2026-01-05 10:00:02] n1:9:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via \
NET/AWS Libfabric/0(1)/GDRDMA(PCI)
[2026-01-05 10:00:02] n2:9:20 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [send] via \
NET/AWS Libfabric/0
[2026-01-05 10:00:02] n1:9:20 [0] graph/search.cc:1135 NCCL WARN a path was \x1b[31mlost
"""
# AMD's library says of each link which communicator it is of; a Slingshot node falls back to TCP.
RCCL_2_18 = """x1:7:7 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
x1:7:7 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
x1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to hsn
RCCL version 2.18.6+hip6.1 HEAD:0a1b2c3+
x1:7:9 [0] NCCL INFO Using network Socket
x1:7:9 [0] NCCL INFO Channel 00/0 : 0[c1000] -> 1[c6000] via P2P/IPC comm 0x7f00aa nRanks 04
x1:7:9 [0] NCCL INFO Channel 01/0 : 0[c1000] -> 1[c6000] via P2P/direct pointer comm 0x7f00aa \
nRanks 04
x1:8:9 [1] NCCL INFO Channel 00/0 : 1[c6000] -> 2[c1000] [send] via NET/Socket/0 comm 0x7f00aa \
nRanks 04
x2:7:9 [0] NCCL INFO Channel 00/0 : 2[c1000] -> 3[c6000] via SHM/direct/direct comm 0x7f00aa \
nRanks 04
"""


# libfabric without the machine's own provider is TCP under another name.
LIBFABRIC_OVER_TCP = """n1:9:9 [0] NCCL INFO NET/OFI Selected provider is tcp;ofi_rxm, fabric is eth
n1:9:9 [0] NCCL INFO Using network Libfabric
n1:9:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Libfabric/0
"""


# The card writes into the receiver's GPU, and reads nothing from the sender's.
WRITES_ONLY = """n1:9:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0
n2:9:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (V2_19, NcclLog(
            "2.19.3+cuda12.3", ("Socket",), (), (Link(0, 1, "SHM"), Link(1, 2, "NET/Socket")),
        )),
        (V2_27, NcclLog(
            "2.27.5+cuda12.9", ("AWS Libfabric",), ("efa",),
            (Link(0, 1, "P2P/CUMEM"), Link(0, 2, "NET/AWS Libfabric/GDRDMA"),
             Link(2, 0, "NET/AWS Libfabric")),
            ("a path was \\x1b[31mlost",),
        )),
        (RCCL_2_18, NcclLog(
            "2.18.6+hip6.1", ("Socket",), (),
            (Link(0, 1, "P2P/IPC"), Link(0, 1, "P2P/direct"), Link(1, 2, "NET/Socket"),
             Link(2, 3, "SHM")),
            (), ("NCCL_IB_DISABLE=1", "NCCL_P2P_LEVEL=SYS", "NCCL_SOCKET_IFNAME=hsn"),
        )),
    ],
    ids=["2.19", "2.27", "RCCL 2.18"],
)  # fmt: skip
def test_what_a_release_says(text, expected):
    assert nccl_log.parse(text) == expected
    lines = text.splitlines(keepends=True)
    assert nccl_log.merge(map(nccl_log.parse, lines)) == expected, "ranks' files, put together"


@pytest.mark.parametrize(
    "line",
    [
        "n1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CU",
        "n1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> n1:8:8 [1] NCCL INFO Connected all rings",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "\x00\xff\x7fELF NCCL INFO \x00",
    ],
)
def test_lines_that_are_cut_or_mixed_are_left_aside(line):
    assert nccl_log.parse(f"{line}\n{V2_19}") == nccl_log.parse(V2_19)
    assert nccl_log.parse(V2_19 + V2_27.splitlines()[3]) == nccl_log.parse(V2_19), "no line end"


def test_no_bytes_make_it_fail(tmp_path):
    seeded = random.Random(0)  # noqa: S311, seeded so that a failure comes again
    for number in range(200):
        junk = bytearray((V2_19 + V2_27).encode())
        for _ in range(number):
            junk[seeded.randrange(len(junk))] = seeded.randrange(256)
        (tmp_path / "log").write_bytes(junk)
        found = nccl_log.read(tmp_path / "log")
        assert {link.transport.partition("/")[0] for link in found.links} <= {"P2P", "SHM", "NET"}
    assert nccl_log.read(tmp_path / "none") == NcclLog()


@pytest.mark.parametrize(
    ("text", "hosts", "fabrics", "found"),
    [
        (V2_19, ["n1", "n1", "n2"], ["mlx5_0"], {
            "sockets-beside-infiniband": {"devices": ["mlx5_0"], "links": 1},
            "no-peer-to-peer": {"host": "n1", "ranks": [0, 1], "transport": "SHM"},
        }),
        (RCCL_2_18, ["x1", "x1", "x2", "x2"], ["cxi0"], {
            "sockets-beside-infiniband": {
                "devices": ["cxi0"], "links": 1, "environment": ["NCCL_IB_DISABLE=1"],
            },
            "no-peer-to-peer": {"host": "x2", "ranks": [2, 3], "transport": "SHM"},
        }),
        (LIBFABRIC_OVER_TCP, ["n1", "n1", "n2"], ["cxi0"], {
            "sockets-beside-infiniband": {"devices": ["cxi0"], "links": 1},
        }),
        (V2_19, ["n1", "n3", "n2"], [], {}),  # without a fabric sockets are all there is
        (V2_27, ["n1", "n1", "n2"], ["efa_0"], {
            "no-gpu-direct": {"transports": ["NET/AWS Libfabric"], "links": 1},
        }),
        (WRITES_ONLY, ["n1", "n1", "n2"], ["mlx5_0"], {}),
    ],
)  # fmt: skip
def test_what_is_slower_than_it_could_be(text, hosts, fabrics, found):
    flags = nccl_log.findings(nccl_log.parse(text), hosts, fabrics)
    assert {flag.kind: dict(flag.values) for flag in flags} == found


@pytest.mark.parametrize(
    ("asked", "listens"), [({"NCCL_DEBUG": "warn"}, True), ({"NCCL_DEBUG": "INFO"}, False)]
)
def test_it_listens_unless_other_logs_are_asked_for(tmp_path, asked, listens):
    environ = dict(asked)
    path = preflight.listen(tmp_path, 3, environ)
    assert (path is not None) == listens
    if path is None:
        assert environ == asked
        return
    assert path.read_bytes() == b""
    assert environ["NCCL_DEBUG"] == "INFO"
    assert "COLL" not in environ["NCCL_DEBUG_SUBSYS"], "or every collective would be logged"
    assert preflight.listen(tmp_path / "none", 0, {}) is None


@pytest.mark.parametrize(
    ("state", "kinds"), [("4: ACTIVE", ["sockets-beside-infiniband"]), ("1: DOWN", []), (None, [])]
)
def test_a_launch_keeps_its_links_and_what_is_against_them(monkeypatch, capsys, state, kinds):
    port = network.Port("mlx5_0", "1", state, None, "InfiniBand")
    monkeypatch.setattr(network, "infiniband_ports", lambda _classes: [port])
    control = SimpleNamespace(settle_all=lambda name, own, judge: judge([own, own]))
    world = SimpleNamespace(rank=0, control=control)
    log = nccl_log.parse(V2_19 + V2_27[-60:])
    facts, flags = preflight.settle(world, ["n1", "n3", "n2"], log)
    assert facts["transports"] == {"NET/Socket": 1, "SHM": 1}
    assert facts["links"] == [[0, 1, "SHM"], [1, 2, "NET/Socket"]]
    assert [flag.kind for flag in flags] == kinds
    assert "a path was" in capsys.readouterr().err
    assert preflight.settle(world, ["n1"], NcclLog()) == ({}, ())
