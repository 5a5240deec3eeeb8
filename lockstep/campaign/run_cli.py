"""The commands that measure on this machine: `lockstep run` and `lockstep diagnose`."""

import dataclasses
import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lockstep.campaign.campaign import (
    DIAGNOSE_S,
    QUESTIONS,
    Campaign,
    Launch,
    LeftOut,
    campaign_of,
    load_with,
    with_threads,
    within_gpus,
)
from lockstep.core import record
from lockstep.core.formats import counted, listed
from lockstep.core.sizes import PRECISIONS, SIZES

if TYPE_CHECKING:
    from lockstep.campaign.folder import Outcome
    from lockstep.campaign.ladder import Ladder


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:  # noqa: ARG001
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 1,2,4") from None


def _words(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:  # noqa: ARG001
    return None if text is None else text.split(",")


# key of a campaign that an option of its name sets over the file's -> arguments of click.option
KEYS: dict[str, dict[str, Any]] = {
    "world_sizes": {"callback": _numbers, "metavar": "N,N"},
    "repeats": {"type": int},
    "size": {"type": click.Choice(list(SIZES))},
    "device": {"type": click.Choice(["cpu", "cuda"])},
    "studies": {"callback": _words, "metavar": "NAME,NAME"},
    "tests": {"callback": _words, "metavar": "PATH,PATH"},
    "workload": {},
    "precision": {"type": click.Choice(PRECISIONS)},
    **{key: {"type": int} for key in ("threads_per_rank", "global_batch", "local_batch")},
    **{key: {"type": int} for key in ("rounds", "warmup_rounds", "order_seed")},
    "on_oom": {"type": click.Choice(["halve"])},
    "until_efficiency": {"type": float},
    "name": {},
}
_replace = click.option(
    "--replace",
    is_flag=True,
    help="Measure all again: move the launches to replaced/TIME, and end with a comparison.",
)
Function = TypeVar("Function", bound=Callable[..., Any])


def _with_keys(function: Function) -> Function:
    """Give a command an option for each of `KEYS`, with the help that the campaign's file has."""
    for key, options in reversed(KEYS.items()):
        text = str(Campaign.model_fields[key].description)
        help_ = f"{text[0].upper()}{text[1:]}."
        function = click.option(f"--{key.replace('_', '-')}", help=help_, **options)(function)
    return function


@click.command()
@click.argument("campaign", default="laptop")
@click.option(
    "--to",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    default="results",
    show_default=True,
    help="Folder of results; the campaign's name is added.",
)
@_with_keys
@click.option(
    "--set",
    "factors",
    multiple=True,
    metavar="FACTOR=V,V",
    help="Values to compare, such as bucket_cap_mb=1,5,10; the end ranks them.",
)
@click.option(
    "--torch-trace",
    "traces",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Trace three steps of each case by torch.profiler into this folder; measures nothing.",
)
@_replace
@click.option(
    "--replace-launch", "replaced", multiple=True, metavar="LAUNCH",
    help="Move aside a launch, such as w2-r0, and measure it again; may be given again.",
)  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Print the launches without starting them.")
@click.option("--json", "as_json", is_flag=True, help="Print how each launch ended, as JSON.")
def run(
    campaign: str,
    root: Path,
    *,
    factors: tuple[str, ...],
    traces: Path | None,
    replace: bool,
    replaced: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **changes: Any,
) -> int:
    """Measure CAMPAIGN, a TOML file or a built-in name, one torchrun launch at a time.

    Run again, it measures only what is missing; with --replace all, and says what is faster or
    slower since last time. A world size needs as many GPUs, where there are
    any: larger ones are left out, and the report says so. Each has its own help: `run train` trains
    one model, `run verify` checks that DDP trains alike at two sizes, `run data` fetches data sets.

    \b
    Examples:
      lockstep run                                the built-in campaign `laptop`
      lockstep run campaign.toml --dry-run        the launches it would start
      lockstep run --world-sizes 1,2 --repeats 5  more of the same, or other sizes
      lockstep run --replace                      measure all again; faster or slower since?
      lockstep run smoke --device cpu             on the CPU, whatever GPUs there are
      lockstep run --set bucket_cap_mb=1,5,10     which value is best, with its interval
      lockstep run --set strategy=ddp,fsdp --studies weak  time and memory of both
      lockstep run --until-efficiency 0.6 --world-sizes 1,2,4,8,16  double while it pays
      lockstep run --tests benchmarks --world-sizes 1,2,4  a ladder of your own tests
      lockstep run --workload mine:tabular        a model of your own, in mine.py of this folder
      lockstep run smoke --torch-trace traces     what a few steps do, for ui.perfetto.dev
    """
    from lockstep.campaign import launcher
    from lockstep.core.factors import parse
    from lockstep.ranks.process_group import usable_cores

    sys.path.append(str(Path.cwd()))  # where ranks, of `python -m`, find a workload of the user's
    chosen = load_with(campaign, parse(factors), **_with_tests(changes))
    if traces is None:
        return measure(
            chosen, root, dry_run=dry_run, as_json=as_json, replace=replace, replaced=replaced
        )
    launcher.refuse_program(chosen)
    if absent := launcher.missing_packages():
        raise RuntimeError(absent)
    chosen, _ = within_local_gpus(with_threads(chosen, None, usable_cores()))
    return launcher.trace(chosen, traces, click.echo, dry_run=dry_run)


@click.command()
@click.argument("question", type=click.Choice([*QUESTIONS, "nodes"]))
@click.option(
    "--to",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    default="results",
    show_default=True,
    help="Folder of results; diagnose-QUESTION is added.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="CUDA where there is one, by default."
)
@click.option("--workload", help="Model that is trained, e.g. mlp:width=512.")
@_replace
@click.option("-n", "--dry-run", is_flag=True, help="Print the launches without starting them.")
def diagnose(
    question: str,
    root: Path,
    device: str | None,
    workload: str | None,
    *,
    replace: bool,
    dry_run: bool,
) -> int:
    """Answer QUESTION in about five minutes: measure what shows it, and end with a card.

    No launch begins that would probably end later; one that runs is not cut short.

    \b
    strong     more GPUs do not help
    straggler  one rank, GPU or node may hold the others up
    loader     the step may wait for its data
    nodes      two nodes are slower than one (says how to ask on Slurm)

    \b
    Examples:
      lockstep diagnose strong
      lockstep diagnose straggler --device cpu --workload mlp
      lockstep diagnose loader --dry-run
    """
    from lockstep.campaign import launcher
    from lockstep.ranks.process_group import usable_cores

    if question == "nodes":
        raise ValueError(
            "nodes compares one node with two, which takes Slurm: lockstep submit nodes --site "
            "site.toml, and once its jobs have ended, lockstep report results/nodes"
        )
    num_gpus = 0 if device == "cpu" or launcher.missing_packages() else launcher.num_gpus()
    campaign = campaign_of(
        question, num_gpus=num_gpus, cores=usable_cores(), device=device, workload=workload
    )
    return measure(campaign, root, dry_run=dry_run, limit_s=DIAGNOSE_S, replace=replace)


def measure(
    chosen: Campaign,
    root: Path,
    *,
    dry_run: bool = False,
    as_json: bool = False,
    limit_s: float = math.inf,
    replace: bool = False,
    replaced: Sequence[str] = (),
) -> int:
    """Measure what is missing of a campaign, and return the command's exit code.

    No launch is begun that would probably end later than `limit_s`.
    """
    from lockstep.campaign import launcher, progress
    from lockstep.campaign.folder import Folder
    from lockstep.campaign.ladder import Ladder, only_driver
    from lockstep.ranks.process_group import usable_cores

    before = Folder(folder := root / chosen.name).claimed() or {}
    chosen = with_threads(chosen, before.get("threads_per_rank"), usable_cores())
    if not replace:
        Ladder(chosen, folder).refuse()
    # A program brings its own packages, and says itself what it computes on.
    is_program = chosen.command is not None
    absent = "" if is_program else launcher.missing_packages()
    if absent and not dry_run:
        raise RuntimeError(absent)
    chosen, left_out = (chosen, []) if absent or is_program else within_local_gpus(chosen)
    ladder = Ladder(chosen, folder, tuple(left_out))
    if dry_run:
        launches = ladder.to_replace(replaced, replace=replace)
        progress.show(ladder, launches, as_json=as_json)
        return 0
    wait = "Waiting for the launch that a killed run left behind to end."
    with only_driver(folder, on_wait=lambda: _say(wait)) as lock:
        ladder = dataclasses.replace(ladder, lock=lock)
        if launches := ladder.to_replace(replaced, replace=replace):
            num_moved = counted(len(launches), "launch")
            _say(f"{num_moved} moved to {ladder.set_aside(launches)}: {listed(launches, 3)}")
        elif replace and ladder.results.names():
            _say("An earlier --replace was cut short: it goes on, and no launch is moved.")
        ladder.claim()
        same = "the same command without --replace" if replace else "the same command"
        goes_on = f"{same}, which measures what is missing"
        try:
            return _measure(ladder, limit_s, goes_on, as_json=as_json)
        except KeyboardInterrupt:
            _say(f"{folder} keeps what is measured. Next: {goes_on}")
            raise


def _say(text: str) -> None:
    click.echo(text, err=True)


def _with_tests(changes: dict[str, Any]) -> dict[str, Any]:
    """Return what the options change; the user's own tests replace the file's studies."""
    if not changes["tests"]:
        return changes
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(changes["tests"][0]).resolve().stem).strip("-")
    return changes | {"studies": changes["studies"] or (), "name": changes["name"] or name}


def within_local_gpus(campaign: Campaign) -> tuple[Campaign, list[LeftOut]]:
    """Return what this machine's GPUs can measure of a campaign, and name the rest."""
    from lockstep.campaign.launcher import num_gpus
    from lockstep.ranks.process_group import NO_GPU

    if campaign.device == "cpu":  # torch takes seconds to load: not where it is not asked
        return campaign, []
    seen = num_gpus()
    if campaign.device is None and not seen:
        _say(NO_GPU)
    chosen, left_out = within_gpus(campaign, seen)
    for size in left_out:
        _say(
            f"Left out: world size {size.world_size}, which needs as many GPUs, and ranks see "
            f"{size.num_gpus} on this machine; --device cpu measures it on the CPU."
        )
    return chosen, left_out


def _measure(ladder: "Ladder", limit_s: float, goes_on: str, *, as_json: bool) -> int:
    from lockstep.campaign import progress
    from lockstep.campaign.stages import Stages

    missing = ladder.missing()
    needed = progress.estimate(ladder.campaign, ladder.folder, missing) if missing else None
    _say(progress.summary(ladder.campaign, missing, needed))
    if warning := ladder.other_commit():
        _say(warning)
    ladder.write_results()
    stages = Stages(ladder.campaign.jobs.stage, ladder.results, _say)
    if missing and not stages.before():
        _say("Nothing was measured: a stage before the launches failed.")
        stages.after(is_well=False, has_measured=True)
        return 1
    outcomes = _outcomes(ladder, missing, limit_s, needed.launches if needed else {})
    if as_json:
        rows = [_facts(*pair) for pair in zip(missing, outcomes, strict=False)]
        click.echo(json.dumps(rows, indent=1))
    is_end = _say_left(ladder, missing[len(outcomes) :])
    incomplete = [outcome for outcome in outcomes if not outcome.complete]
    for outcome in outcomes:
        if outcome.measured:
            _explain(ladder, outcome)
    _say(f"Results: {ladder.folder}")
    is_all = is_end and not incomplete
    is_well = stages.after(is_well=is_all, has_measured=bool(outcomes))
    if is_all and (reason := ladder.only_skip()):
        _say(f"No case was measured: all were skipped ({reason}). Next: change the campaign.")
        return 1
    has_results = is_all or any(outcome.measured for outcome in outcomes)
    if has_results and not as_json:
        _show_verdict(ladder.folder, ladder.campaign.factors)
        _show_change(ladder, outcomes)
    _say(f"Next: {goes_on if incomplete else f'lockstep report {shlex.quote(str(ladder.folder))}'}")
    return 0 if is_well and not incomplete else 1


def _outcomes(
    ladder: "Ladder", missing: list[Launch], limit_s: float, expected_s: Mapping[str, float]
) -> "list[Outcome]":
    """Make the launches, as long as another of the longest so far would end in time.

    Once a world size has missed the campaign's floor, none of a larger one is made.
    """
    from lockstep.campaign.progress import View
    from lockstep.report.tracker.live import following

    trains = "train" in ladder.campaign.studies
    outcomes: list[Outcome] = []
    begun_s, longest_s = time.monotonic(), 0.0
    with following(ladder.folder) as tracker, View(ladder, missing, expected_s) as view:

        def advance(launch: Launch, outcome: "Outcome") -> None:
            view.advance(launch, outcome)
            if trains:  # an epoch is known long before its launch has ended
                tracker.send(0)

        for launch in missing:
            now_s = time.monotonic()
            if now_s - begun_s + longest_s > limit_s or ladder.missed(launch):
                break
            view.begin(launch)
            outcomes.append(ladder.run(launch, advance))
            view.end(outcomes[-1])
            if not outcomes[-1].measured:  # at once: the others will probably end alike
                _explain(ladder, outcomes[-1])
            tracker.send()
            longest_s = max(longest_s, time.monotonic() - now_s)
    return outcomes


def _say_left(ladder: "Ladder", left: list[Launch]) -> bool:
    """Print why launches are missing; return False if a second run could make any of them.

    Those beyond the floor are noted as left out for good.
    """
    if not left:
        return True
    num_left = counted(len(left), "launch")
    missed = ladder.missed(left[0])
    if missed is None:
        _say(f"Time is up: {num_left} left for another time.")
        return False
    ladder.leave_out({launch.world_size for launch in left})
    _say(f"The ladder stops here, {num_left} left out: {missed}.")
    return True


def _show_verdict(folder: Path, factors: Collection[str]) -> None:
    """Print the best factors, what was learned, what bounds a step, and the report's table."""
    from lockstep.core.metrics import GOOD_EFFICIENCY
    from lockstep.report.compute.evaluation import evaluate_folder
    from lockstep.report.words import (
        console,
        lines,
        loader_card,
        names,
        ranking_card,
        training_words,
    )
    from lockstep.report.words.verdict_card import printed

    evaluation = evaluate_folder(folder)
    results, (series, shared) = evaluation.results, names.short(evaluation.series)
    if factors and (ranked := ranking_card.of_folder(folder, factors)):
        click.echo("\n".join(["", *ranked]))
    if trained := training_words.sentences(series):
        click.echo("\n".join(["", *(f"{name}: {text}" for name, text in trained), ""]))
    cards = printed(series, GOOD_EFFICIENCY) or loader_card.card(series)
    about = lines.sentence(shared, console.NARROWEST)
    click.echo("\n".join(["", *about, *cards, "", *console.point_lines(results, series), ""]))


def _show_change(ladder: "Ladder", outcomes: "Sequence[Outcome]") -> None:
    """Print the comparison with the launches that the measured ones take the place of, if any."""
    from lockstep.report.compare.compare_cli import compare

    earlier = ladder.earlier
    names = {outcome.name for outcome in outcomes if outcome.measured}
    if earlier is None or not names & {*earlier.names()}:
        return
    sides = [str(earlier.path), str(ladder.folder)]
    click.echo(f"Since last time, as by lockstep compare {shlex.join(sides)}:\n")
    try:
        compare(sides, standalone_mode=False)
    except ValueError as error:
        click.echo(f"The two are not compared: {error}")
    click.echo()


def _facts(launch: Launch, outcome: "Outcome") -> dict[str, Any]:
    return {
        "launch": launch.name,
        "world_size": launch.world_size,
        "repeat": launch.repeat,
        "measured": outcome.measured,
        "skipped": outcome.skipped,
        "failed": outcome.failed,
        "complete": outcome.complete,
        "exit_code": outcome.ended.exit_code if outcome.ended else None,
        "hung": outcome.ended and outcome.ended.hung and dataclasses.asdict(outcome.ended.hung),
    }


def _explain(ladder: "Ladder", outcome: "Outcome") -> None:
    log, ended = ladder.results.log_file(outcome.name), outcome.ended
    words = ended.facts.words if ended else ""
    if outcome.complete:
        if ended and ended.exit_code:
            why = f"complete, but it did not end well: {words}"
            _say(f"{outcome.name} is {why}; its output: {log}")
        return
    for failed in outcome.failed:
        gist = record.failure_gist(failed)
        _say(f"{outcome.name}: {failed['case']} failed: {gist}")
    # Where each case has ended, their reasons are enough.
    is_cut = outcome.remaining or not outcome.failed
    why = f": {words}" if ended and is_cut else ""
    _say(f"{outcome.name} is not complete{why}; its output: {log}")
