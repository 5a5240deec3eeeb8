"""The factors that the studies' cases have, and the values that a user may give them.

A factor is an argument of a measured case, such as `bucket_cap_mb`. `--set bucket_cap_mb=1,5,10`,
or a campaign file's table `[factors]`, puts the user's values in the place of a study's own.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from lockstep.core import sizes, studies
from lockstep.core.sizes import Factors, Size, Value

DATASETS = ("tensor", "memmap", "files")
# A comma before `name=` belongs to a workload's options, as in mlp:width=64,depth=2.
_BETWEEN = re.compile(r",(?!\w+=)")
_WORDS: dict[str, Value] = {"true": True, "false": False}


def _count(value: Value) -> bool:
    return type(value) is int and 1 <= value <= sizes.MAX_COUNT


def _number(value: Value) -> bool:
    return type(value) in (int, float) and 0 < float(value) <= sizes.MAX_COUNT


def _one_of(*names: str) -> tuple[str, Callable[[Value], bool]]:
    return f"one of {', '.join(names)}", lambda value: value in names


_COUNT = (f"a whole number from 1 to {sizes.MAX_COUNT}", _count)
_WHOLE = ("a whole number from 0", lambda value: value == 0 or _count(value))
_FROM_0 = ("a number from 0", lambda value: value == 0 or _number(value))
_SWITCH = ("true or false", lambda value: isinstance(value, bool))
# factor -> what it may be, and whether a value is that
KNOWN: dict[str, tuple[str, Callable[[Value], bool]]] = {
    "workload": ("a model's name", lambda value: isinstance(value, str) and bool(value)),
    "precision": _one_of(*sizes.PRECISIONS),
    "global_batch": _COUNT,
    "local_batch": _COUNT,
    "bucket_cap_mb": ("a number of MiB above 0", _number),
    "accumulation": _COUNT,
    "no_sync": _SWITCH,
    "strategy": _one_of(*sizes.STRATEGIES),
    "activation_checkpointing": _SWITCH,
    "dataset": _one_of(*DATASETS),
    "cache": _one_of(*sizes.CACHES),
    "num_workers": _WHOLE,
    "pin_memory": _SWITCH,
    "persistent_workers": _SWITCH,
    "prefetch_factor": _COUNT,
    "collective": _one_of(*sizes.COLLECTIVES),
    "message_bytes": _COUNT,
    "data": _one_of(*sizes.DATA),
    "optimizer": _one_of(*sizes.OPTIMIZERS),
    "lr": ("a number above 0", _number),
    "lr_scale": _one_of(*sizes.LR_SCALES),
    "weight_decay": _FROM_0,
    "scheduler": _one_of(*sizes.SCHEDULERS),
    "warmup_epochs": _WHOLE,
    "epochs": _COUNT,
    "augment": _SWITCH,
    "checkpoint_every": _COUNT,
    "target_accuracy": ("above 0 and at most 1", lambda v: _number(v) and float(v) <= 1),
    "seed": _WHOLE,
    "momentum": _FROM_0,
    "base_batch": _COUNT,
    "num_synthetic": _COUNT,
    "max_steps": _COUNT,
}


def check(factors: Mapping[str, Sequence[Value]]) -> Factors:
    """Return the factors as a size keeps them.

    Raises:
        ValueError: A factor or a value is unknown, twice there, or out of range.
    """
    for name, values in factors.items():
        if name not in KNOWN:
            raise ValueError(f"no factor {name!r}; choose from {', '.join(KNOWN)}")
        allowed, is_allowed = KNOWN[name]
        for value in values:
            if not is_allowed(value):
                raise ValueError(f"{name}={value} is not {allowed}")
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name}={_joined(values)} names no value, or one twice")
    return tuple((name, tuple(values)) for name, values in factors.items())


def read(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Return the factors of several `NAME=VALUE,VALUE`, as `parse` does, once `check` took them.

    Raises:
        ValueError: A text has another form, or a factor or value is refused.
    """
    found = parse(texts)
    check(found)
    return found


def parse(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Return the factors of several `NAME=VALUE,VALUE`, as of options; values of one name add up.

    Raises:
        ValueError: A text has another form.
    """
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not NAME=VALUE,VALUE such as bucket_cap_mb=1,5,10")
        found[name] = found.get(name, ()) + tuple(map(_value, _BETWEEN.split(values)))
    return found


def written(factors: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return what `read` reads, one text a factor."""
    return [f"{name}={_joined(values)}" for name, values in factors.items()]


def study_of(names: Sequence[str], offered: Sequence[str], size: Size) -> str:
    """Return the study to ask about factors: the one that varies the least else.

    Those offered, the studies of a campaign, are preferred.

    Raises:
        ValueError: No study's cases have all of them.
    """

    def merit(study: str) -> tuple[bool, int, int, bool]:
        rows = studies.rows(study, size)
        varied = {name for name in rows[0] if len({row[name] for row in rows}) > 1}
        is_offered = study in offered
        # Whole epochs are no answer to a question about a step.
        is_far = study == "train" and not is_offered
        return is_far, len(varied - {*names}), -len(varied & {*names}), not is_offered

    having = [study for study in studies.NAMES if has(study, names, size)]
    if not having:
        raise ValueError(f"no study has all of {', '.join(names)}; set fewer of them")
    asking = [study for study in having if {*names} <= {*studies.rows(study, size)[0]}]
    return min(asking or having, key=merit)


def has(study: str, names: Sequence[str], size: Size) -> bool:
    """Return whether there is such a study, whose cases have all these factors or may have them."""
    if study not in studies.STUDIES:
        return False
    return {*names} <= {*studies.rows(study, size)[0], *studies.STUDIES[study].on_request}


def kept(
    factors: Mapping[str, tuple[Value, ...]], studies: Sequence[str], size: Size
) -> dict[str, tuple[Value, ...]]:
    """Return the factors that a study of these has."""
    return {
        name: values
        for name, values in factors.items()
        if any(has(study, [name], size) for study in studies)
    }


def _value(text: str) -> Value:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _joined(values: Sequence[Value]) -> str:
    return ",".join(
        str(value).lower() if isinstance(value, bool) else str(value) for value in values
    )
