"""What nvidia-smi says of the GPUs; it needs neither torch nor a library of Python's."""

from dataclasses import dataclass

from lockstep.core.system import commands
from lockstep.core.system.files import MIB

TIMEOUT_S = 30
COLUMNS = "name,memory.total,driver_version"


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        name: As its driver has it, such as `NVIDIA H100 80GB HBM3`.
        driver: Version of the driver; None where another program than nvidia-smi lists it.
    """

    name: str
    memory_bytes: int | None
    driver: str | None


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine.

    Raises:
        RuntimeError: nvidia-smi is absent, fails, or does not answer in time.
    """
    query = ["nvidia-smi", f"--query-gpu={COLUMNS}", "--format=csv,noheader,nounits"]
    return parse(commands.output(query, TIMEOUT_S))


def parse(listing: str) -> list[Gpu]:
    """Read lines of nvidia-smi: name, memory in MiB, driver."""
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines()]
    return [
        Gpu(name, int(memory) * MIB if memory.isdecimal() else None, driver)
        for name, memory, driver in rows
    ]
