"""What the variables of NCCL, Gloo and torch.distributed may be, and what is said of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.before.lint.variables import GONE, KNOWN, problems

INTERFACES = ("lo", "eth0", "eth1", "ib0")
# variable and value -> the kind of the problem, a part of its message, its action
WRONG = {
    "NCCL_P2P_LEVEL=NVLINK": ("value", "LOC, NVL, PIX, PXB, PHB, SYS or a legacy", "set it to NVL"),
    "NCCL_P2P_LEVEL=nvl": ("value", "NCCL_P2P_LEVEL=nvl is not a valid value", "set it to NVL"),
    "NCCL_NET_GDR_LEVEL=NVL": ("value", "LOC, PIX, PXB, PHB, SYS", "unset it"),
    "NCCL_DEBUG=VERBOSE": ("value", "VERSION, WARN, ATTN, INFO", "unset it"),
    "NCCL_IB_TIMEOUT=32": ("value", "a whole number from 0 to 31", "set it to one of these"),
    "NCCL_IB_DISABLE=yes": ("value", "a whole number from 0 to 1", "set it to one of these"),
    "NCCL_BUFFSIZE=4M": ("value", "a whole number from 1", "set it to one of these"),
    "NCCL_NTHREADS=100": ("value", "64, 128, 256, 512", "unset it"),
    "NCCL_ALGO=allreduce:tre": ("value", "Ring, Tree, Collnet", "set it to one of these"),
    "NCCL_DEBUG_SUBSYS=INIT,NETS": ("value", "INIT, COLL, P2P", "set it to one of these"),
    "NCCL_NSOCKS_PERTHREAD=65": ("value", "a whole number from 1 to 64", "set it to one of these"),
    "NCCL_NSOCKS_PERTHREAD=08": ("value", "a whole number from 1 to 64", "set it to one of these"),
    "NCCL_SOCKET_NTHREADS=020x1": ("value", "a whole number from 1 to 16", "set it to one of"),
    "NCCL_IB_TIMEOUT=040": ("value", "a whole number from 0 to 31", "set it to one of these"),
    "NCCL_TIMEOUT=7200": ("name", "has no effect", "--comm-timeout to Lockstep"),
    "NCCL_ASYNC_ERROR_HANDLING=1": ("name", "was renamed", "use TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    "NCCL_BLOCKING_WAIT=1": ("name", "was renamed in PyTorch 2.2", "use TORCH_NCCL_BLOCKING_WAIT"),
    "NCCL_IB_GDR_LEVEL=SYS": ("name", "was renamed in NCCL 2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_SOCKET_IFNAMES=eth0": (
        "name",
        "is not in NCCL's doc",
        "did you mean NCCL_SOCKET_IFNAME?",
    ),
    "NCCL_MAGIC=1": ("name", "is not in NCCL's documentation", "remove it, unless a plugin"),
    "TORCH_NCCL_BLOCKING_WAITS=1": ("name", "is not", "did you mean TORCH_NCCL_BLOCKING_WAIT?"),
    "NCCL_SOCKET_IFNAME=ib1": ("interface", "which has eth0, eth1, ib0, lo", "srun ip -brief link"),
    "NCCL_SOCKET_IFNAME==ib": ("interface", "matches no interface of this machine", "srun ip"),
    "NCCL_SOCKET_IFNAME=^lo,e,i": ("interface", "matches no interface of this machine", "srun ip"),
    "NCCL_SOCKET_IFNAME=^=lo,eth0,eth1,ib0": ("interface", "matches no interface", "srun ip"),
    "GLOO_SOCKET_IFNAME=eth0,eth9": ("interface", "matches no interface", "srun ip"),
    "GLOO_SOCKET_IFNAME=eth": ("interface", "matches no interface", "srun ip"),
    "NCCL_SOCKET_IFNAME=eth0,^lo": ("value", "allowed: [^][=]NAME[,NAME...]", "unset it"),
    "NCCL_SOCKET_IFNAME==^lo": ("value", "allowed: [^][=]NAME", "unset it"),
    "NCCL_SOCKET_IFNAME=eth0,,ib0": ("value", "allowed: [^][=]NAME", "unset it"),
    "NCCL_SOCKET_IFNAME=^": ("value", "allowed: [^][=]NAME", "unset it"),
    "NCCL_SOCKET_IFNAME=eth0 ib0": ("value", "allowed: [^][=]NAME", "unset it"),
    "GLOO_SOCKET_IFNAME=^lo": ("value", "allowed: NAME[,NAME...]", "unset it"),
    "NCCL_DEBUG=TRACE": ("slow", "writes a log during timed steps", "use WARN"),
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": ("slow", "checks every collective", "unset it"),
}
RIGHT = [
    *("NCCL_P2P_LEVEL=NVL", "NCCL_P2P_LEVEL=5", "NCCL_NET_GDR_LEVEL=SYS", "NCCL_DEBUG=warn"),
    *("NCCL_IB_HCA==mlx5_0:1,mlx5_1:1", "NCCL_IB_TIMEOUT=0x14", "NCCL_IB_GID_INDEX=-1"),
    *("NCCL_IB_TIMEOUT=037", "NCCL_IB_PKEY=0", "NCCL_IB_DISABLE=00", "NCCL_DEBUG=info"),
    "NCCL_PROTO=^LL128",
    *("NCCL_DEBUG_SUBSYS=ALL,^COLL", "NCCL_SOCKET_IFNAME=eth", "NCCL_SOCKET_IFNAME=ens,ib"),
    *("NCCL_SOCKET_IFNAME==eth0,eth7", "NCCL_SOCKET_IFNAME=^docker,lo", "NCCL_SOCKET_IFNAME=^=lo"),
    *("GLOO_SOCKET_IFNAME=eth0,ib0", "NCCL_VERSION=2.27.3", "NCCL_FASTRAK_NUM_FLOWS=2"),
    *("TORCH_NCCL_OF_TOMORROW=1", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "NCCL_P2P_DISABLE="),
    *("NCCL_P2P_LEVEL=$LEVEL", "PATH=/bin", "TORCH_DISTRIBUTED_DEBUG=INFO"),
]


def setting(text):
    name, _, value = text.partition("=")
    return {name: value}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_what_is_allowed_and_what_to_do(text):
    (found,) = problems(setting(text), INTERFACES)
    kind, message, action = WRONG[text]
    assert {found.name: found.value} == setting(text)
    assert found.kind == kind
    assert message in found.message
    assert found.name in found.message
    assert action in found.action


@pytest.mark.parametrize("text", RIGHT)
def test_what_is_right_is_passed_over(text):
    assert problems(setting(text), INTERFACES) == []


def test_interfaces_that_are_not_known_are_not_missed():
    assert problems({"NCCL_SOCKET_IFNAME": "ib7", "GLOO_SOCKET_IFNAME": "ib7"}) == []


def test_sockets_and_threads_are_judged_together():
    sixteen = {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "4"}
    assert problems(sixteen) == []
    (found,) = problems(sixteen | {"NCCL_NSOCKS_PERTHREAD": "5"})
    assert "=5 x NCCL_SOCKET_NTHREADS=16 is more than 64" in found.message
    assert problems({"NCCL_SOCKET_NTHREADS": "010", "NCCL_NSOCKS_PERTHREAD": "0x8"}) == []
    for bad in ("08", "many", "-1", "99999999"):
        (found,) = problems(sixteen | {"NCCL_NSOCKS_PERTHREAD": bad})
        assert "is not a valid value" in found.message
        (found,) = problems(sixteen | {"NCCL_SOCKET_NTHREADS": bad})
        assert found.name == "NCCL_SOCKET_NTHREADS"


def test_a_log_of_the_start_alone_slows_nothing():
    starting = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    assert problems(starting) == []
    assert problems(starting | {"NCCL_DEBUG_SUBSYS": ""}) == []
    assert problems({"NCCL_DEBUG": "INFO"}) == []
    for more in ("INIT,COLL", "ALL", "^COLL"):
        (found,) = problems(starting | {"NCCL_DEBUG_SUBSYS": more})
        assert (found.name, found.kind) == ("NCCL_DEBUG", "slow")
        assert "writes a log during timed steps" in found.message
    assert len(problems(starting | {"NCCL_DEBUG": "TRACE"})) == 1


def test_no_variable_is_both_known_and_gone():
    assert not KNOWN.keys() & GONE.keys()


names = st.lists(st.sampled_from(INTERFACES), min_size=1, unique=True).map(",".join)


@given(st.sampled_from(["", "="]), names)
def test_interfaces_of_the_machine_are_found_by_name_and_by_prefix(prefix, listed):
    assert problems({"NCCL_SOCKET_IFNAME": prefix + listed}, INTERFACES) == []
    assert problems({"GLOO_SOCKET_IFNAME": listed}, INTERFACES) == []


@given(
    st.dictionaries(
        st.sampled_from([*KNOWN, *GONE]) | st.text(max_size=20).map("NCCL_".__add__),
        st.sampled_from(["08", "010", "0x8"])
        | st.text(max_size=30)
        | st.from_regex(r"[-^=:;,xX0-9A-Z]{0,12}", fullmatch=True),
        max_size=6,
    )
)
def test_any_environment_is_judged(environ):
    for found in problems(environ, INTERFACES):
        assert environ[found.name] == found.value
        assert found.message
        assert found.action
