"""The factors of the studies' cases, and the values that `--set` or `[factors]` may give them."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence

from lockstep.core import sizes, studies
from lockstep.core.sizes import Factors, Size, Value

DATASETS = ("tensor", "memmap", "files")
# A comma before `name=` belongs to a workload's options, as in mlp:width=64,depth=2.
_BETWEEN = re.compile(r",(?!\w+=)")


def _count(value: Value) -> bool:
    return type(value) is int and 1 <= value <= sizes.MAX_COUNT


def _number(value: Value) -> bool:
    return type(value) in (int, float) and 0 < float(value) <= sizes.MAX_COUNT


def _one_of(*names: str) -> tuple[str, Callable[[Value], bool]]:
    return f"one of {', '.join(names)}", lambda value: value in names


_Rule = tuple[str, Callable[[Value], bool]]
_COUNTS = (
    "global_batch", "local_batch", "accumulation", "prefetch_factor", "message_bytes", "epochs",
    "checkpoint_every", "base_batch", "num_synthetic", "max_steps",
)  # fmt: skip
_SWITCHES = (
    "no_sync", "activation_checkpointing", "fused", "pin_memory", "persistent_workers", "augment",
)  # fmt: skip
# factor -> description of its values, and whether a value is allowed
KNOWN: dict[str, _Rule] = {
    "workload": ("a model's name", lambda value: isinstance(value, str) and bool(value)),
    "precision": _one_of(*sizes.PRECISIONS),
    "strategy": _one_of(*sizes.STRATEGIES),
    "dataset": _one_of(*DATASETS),
    "cache": _one_of(*sizes.CACHES),
    "collective": _one_of(*sizes.COLLECTIVES),
    "data": _one_of(*sizes.DATA),
    "optimizer": _one_of(*sizes.OPTIMIZERS),
    "lr_scale": _one_of(*sizes.LR_SCALES),
    "scheduler": _one_of(*sizes.SCHEDULERS),
    "target_accuracy": ("a number above 0 and at most 1", lambda v: _number(v) and float(v) <= 1),
} | {
    **dict.fromkeys(_COUNTS, (f"a whole number from 1 to {sizes.MAX_COUNT}", _count)),
    **dict.fromkeys(_SWITCHES, ("true or false", lambda value: isinstance(value, bool))),
    **dict.fromkeys(("bucket_cap_mb", "lr"), ("a number above 0", _number)),
    **dict.fromkeys(
        ("weight_decay", "momentum"), ("a number of 0 or more", lambda v: v == 0 or _number(v))
    ),
    **dict.fromkeys(
        ("num_workers", "warmup_epochs", "seed"),
        ("a whole number of 0 or more", lambda v: v == 0 or _count(v)),
    ),
}


def check(factors: Mapping[str, Sequence[Value]]) -> Factors:
    """Return the factors as a size keeps them; refuse an unknown factor or value."""
    for name, values in factors.items():
        if name not in KNOWN:
            known = ", ".join(KNOWN)
            raise ValueError(f"there is no factor {name!r}; choose from {known}")
        allowed, is_allowed = KNOWN[name]
        for value in values:
            if not is_allowed(value):
                raise ValueError(f"{name}={value} is not {allowed}")
        if not values or len(set(values)) < len(values):
            all_values = _joined(values)
            raise ValueError(
                f"{name}={all_values} is not allowed; give at least one value, and each value only "
                "once"
            )
    return tuple((name, tuple(values)) for name, values in factors.items())


def parse(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Return the factors of several `NAME=VALUE,VALUE`, unchecked; values of one name add up."""
    factors: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise ValueError(
                f"{text!r} is not of the form NAME=VALUE,VALUE, such as bucket_cap_mb=1,5,10"
            )
        factors[name] = factors.get(name, ()) + tuple(map(_value, _BETWEEN.split(values)))
    return factors


def format_options(factors: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return `NAME=VALUE,VALUE` of each factor, as `parse` reads it."""
    return [f"{name}={_joined(values)}" for name, values in factors.items()]


def study_of(names: Sequence[str], offered: Sequence[str], size: Size) -> str:
    """Return the study that varies least besides these factors; offered studies come first."""

    def merit(study: str) -> tuple[bool, int, int, bool]:
        rows = studies.rows(study, size)
        varied = {name for name in rows[0] if len({row[name] for row in rows}) > 1}
        is_offered = study in offered
        # Whole epochs are no answer to a question about a step.
        is_far = studies.STUDIES[study].is_training and not is_offered
        return is_far, len(varied - {*names}), -len(varied & {*names}), not is_offered

    having = [study for study in studies.NAMES if has_factors(study, names, size)]
    if not having:
        given = ", ".join(names)
        raise ValueError(f"no study has all of the factors {given}; set fewer factors")
    asking = [study for study in having if {*names} <= {*studies.rows(study, size)[0]}]
    return min(asking or having, key=merit)


def has_factors(study: str, names: Sequence[str], size: Size) -> bool:
    """Return whether a study exists whose cases have, or may have, all these factors."""
    if study not in studies.STUDIES:
        return False
    return {*names} <= {*studies.rows(study, size)[0], *studies.STUDIES[study].on_request}


def keep_known(
    factors: Mapping[str, tuple[Value, ...]], studies: Sequence[str], size: Size
) -> dict[str, tuple[Value, ...]]:
    """Return the factors that any of these studies has."""
    return {
        name: values
        for name, values in factors.items()
        if any(has_factors(study, [name], size) for study in studies)
    }


def _value(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def format_value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(values: Sequence[Value]) -> str:
    return ",".join(map(format_value, values))
