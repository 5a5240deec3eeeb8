import pytest

from lockstep.measure.collective_cases import measure_collective
from lockstep.measure.harness import Harness


@pytest.mark.cases("collective")
def test_collectives(lockstep: Harness, collective: str, message_bytes: int) -> None:
    """How fast is a collective at each message size, and where does latency end?"""
    measure_collective(lockstep, collective=collective, message_bytes=message_bytes)
