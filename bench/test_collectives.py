import pytest

from bench.collectives import measure_collective
from bench.harness import Harness


@pytest.mark.cases("collective")
def test_collectives(harness: Harness, collective: str, message_bytes: int) -> None:
    """How fast is a collective at each message size, and where does latency end?"""
    measure_collective(harness, collective=collective, message_bytes=message_bytes)
