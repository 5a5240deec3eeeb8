"""`lockstep screen` on four nodes of one machine: names the one that is truly slowed, and no other.

`tests/validation/figures_screen.py` does the same forty times over, and slows a link as well.
"""

import pytest
from cluster import missing, need_testbed
from namespaces import is_possible
from screened import can_slow, on_testbed, over_links


# Where other tests take the cores, half a core is no slower than the others' share.
@pytest.mark.chaos
@pytest.mark.slurm
@pytest.mark.slow
def test_a_node_with_half_a_core_is_named():
    need_testbed()
    if not can_slow():
        missing("no control group can be made to slow a node")
    ended = on_testbed("node3")
    assert (ended.code, set(ended.kinds)) == (1, {"node3"})
    assert ended.is_within_promise
    assert list(ended.lines) == ["node1", "node2", "node3", "node4"]


@pytest.mark.slow
def test_a_node_with_half_a_link_is_named():
    if not is_possible():
        pytest.skip("links of a known rate need root, ip and tc")
    kinds = over_links(2).kinds
    # Where other tests take the cores, the processor of a node may be slow, too.
    assert [node for node, found in kinds.items() if "slow-link" in found] == ["node2"]
