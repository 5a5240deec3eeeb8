"""The words of a recorded campaign: what was measured there, and what is a stand-in."""

from collections.abc import Mapping
from typing import Any

from lockstep.vocabulary.text.formats import counted, number

BIT_PER_MBIT = 1e6


def label(facts: Mapping[str, Any]) -> str:
    """Return what a page says of a recording.

    Args:
        facts: `kind`, which is `links` for nodes of one machine that links of a known rate join;
            then `num_nodes`, `rate_bit_per_s`, and `ms_per_item` where the devices are stand-ins.
    """
    begin = "A recorded campaign, not measured on this machine"
    if facts.get("kind") != "links":
        return f"{begin}."
    nodes = counted(int(facts["num_nodes"]), "node")
    rate = number(float(facts["rate_bit_per_s"]) / BIT_PER_MBIT)
    text = f"{begin}: {nodes} made on one machine, joined by links of {rate} Mbit/s."
    if wait := facts.get("ms_per_item"):
        text += (
            f" Ranks, DDP, all-reduce and network are real; each rank's device is a stand-in that "
            f"waits {number(float(wait))} ms a sample in place of computing."
        )
    return f"{text} It shows what a page says, and is no evidence for a proposal."
