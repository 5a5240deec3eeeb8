"""What a shell completes after the options and arguments that several commands share.

Nothing is loaded but for that: `_LOCKSTEP_COMPLETE=bash_source lockstep` gives a shell the script.
"""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def campaigns(
    ctx: click.Context,  # noqa: ARG001, click's signature
    parameter: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """Complete a campaign: a built-in name, or a file."""
    from lockstep.campaign.campaign import built_in

    return [*_beginning(built_in(), incomplete), CompletionItem(incomplete, type="file")]


def workloads(
    ctx: click.Context,  # noqa: ARG001, click's signature
    parameter: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """Complete a model of ours."""
    from lockstep.workloads import TABLE

    return _beginning(TABLE, incomplete)


def listed(names: Callable[[], Iterable[str]], mark: str = ",") -> Complete:
    """Return what completes the last of several names, each with a mark after those before."""

    def complete(
        ctx: click.Context,  # noqa: ARG001, click's signature
        parameter: click.Parameter,  # noqa: ARG001
        incomplete: str,
    ) -> list[CompletionItem]:
        before, found, last = incomplete.rpartition(mark)
        return _beginning((f"{before}{found}{name}" for name in names()), before + found + last)

    return complete


def studies() -> list[str]:
    """Return the studies' names."""
    from lockstep.vocabulary.sizes import STUDIES

    return list(STUDIES)


def factors() -> list[str]:
    """Return the factors' names, each as `--set` begins."""
    from lockstep.vocabulary.factors import KNOWN

    return [f"{name}=" for name in KNOWN]


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
