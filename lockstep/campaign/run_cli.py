"""The commands that measure on this machine: `lockstep run` and `lockstep diagnose`."""

import dataclasses
import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep.campaign import campaign as campaigns
from lockstep.campaign import launcher, progress
from lockstep.campaign.campaign import DIAGNOSE_S, QUESTIONS, Campaign, Launch, LeftOut
from lockstep.campaign.folder import Folder, Outcome
from lockstep.campaign.ladder import Ladder, only_driver
from lockstep.campaign.stages import Stages
from lockstep.core import factors as factor_values
from lockstep.core import record
from lockstep.core.files import default_folder
from lockstep.core.formats import capital, counted, listed
from lockstep.core.sizes import PRECISIONS, SIZES
from lockstep.core.studies import STUDIES
from lockstep.ranks.process_group import NO_GPU, usable_cores

Function = TypeVar("Function", bound=Callable[..., Any])


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:  # noqa: ARG001
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 1,2,4") from None


def _words(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:  # noqa: ARG001
    return None if text is None else text.split(",")


# key of a campaign that an option of the same name replaces -> arguments of click.option
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
    "--replace", is_flag=True,
    help="Measure all again: move the old launches to replaced/TIME, and compare at the end.",
)  # fmt: skip
_dry_run = click.option(
    "-n", "--dry-run", is_flag=True, help="Print the launches without starting them."
)


def _folder_option(subfolder: str) -> Callable[[Function], Function]:
    return click.option(
        "--to", "root", type=click.Path(path_type=Path, file_okay=False),
        default=default_folder("results"), show_default=True,
        help=f"Folder of results; this command writes into its subfolder {subfolder}.",
    )  # fmt: skip


def _key_options(*keys: str) -> Callable[[Function], Function]:

    def decorate(function: Function) -> Function:
        for key in reversed(keys):
            text = capital(str(Campaign.model_fields[key].description))
            option = f"--{key.replace('_', '-')}"
            function = click.option(option, help=f"{text}.", **KEYS[key])(function)
        return function

    return decorate


@click.command()
@click.argument("campaign", default="laptop")
@_folder_option("CAMPAIGN")
@_key_options(*KEYS)
@click.option(
    "--set", "factors", multiple=True, metavar="FACTOR=V,V",
    help="Compare values of a factor, such as bucket_cap_mb=1,5,10, and rank them at the end.",
)  # fmt: skip
@click.option(
    "--torch-trace", "traces", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Measure nothing; trace three steps of each case with torch.profiler into FOLDER.",
)  # fmt: skip
@_replace
@click.option(
    "--replace-launch", "replaced", multiple=True, metavar="LAUNCH",
    help="Move a launch, such as w2-r0, aside and measure it again; repeat the option for further "
         "launches.",
)  # fmt: skip
@_dry_run
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

    A second run of the same command measures only the missing cases. With --replace it measures all
    cases again, and prints which are faster or slower than before. World sizes above the number of
    GPUs are left out.

    `run train` trains one model. `run verify` checks that DDP trains equally at two world sizes.
    `run data` fetches data sets. Each of these commands has its own --help.

    \b
    Examples:
      lockstep run                                # measure the built-in campaign laptop
      lockstep run campaign.toml --dry-run        # print the launches, but start none
      lockstep run --world-sizes 1,2 --repeats 5  # choose world sizes and repeats
      lockstep run --replace                      # measure all again and compare
      lockstep run smoke --device cpu             # use the CPU, even if there are GPUs
      lockstep run --set bucket_cap_mb=1,5,10     # find the best of three values
      lockstep run --set strategy=ddp,fsdp --studies weak    # compare time and memory
      lockstep run --set optimizer=sgd,adamw --studies weak  # compare two optimizers
      lockstep run --until-efficiency 0.6 --world-sizes 1,2,4,8,16  # stop below 60 % efficiency
      lockstep run --tests benchmarks --world-sizes 1,2,4  # measure a ladder of your own tests
      lockstep run --workload mine:tabular        # measure your own model, in ./mine.py
      lockstep run smoke --torch-trace traces     # trace a few steps, for ui.perfetto.dev
    """
    sys.path.append(str(Path.cwd()))  # for the user's own workload; ranks find it by `python -m`
    values = factor_values.parse(factors)
    chosen = campaigns.load_factors(campaign, values, **_replace_studies(changes))
    if traces is None:
        return measure(
            chosen, root, dry_run=dry_run, as_json=as_json, replace=replace, replaced=replaced
        )
    chosen = campaigns.set_threads(chosen, None, usable_cores())
    if not (chosen.command or launcher.missing_packages()):
        chosen, _ = fit_local_gpus(chosen)
    return launcher.trace(chosen, traces, click.echo, dry_run=dry_run)


@click.command()
@click.argument("question", type=click.Choice([*QUESTIONS, "nodes"]))
@_folder_option("diagnose-QUESTION")
@_key_options("device", "workload")
@_replace
@_dry_run
def diagnose(
    question: str,
    root: Path,
    device: str | None,
    workload: str | None,
    *,
    replace: bool,
    dry_run: bool,
) -> int:
    """Look for one cause of poor scaling in five minutes: a small campaign and its card.

    No launch starts if it would probably end after five minutes; a running launch goes on.

    \b
    strong:    training is hardly faster on more GPUs
    straggler: one rank, GPU or node may slow the others down
    loader:    training steps may wait for their data
    nodes:     two nodes are slower than one (prints the commands for Slurm)

    \b
    Examples:
      lockstep diagnose strong
      lockstep diagnose straggler --device cpu --workload mlp
      lockstep diagnose loader --dry-run
    """
    if question == "nodes":
        raise ValueError(
            "the question nodes compares one node with two, which needs Slurm; run lockstep submit "
            "nodes --site site.toml, then lockstep report results/nodes once the jobs have ended"
        )
    num_gpus = 0 if device == "cpu" or launcher.missing_packages() else launcher.num_gpus()
    campaign = campaigns.campaign_of(
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
    """Measure the missing launches of a campaign, and return the command's exit code.

    No launch begins that would probably end later than `limit_s`.
    """
    before = Folder(folder := root / chosen.name).read_claim() or {}
    chosen = campaigns.set_threads(chosen, before.get("threads_per_rank"), usable_cores())
    if not replace:
        Folder(folder).refuse(chosen, campaigns.plan(chosen))
    # A program brings its own packages and devices.
    is_program = chosen.command is not None
    absent = "" if is_program else launcher.missing_packages()
    if absent and not dry_run:
        raise RuntimeError(absent)
    chosen, left_out = (chosen, []) if absent or is_program else fit_local_gpus(chosen)
    ladder = Ladder(chosen, folder, tuple(left_out))
    if dry_run:
        launches = ladder.choose_replaced(replaced, replace=replace)
        progress.show(ladder, launches, as_json=as_json)
        return 0
    wait = (
        "One launch of an earlier, killed `lockstep run` is still running; this command waits "
        "until that launch has ended."
    )
    with only_driver(folder, on_wait=lambda: _say(wait)) as lock:
        ladder = dataclasses.replace(ladder, lock=lock)
        if launches := ladder.choose_replaced(replaced, replace=replace):
            num_moved = counted(len(launches), "launch")
            _say(f"{num_moved} moved to {ladder.set_aside(launches)}: {listed(launches, 3)}")
        elif replace and ladder.results.names():
            _say(
                "An earlier command with --replace was interrupted. This command continues the "
                "earlier command, and moves no further launch."
            )
        ladder.claim()
        if dropped := [launch["name"] for launch in ladder.results.dropped(chosen, left_out)]:
            dropped_launches = listed(dropped, 4)
            _say(
                f"The campaign no longer contains {dropped_launches}, because repeats or world "
                "sizes were lowered. lockstep check warns of such launches."
            )
        goes_on = "run the same command to measure the missing cases"
        if replace:
            goes_on = "run the same command without --replace to measure the missing cases"
        try:
            return _measure(ladder, limit_s, goes_on, as_json=as_json)
        except KeyboardInterrupt:
            _say(f"{folder} keeps all measured cases. Next: {goes_on}.")
            raise


def _say(text: str) -> None:
    click.echo(text, err=True)


def _replace_studies(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that options change; with --tests they also clear the file's studies."""
    if not changes["tests"]:
        return changes
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(changes["tests"][0]).resolve().stem).strip("-")
    return changes | {"studies": changes["studies"] or (), "name": changes["name"] or name}


def fit_local_gpus(campaign: Campaign) -> tuple[Campaign, list[LeftOut]]:
    """Return the campaign with the world sizes that fit this machine's GPUs, and the others.

    Without GPUs, a campaign without `device` is measured on the CPU.
    """
    if campaign.device == "cpu":  # counting GPUs would load torch, which takes seconds
        return campaign, []
    seen = launcher.num_gpus()
    if campaign.device is None and not seen:
        _say(NO_GPU)
        return campaign, []
    kept = tuple(size for size in campaign.world_sizes if size <= seen)
    if not kept:
        smallest = min(campaign.world_sizes)
        raise RuntimeError(
            f"world size {smallest} needs one GPU per rank, but torch sees "
            f"{counted(seen, 'GPU')} on this machine; give smaller --world-sizes, or pass --device "
            "cpu"
        )
    left_out = [LeftOut(size, seen) for size in campaign.world_sizes if size > seen]
    for size in left_out:
        _say(
            f"World size {size.world_size} is left out, because it needs one GPU per rank, but "
            f"torch sees {counted(seen, 'GPU')} on this machine. Pass --device cpu to measure it "
            "on the CPU."
        )
    return campaign.model_copy(update={"world_sizes": kept}), left_out


def _measure(ladder: Ladder, limit_s: float, goes_on: str, *, as_json: bool) -> int:
    missing = ladder.missing()
    needed = progress.estimate(ladder.campaign, ladder.folder, missing)
    _say(progress.summary(ladder.campaign, missing, needed))
    if warning := ladder.other_commit():
        _say(warning)
    ladder.write_results()
    stages = Stages(ladder.campaign.jobs.stage, ladder.results, _say)
    if missing and not stages.run_before():
        _say("No launch was measured, because a stage before the launches failed.")
        stages.run_after(is_well=False, has_measured=True)
        return 1
    outcomes, stop, is_end = _make_launches(ladder, missing, limit_s, needed)
    if as_json:
        rows = [_facts(*pair) for pair in zip(missing, outcomes, strict=False)]
        click.echo(json.dumps(rows, indent=1))
    if stop:
        _say(stop)
    incomplete = [outcome for outcome in outcomes if not outcome.complete]
    for outcome in outcomes:
        if outcome.measured:
            _explain(ladder, outcome)
    _say(f"Results: {ladder.folder}")
    is_all = is_end and not incomplete
    is_well = stages.run_after(is_well=is_all, has_measured=bool(outcomes))
    if is_all and (reason := ladder.only_skip()):
        _say(
            f"No case was measured, because all cases were skipped ({reason}). Next: change the "
            "campaign."
        )
        return 1
    has_results = is_all or any(outcome.measured for outcome in outcomes)
    if has_results and not as_json:
        _show_verdict(ladder)
        _show_change(ladder, outcomes)
    _say(f"Next: {goes_on if incomplete else f'lockstep report {shlex.quote(str(ladder.folder))}'}")
    return 0 if is_well and not incomplete else 1


def _make_launches(
    ladder: Ladder, missing: list[Launch], limit_s: float, expected_s: Mapping[str, float]
) -> tuple[list[Outcome], str, bool]:
    """Make the launches; return their outcomes, why launches are left, and whether all is done.

    Launches are left if time is up, a size misses `until_efficiency`, or the first two launches
    fail in the same way.
    """
    from lockstep.report.tracker.live import live_sender

    trains = any(
        study in STUDIES and STUDIES[study].is_training for study in ladder.campaign.studies
    )
    outcomes: list[Outcome] = []
    begun_s, longest_s = time.monotonic(), 0.0
    with live_sender(ladder.folder) as send, progress.View(ladder, missing, expected_s) as view:

        def advance(launch: Launch, outcome: Outcome) -> None:
            view.advance(launch, outcome)
            if trains:  # an epoch ends long before its launch
                send(0)

        for launch in missing:
            now_s, launches_left = time.monotonic(), counted(len(missing) - len(outcomes), "launch")
            if missed := ladder.find_missed(launch):
                ladder.leave_out({each.world_size for each in missing[len(outcomes) :]})
                return (
                    outcomes,
                    f"The run stops before larger sizes, because {missed}; {launches_left} did "
                    "not start.",
                    True,
                )
            if now_s - begun_s + longest_s > limit_s:
                return outcomes, f"The time limit is reached; {launches_left} did not start.", False
            failures = [_failure(outcome) for outcome in outcomes]
            if len(failures) == 2 and failures[0] and failures[0] == failures[1]:
                stop = (
                    f"The first two launches failed in the same way; {launches_left} did not start."
                    " Correct the cause, then run the same command again."
                )
                return outcomes, stop, False
            view.begin(launch)
            outcomes.append(ladder.run(launch, advance))
            view.end(launch, outcomes[-1])
            if not outcomes[-1].measured:  # at once: the other launches will probably fail, too
                _explain(ladder, outcomes[-1])
            send()
            longest_s = max(longest_s, time.monotonic() - now_s)
    return outcomes, "", True


def _failure(outcome: Outcome) -> object:
    """Return a comparable reason why a launch measured no case; None if it measured one."""
    if outcome.measured or outcome.complete or outcome.ended is None:
        return None
    causes = (cause for failed in outcome.failed for cause in failed.get("causes") or ())
    errors = frozenset(cause["error"] for cause in causes if cause["kind"] == "fault")
    return errors or (outcome.ended.exit_code, outcome.ended.facts.has_begun)


def _show_verdict(ladder: Ladder) -> None:
    """Print rankings, trainings, cards, the report's table, and why points have no verdict."""
    from lockstep.core.metrics import GOOD_EFFICIENCY
    from lockstep.report.check import checker
    from lockstep.report.compute.evaluation import evaluate_folder
    from lockstep.report.words import console, lines, names, ranking_card, training_words
    from lockstep.report.words.verdict_card import printed

    factors = ladder.campaign.factors
    evaluation = evaluate_folder(ladder.folder, [each.name for each in ladder.missing()])
    results, (series, shared) = evaluation.results, names.short(evaluation.series)
    if factors and (ranked := ranking_card.cards(evaluation.series, factors)):
        click.echo("\n".join(["", *ranked]))
    if trained := training_words.sentences(series):
        click.echo("\n".join(["", *(f"{name}: {text}" for name, text in trained), ""]))
    cards = printed(series, GOOD_EFFICIENCY) or ranking_card.loader_card(series)
    about = lines.sentence(shared, console.NARROWEST)
    click.echo("\n".join(["", *about, *cards, "", *console.point_lines(results, series), ""]))
    errors = [finding for finding in checker.errors(evaluation.findings) if finding.points]
    for group in checker.group_findings(errors)[: checker.MAX_ERRORS]:
        action = capital(group.first.action)
        _say(f"No verdict on {group.where()}: {group.message(checker.MAX_FACTS)}. {action}.")


def _show_change(ladder: Ladder, outcomes: Sequence[Outcome]) -> None:
    from lockstep.report.compare.compare_cli import compare

    earlier = ladder.earlier
    names = {outcome.name for outcome in outcomes if outcome.measured}
    if earlier is None or not names & {*earlier.names()}:
        return
    sides = [str(earlier.path), str(ladder.folder)]
    folders = shlex.join(sides)
    click.echo(f"Changes since the last measurement, as printed by lockstep compare {folders}:\n")
    try:
        compare(sides, standalone_mode=False)
    except ValueError as error:
        click.echo(f"The two folders cannot be compared: {error}")
    click.echo()


def _facts(launch: Launch, outcome: Outcome) -> dict[str, Any]:
    return {
        "launch": launch.name, "world_size": launch.world_size, "repeat": launch.repeat,
        "measured": outcome.measured, "skipped": outcome.skipped, "failed": outcome.failed,
        "complete": outcome.complete,
        "exit_code": outcome.ended.exit_code if outcome.ended else None,
        "hung": outcome.ended and outcome.ended.hung and dataclasses.asdict(outcome.ended.hung),
    }  # fmt: skip


def _explain(ladder: Ladder, outcome: Outcome) -> None:
    log, ended = ladder.results.log_file(outcome.name), outcome.ended
    error = ended.facts.words if ended else ""
    if outcome.complete:
        if ended and ended.exit_code:
            _say(
                f"Launch {outcome.name} is complete, but ended with an error: {error}; see its "
                f"output in {log}"
            )
        return
    for failed in outcome.failed:
        gist = record.failure_gist(failed)
        _say(f"{outcome.name}: {failed['case']} failed: {gist}")
    # If all cases have ended, their own reasons are enough.
    is_cut = outcome.remaining or not outcome.failed
    why = f": {error}" if ended and is_cut else ""
    _say(f"Launch {outcome.name} is not complete{why}; see its output in {log}")
