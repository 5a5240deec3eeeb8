"""Number formats: torch's switches for them, and the formats that a rank's hardware lacks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from lockstep.core.sizes import PRECISIONS

# Ampere brought TF32 and BF16 (NVIDIA, CUDA C++ Programming Guide, compute capabilities).
_AMPERE = (8, 0)
_CPU_FLAGS_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


def set_precision_switches(precision: str) -> None:
    """Set torch's global matrix-product and convolution precision for one of `sizes.PRECISIONS`.

    Only tf32 allows TF32; all others require full fp32 for what autocast leaves in fp32.
    """
    allow_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = allow_tf32


@contextlib.contextmanager
def restore_precision_switches() -> Iterator[None]:
    """At the end of the `with` block, restore the switches of `set_precision_switches`."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def why_unsupported(precision: str, device: torch.device) -> str | None:
    """Return why this rank's hardware cannot compute in a precision, or None if it can."""
    if device.type != "cuda":
        return refusal(precision, None)
    if torch.version.hip:
        why = "tf32 needs an NVIDIA GPU; this rank runs on an AMD GPU"
        return why if precision == "tf32" else None
    return refusal(precision, torch.cuda.get_device_capability(device))


def refusal(precision: str, capability: tuple[int, int] | None) -> str | None:
    """Return why an NVIDIA GPU of a compute capability, or a CPU (None), lacks a precision."""
    if precision == "fp16" and capability is None:
        return "fp16 needs a GPU, but this rank runs on a CPU"
    # A CPU may compute bf16 (see `is_emulated`); TF32 exists on NVIDIA GPUs only.
    exempt = ("fp32", "fp16") if capability else ("fp32", "bf16")
    if precision in exempt or (capability is not None and capability >= _AMPERE):
        return None
    here = f"compute capability {capability[0]}.{capability[1]}" if capability else "a CPU"
    return (
        f"{precision} needs an NVIDIA GPU of compute capability 8.0 or newer; "
        f"this rank runs on {here}"
    )


def is_emulated(precision: str, device: torch.device) -> bool:
    """Return whether the device computes a precision in software; False if that is unknown."""
    if precision != "bf16" or device.type != "cpu":
        return False
    flags = _cpu_flags()
    return bool(flags) and not flags & _CPU_FLAGS_BF16


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = (line for line in lines if line.lower().startswith(("flags", "features")))
    return frozenset(next(flags, "").partition(":")[2].split())


def find_unsupported(device: torch.device, chosen: str) -> dict[str, str]:
    """Return precision -> why this rank's hardware cannot measure it.

    An emulated precision takes minutes a step, so it is measured only if it is `chosen`.
    """
    reasons = {precision: why_unsupported(precision, device) for precision in PRECISIONS}
    for precision in PRECISIONS:
        if precision != chosen and is_emulated(precision, device):
            reasons[precision] = (
                f"this CPU computes {precision} in software, which is slow; give --precision "
                f"{precision} to measure it anyway"
            )
    return {precision: reason for precision, reason in reasons.items() if reason}
