"""Flags: reasons against a result as evidence, each a kind with facts; `WORDS` has sentences."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.core.formats import number

# kind -> its sentence over the flag's values; a list is shown with commas
WORDS = {
    # flags of a launch
    "oversubscribed": "oversubscribed: the ranks run {threads} threads on {cores} cores",
    "mixed-devices": "mixed devices: the ranks run on different devices: {devices}",
    "debug-detail": "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective and slows the steps; "
    "unset it",
    "nccl-log": "{settings} logs every collective and slows the steps; unset it",
    "dropped-environment": "the job's environment variable(s) {names} did not reach the image; set "
    "them under [env] in the site file",
    "sockets-beside-infiniband": "NCCL uses sockets for {links} links between ranks, although the "
    "nodes have {devices}{environment}; check NCCL_IB_HCA, and "
    "whether the image has libibverbs or the libfabric plugin",
    "no-gpu-direct": "NCCL does not use GPU-direct: it copies the data of {links} links between "
    "nodes through host memory ({transports}){environment}; check "
    "NCCL_NET_GDR_LEVEL and the kernel module nvidia_peermem",
    "no-peer-to-peer": "ranks {ranks} on {host} exchange data by {transport}, not from GPU to "
    "GPU{environment}; check NCCL_P2P_LEVEL and the output of nvidia-smi topo -m",
    "clock-off": "the clock of {host} differs by {offset_s:.0f} s from the clock of rank 0's host",
    "git-dirty": "the checkout of the benchmark suite has uncommitted changes",
    "moved": "the launch was resumed on other hosts: its cases ran on {hosts}",
    "unequal-threads": "ranks have different numbers of threads: {threads}",
    # flags of a case
    "loader-oversubscribed": "oversubscribed: {workers} loader workers run on {cores} cores",
    "bf16-emulated": "bf16 is emulated: this CPU has neither avx512_bf16 nor amx_bf16",
    "parameter-dtypes": "the parameters are {dtypes}, but precision {precision} keeps parameters "
    "in torch.float32",
    "left-behind": "on rank {rank}, the case changed {what} from {before} to {after}; Lockstep "
    "restored the old value",
    "left-in-place": "on rank {rank}, the case changed {what} from {before} to {after}; the "
    "following cases are measured with the new value",
    "ran-beside": "the {what}, which the earlier case {case} started, still ran on rank {rank} "
    "and used {cores} cores; end the {what} at the end of the earlier case",
    "ran-under": "the earlier case {case} had changed {what} from {before} to {after} on rank "
    "{rank}, and this case ran with {after}; restore the old value at the end of {case}",
    "smaller-batch": "the case was measured with {measured} samples per rank, because rank {rank} "
    "on {host} had no memory for {asked} samples; this point is not compared with others",
    "other-samples": "the test gave samples={samples}, but each tensor of a batch holds {items} "
    "items; set samples to the number of samples in a batch",
    "wide-margin": "after {rounds} rounds the margin of error is {margin:.2%}, which is still "
    "above the goal of {goal:.2%}",
    "no-margin": "a single round gives no margin of error, so the goal of {goal:.2%} was not "
    "checked; measure two or more rounds",
    "throttled": "throttled: the device of rank {rank} on {host} lowered its clocks ({reasons})",
    "cpu-quota": "a CPU quota stopped processes of rank {rank} on {host} for {held_s:.2g} s during "
    "the timed rounds; request as many cores as the ranks have threads",
    "straggler": "straggler: rank {rank} on {host} takes {ratio:.2f} times as long as the other "
    "ranks for its own work in a step",
    "late-input": "late input: rank {rank} on {host} waits {wait_s} per step for its batch, "
    "but the other ranks wait only {others_s} (median); check that node's file "
    "system and cores, and that rank's share of the data",
    "own-waits": "{collectives} collectives run in each step even under no_sync(). The ranks "
    "wait for each other in these collectives, so Lockstep cannot name slow ranks "
    "or the cause of lost time; measure a step without these collectives, and use "
    "no_sync() instead of require_backward_grad_sync",
    # flags of a case's rounds
    "long-round": "long round: the longest round takes {longest_s:.3g} s, but the median round "
    "takes {median_s:.3g} s. The excess time is {share:.0%} of the time of all "
    "rounds and distorts rates and device-hours; measure this launch again",
    "two-modes": "two modes: the rounds form two groups that differ by {apart:.0%}; measure again "
    "on idle nodes with --rounds {rounds} to see whether both groups remain",
    "warm-up-drift": "warm-up drift: the last third of the rounds takes {change:.0%} less time "
    "than the first third; measure again with --warmup-rounds {rounds}, or "
    "warmup_rounds = {rounds} in the campaign file",
    "slows-down": "slowdown: the last third of the rounds takes {change:.0%} more time than the "
    "first third, perhaps because of throttling or other load; measure again with "
    "--rounds {rounds}, and watch clock rates and load meanwhile",
    # flags of a point's launches
    "outlier": "outlier: launch {launch} is {change} than the point's median, but still counts; "
    "before you leave the launch out, measure it again on the same nodes and on other nodes",
    "trend": "trend: throughput changes by {change:+.0%} from the first third of the launches "
    "to the last third; measure again with more repeats (lockstep run interleaves them)",
    # flags of an imported line
    "warm-up-only": "this run has only one epoch, which is its warm-up",
    "logged-rate": "the logged images_per_sec is {factor:.3g} times the rate that follows from the "
    "epoch times, so throughput is computed as {images} images / epoch time",
    "note": "{text}",
}
# Kinds that shift all launches of a point alike: no interval over launches shows the shift.
SYSTEMATIC = frozenset({
    "debug-detail", "nccl-log", "moved", "left-in-place", "throttled", "cpu-quota",
    "warm-up-drift", "slows-down", "trend",
})  # fmt: skip


def threads_at_sizes(threads: Mapping[str, list[int]]) -> str:
    """Return threads of a rank at each world size: 8 threads at world size 1, 4 at 2."""
    first, *others = ((size, " and ".join(map(str, counts))) for size, counts in threads.items())
    noun = "thread" if first[1] == "1" else "threads"
    texts = [f"{first[1]} {noun} at world size {first[0]}"]
    return ", ".join([*texts, *(f"{counts} at {size}" for size, counts in others)])


def _set_by_user(settings: list[str]) -> str:
    variables = ", ".join(settings)
    return f" (unset {variables} in the environment)"


def _milliseconds(seconds: float) -> str:
    return f"{number(seconds, scale=1e3)} ms"


# How to print a field that `str` would not print well.
_OWN: dict[tuple[str, str], Callable[[Any], str]] = {
    ("unequal-threads", "threads"): threads_at_sizes,
    ("late-input", "wait_s"): _milliseconds,
    ("late-input", "others_s"): _milliseconds,
    ("moved", "hosts"): lambda groups: " and ".join(map("+".join, groups)),
    ("outlier", "change"): lambda x: f"{abs(x):.0%} {'faster' if x > 0 else 'slower'}",
    ("sockets-beside-infiniband", "environment"): _set_by_user,
    ("no-gpu-direct", "environment"): _set_by_user,
    ("no-peer-to-peer", "environment"): _set_by_user,
}


def _shown(kind: str, name: str, value: object) -> object:
    if own := _OWN.get((kind, name)):
        return own(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):  # name of a function -> its module
        return ", ".join(f"{key} of {each}" for key, each in value.items())
    return value


# Beginning of a sentence in older files -> its kind; loader workers and ranks share one.
# They do not change with `WORDS`.
_BEGINNINGS = {
    "the suite's checkout": "git-dirty",
    "bf16 is emulated": "bf16-emulated",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": "debug-detail",
    "its only epoch": "warm-up-only",
    "oversubscribed: ": "oversubscribed",
    "straggler: ": "straggler",
    "throttled: ": "throttled",
    "logged images_per_sec ": "logged-rate",
}


@dataclass(frozen=True)
class Flag:
    """A reason against a result."""

    kind: str  # a key of `WORDS`, or a kind of a later version
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if "text" in self.values:
            return str(self.values["text"])
        try:
            shown = {name: _shown(self.kind, name, value) for name, value in self.values.items()}
            return WORDS[self.kind].format_map({"environment": ""} | shown)
        except (AttributeError, KeyError, TypeError, ValueError):  # a kind of a later version
            facts = (f"{name}={value}" for name, value in self.values.items())
            return " ".join([self.kind, *facts])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.values}


def flag(kind: str, **values: Any) -> Flag:
    assert kind in WORDS, kind
    return Flag(kind, values)


def read(value: object) -> Flag:
    """Return a flag that JSON holds; the first files held sentences."""
    if isinstance(value, Mapping):
        return Flag(str(value.get("kind")), {k: v for k, v in value.items() if k != "kind"})
    text = str(value)
    kinds = (kind for start, kind in _BEGINNINGS.items() if text.startswith(start))
    return Flag(next(kinds, "note"), {"text": text})


def has(flags: Iterable[Flag], kind: str) -> bool:
    return any(flag.kind == kind for flag in flags)


def to_dicts(flags: Iterable[Flag]) -> list[dict[str, Any]]:
    """Return flags as a report's JSON holds them, each with its words."""
    return [flag.to_dict() | {"words": str(flag)} for flag in flags]
