"""Which types and ranges the fields of result files may have, and how others are refused."""

from collections.abc import Mapping
from typing import Any

Types = Mapping[str, tuple[type, ...]]

# What a reader may rely on; the published schema says the same and more.
_WHOLE = (int,)
_NUMBER = (int, float, type(None))
_TEXT_OR_NONE = (str, type(None))
_WHOLE_OR_NONE = (int, type(None))
RECORD: Types = {
    "study": (str,), "workload": (str,), "scaling": _TEXT_OR_NONE, "world_size": _WHOLE,
    "num_nodes": _WHOLE, "factors": (dict,), "sample_unit": (str,), "samples_per_step": _WHOLE,
    "steps_per_round": _WHOLE, "rank_round_s": (list,), "precision": _TEXT_OR_NONE,
    "local_batch": _WHOLE_OR_NONE, "global_batch": _WHOLE_OR_NONE, "flop_per_sample": _NUMBER,
    "peak_flop_per_s": _NUMBER, "peak_memory_bytes": (list,), "checks": (dict,),
    "details": (dict,), "flags": (list,), "rank_hosts": (list,),
    "workload_sha256": _TEXT_OR_NONE, "position": _WHOLE_OR_NONE,
}  # fmt: skip
LAUNCH: Types = {
    "provenance": (dict, type(None)), "world_size": _WHOLE_OR_NONE,
    "expected": (list, type(None)), "skipped": (list, type(None)), "failed": (list, type(None)),
    "part": (list, type(None)),
}  # fmt: skip
PROVENANCE: Types = {
    "ranks": (list, type(None)), "environment": (dict, type(None)),
    "device_names": (list, type(None)),
}  # fmt: skip
# A launch that a campaign has planned.
PLANNED: Types = {"name": (str,), "world_size": _WHOLE}
# A world size that the campaign's machine could not measure.
LEFT_OUT: Types = {"world_size": _WHOLE, "num_gpus": _WHOLE}
# What panels compute with, of what a study adds.
DETAILS: Types = {
    "message_bytes": _NUMBER, "algbw_gb_per_s": _NUMBER, "busbw_gb_per_s": _NUMBER,
    "gradient_bytes": _NUMBER,
    "bucket_bytes": (list, type(None)), "alone_step_s": (list, type(None)),
    "rank_alone_s": (list, type(None)),
}  # fmt: skip
STATS: Types = {
    **dict.fromkeys(("median", "mean", "min", "max", "stddev"), (int, float)), "rounds": _WHOLE,
}  # fmt: skip
TABLE: Types = {
    "rows": (list,), "notes": (list, type(None)), "metric": _TEXT_OR_NONE, "unit": _TEXT_OR_NONE,
    "scaling_text": _TEXT_OR_NONE, "source": _TEXT_OR_NONE,
}  # fmt: skip
ROW: Types = {
    **dict.fromkeys(("launch", "case", "study", "workload", "sample_unit", "origin"), (str,)),
    **dict.fromkeys(("scaling", "precision"), _TEXT_OR_NONE),
    **dict.fromkeys(("num_nodes", "local_batch", "global_batch", "rounds"), _WHOLE_OR_NONE),
    **dict.fromkeys(("samples_per_step", "steps_per_round"), _WHOLE_OR_NONE),
    **dict.fromkeys(("step_s", "mean_step_s", "min_step_s", "max_step_s"), _NUMBER),
    **dict.fromkeys(("stddev_step_s", "time_s", "throughput_samples_per_s"), _NUMBER),
    **dict.fromkeys(("mfu", "peak_memory_bytes"), _NUMBER),
    **dict.fromkeys(("factors", "checks", "details"), (dict,)),
    "world_size": _WHOLE, "rate": (int, float), "flags": (list,),
}  # fmt: skip
# What the lists among them hold.
_LISTED: Types = {
    "ranks": (dict,), "launches": (dict,), "left_out": (dict,), "skipped": (dict,),
    "failed": (dict,), "rows": (dict,),
    **dict.fromkeys(("bucket_bytes", "alone_step_s"), (int, float)),
    "rank_alone_s": (list,),
    "peak_memory_bytes": _NUMBER, "notes": (str,), "flags": (str, dict), "part": _WHOLE,
    "rank_hosts": (str,),
}  # fmt: skip
# No count, rate or ratio of any machine is larger.
LARGEST_NUMBER = 1e30
SMALLEST_NUMBER = 1 / LARGEST_NUMBER
# Characters of a wrong value that a message shows.
LONGEST_SHOWN = 80


def check(holder: Mapping[str, Any], types: Types, where: str) -> None:
    """Refuse a value, or a value in a list, that is not what a reader relies on.

    Args:
        holder: What a file has.
        types: The types of its fields that are relied on; others are not looked at.
        where: The file, and the place in it, for the message.

    Raises:
        ValueError: A value is of another type, or no number that can be counted or measured.
    """
    for name, allowed in types.items():
        if name not in holder:
            continue
        value = holder[name]
        if not _is_good(value, allowed):
            raise ValueError(
                f"{where}: {name} is {_short(value)}, which its type or range does not allow"
            )
        inner = _LISTED.get(name) if value else None
        for one in value if inner else ():
            if not _is_good(one, inner or ()):
                raise ValueError(
                    f"{where}: {name} holds {_short(one)}, which its type or range does not allow"
                )


def _is_good(value: object, allowed: tuple[type, ...]) -> bool:
    """Tell whether a value is of a type, and as a number one that can be counted or measured."""
    if not isinstance(value, allowed):
        return False
    return not isinstance(value, (int, float)) or 0 <= value <= LARGEST_NUMBER


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
