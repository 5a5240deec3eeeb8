"""`lockstep screen` on four nodes of one machine: names the one that is truly slowed, and no other.

`tests/validation/figures_screen.py` does the same forty times over. Both run alone, since a clean
node is as slow where other tests take its cores.
"""

import pytest
from cluster import missing, need_testbed
from namespaces import is_possible
from screened import can_slow, on_testbed, over_links


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


@pytest.mark.chaos
@pytest.mark.slow
def test_a_node_with_half_a_link_is_named():
    if not is_possible():
        missing("links of a known rate need root, ip and tc")
    assert over_links(2).kinds == {"node2": {"slow-link"}}
