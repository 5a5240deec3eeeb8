"""Checks of the variables of NCCL, Gloo and torch.distributed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.before.lint.variables import GONE, KNOWN, problems

INTERFACES = ("lo", "eth0", "eth1", "ib0")
# kind of the problem -> settings that have it
WRONG = {
    "value": (
        *("NCCL_P2P_LEVEL=nvl", "NCCL_NET_GDR_LEVEL=NVL", "NCCL_DEBUG=VERBOSE"),
        *("NCCL_IB_TIMEOUT=040", "NCCL_IB_DISABLE=yes", "NCCL_ALGO=allreduce:tre"),
        *("NCCL_DEBUG_SUBSYS=INIT,NETS", "NCCL_SOCKET_IFNAME==^lo", "GLOO_SOCKET_IFNAME=^lo"),
    ),
    "name": (
        *("NCCL_TIMEOUT=7200", "NCCL_ASYNC_ERROR_HANDLING=1", "NCCL_IB_GDR_LEVEL=SYS"),
        *("NCCL_SOCKET_IFNAMES=eth0", "NCCL_MAGIC=1", "TORCH_NCCL_BLOCKING_WAITS=1"),
    ),
    "interface": (
        *("NCCL_SOCKET_IFNAME=ib1", "NCCL_SOCKET_IFNAME==ib", "NCCL_SOCKET_IFNAME=^lo,e,i"),
        *("NCCL_SOCKET_IFNAME=^=lo,eth0,eth1,ib0", "GLOO_SOCKET_IFNAME=eth0,eth9"),
        "GLOO_SOCKET_IFNAME=eth",
    ),
    "slow": ("NCCL_DEBUG=TRACE", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
}
RIGHT = [
    *("NCCL_P2P_LEVEL=5", "NCCL_DEBUG=warn", "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"),
    *("NCCL_IB_TIMEOUT=0x14", "NCCL_IB_GID_INDEX=-1", "NCCL_IB_DISABLE=00", "NCCL_PROTO=^LL128"),
    *("NCCL_DEBUG_SUBSYS=ALL,^COLL", "NCCL_SOCKET_IFNAME=eth", "NCCL_SOCKET_IFNAME=ens,ib"),
    *("NCCL_SOCKET_IFNAME==eth0,eth7", "NCCL_SOCKET_IFNAME=^docker,lo", "NCCL_SOCKET_IFNAME=^=lo"),
    *("GLOO_SOCKET_IFNAME=eth0,ib0", "NCCL_VERSION=2.27.3", "NCCL_FASTRAK_NUM_FLOWS=2"),
    *("TORCH_NCCL_OF_TOMORROW=1", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "NCCL_P2P_DISABLE="),
    *("NCCL_P2P_LEVEL=$LEVEL", "PATH=/bin", "TORCH_DISTRIBUTED_DEBUG=INFO"),
]


def problems_of(text):
    name, _, value = text.partition("=")
    return problems({name: value}, INTERFACES)


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in WRONG for text in WRONG[kind]])
def test_a_wrong_variable_has_a_kind(kind, text):
    (problem,) = problems_of(text)
    assert (problem.name, problem.kind) == (text.partition("=")[0], kind)
    assert problem.name in problem.message


def test_right_variables_are_no_problem():
    assert [text for text in RIGHT if problems_of(text)] == []
    # Where interfaces are not known, none is missing.
    assert problems({"NCCL_SOCKET_IFNAME": "ib7", "GLOO_SOCKET_IFNAME": "ib7"}) == []


def test_a_log_of_the_start_alone_slows_nothing():
    starting = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    assert problems(starting) == []
    assert problems(starting | {"NCCL_DEBUG_SUBSYS": ""}) == []
    assert problems({"NCCL_DEBUG": "INFO"}) == []
    for more in ("INIT,COLL", "ALL", "^COLL"):
        (found,) = problems(starting | {"NCCL_DEBUG_SUBSYS": more})
        assert (found.name, found.kind) == ("NCCL_DEBUG", "slow")
        assert "writes a log during timed steps" in found.message


NAMES = st.sampled_from([*KNOWN, *GONE]) | st.text(max_size=20).map("NCCL_".__add__)
VALUES = st.text(max_size=30) | st.from_regex(r"[-^=:;,xX0-9A-Z]{0,12}", fullmatch=True)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_environment_is_judged(environ):
    assert not KNOWN.keys() & GONE.keys()
    for problem in problems(environ, INTERFACES):
        assert problem.name in environ
        assert problem.message
        assert problem.action
