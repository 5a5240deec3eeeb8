"""What pytest asks of a session that measures: options, the rank-0 rule, and each case's outcome.

Only sessions that collect a measured case join a world; others do not notice this file. Where a
session is known to measure before it collects, these hooks are there from its start, with the
options; else `lockstep.plugin` brings them after the collection, and the defaults hold.

Rank 0 alone prints and writes; another rank speaks of what it alone knows.
"""

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Generator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lockstep.core import errors, journal, sizes, studies
from lockstep.core.errors import EXIT_IO, EXIT_MACHINE, AgreedError
from lockstep.core.formats import counted
from lockstep.core.processes import hostname
from lockstep.core.record import KEY, sized_name
from lockstep.launch import HOOKS, leave_files, options
from lockstep.launch import session as sessions
from lockstep.launch.items import case_of, is_measured, of_part, params_of, study_of
from lockstep.launch.profiler import Tracing
from lockstep.launch.session import LaunchSession
from lockstep.launch.verdict import Ended, is_consequence
from lockstep.ranks.control import LostError
from lockstep.ranks.placement import placement
from lockstep.ranks.process_group import NO_GPU

EXIT_USAGE = 4
REFUSAL_S = 6.0  # rank 0 may still be importing torch
# Plugins of pytest that write a file without being asked.
WRITERS = ("LFPlugin", "NFPlugin", "StepwisePlugin")


def is_rank_0() -> bool:
    """Return whether this rank prints, whichever launcher started it."""
    try:
        return placement().rank == 0
    except ValueError:  # joining refuses what the launcher has set, and somebody must say so
        return True


def leave_results(config: pytest.Config) -> None:
    """Leave pytest-benchmark's files and tables to rank 0."""
    benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    if benchmarks is not None:
        benchmarks.json = benchmarks.save = benchmarks.autosave = benchmarks.compare = None
        benchmarks.quiet = True


def refuse(error: ValueError) -> NoReturn:
    """End the session with one sentence, which rank 0 alone prints."""
    if is_rank_0():
        raise pytest.UsageError(str(error)) from error
    end_session(error, EXIT_USAGE)


def end_session(error: Exception, returncode: int) -> NoReturn:
    """End the session of this rank with a code; rank 0 says why."""
    if not is_rank_0():
        rank, named = placement().rank, getattr(error, "ranks", ())
        if rank in named:  # no other rank may know it
            errors.say(str(error))
        # A launcher ends all ranks as soon as one has ended: rank 0 needs the time to say why.
        time.sleep(REFUSAL_S)
        # Where nothing was agreed on, and no rank is named, this one may be alone: rank 0, still
        # there, had no such reason to end.
        if isinstance(error, LostError):  # which says which rank lost rank 0
            errors.say(str(error))
        elif not (isinstance(error, AgreedError) or named):
            errors.say(f"rank {rank} on {hostname()}: {error}")
    pytest.exit(str(error), returncode=returncode)


def say_own(words: str) -> None:
    """Say what only this rank may know, in a line of its own: rank 0 may be within one of dots."""
    sys.stderr.write("\n")
    errors.say(f"rank {placement().rank} on {hostname()}: {words}")


# True where these hooks came after the command line was read.
CAME_LATE = pytest.StashKey[bool]()
SETTINGS = pytest.StashKey[options.Settings]()
SESSION = pytest.StashKey[LaunchSession]()
SKIPPED = pytest.StashKey[list[str]]()
DESELECTED = pytest.StashKey[list[pytest.Item]]()
# The case that follows an item; None after the last.
NEXT = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "Lockstep: how PyTorch DDP training scales")
    for name, arguments in options.OPTIONS.items():
        group.addoption(name, **arguments)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if not is_rank_0():
        leave_files(config)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    for study in studies.NAMES:
        config.addinivalue_line("markers", f"{study}: cases of the {study} study")
    config.addinivalue_line("markers", "cases(study): parametrize from the named size")
    if folder := getattr(config.option, "torch_trace", None):
        config.pluginmanager.register(Tracing(folder))
    if not is_rank_0():
        config.pluginmanager.unregister(name="terminalreporter")
        leave_results(config)
        for plugin in config.pluginmanager.get_plugins():
            if type(plugin).__name__ in WRITERS:
                config.pluginmanager.unregister(plugin)
    try:
        is_alone = placement().world_size == 1
    except ValueError:  # which joining refuses
        is_alone = False
    if config.pluginmanager.hasplugin("dsession") and not is_alone:
        # pytest-xdist would start its workers before the ranks could refuse it.
        config.pluginmanager.unregister(name="dsession")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # Where -p names this plugin, it is configured before pytest-benchmark is.
    if not is_rank_0():
        leave_results(session.config)


def pytest_collection(session: pytest.Session) -> None:
    # Once files are collected, pytest would show a wrong option as an error of each of them.
    try:
        options.check(session.config.option)
        if placement().world_size > 1:
            options.refuse_options(session.config)
    except ValueError as error:
        refuse(error)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("cases")
    if marker is None:
        return
    if SETTINGS not in metafunc.config.stash:  # the first measured case
        # A warning of another release of torch is no reason to lose a measurement.
        metafunc.config.addinivalue_line("filterwarnings", "default")
        warnings.simplefilter("default")  # the collection is already under the file's filters
    (study,) = marker.args
    rows = studies.rows(study, _settings(metafunc.config).size)
    mark = getattr(pytest.mark, study)
    params = [pytest.param(*row.values(), id=sizes.case_id(row), marks=[mark]) for row in rows]
    # What is set on request is no argument of the test; `build_step` finds it in the case.
    asked = studies.STUDIES[study].on_request
    metafunc.fixturenames.extend({*rows[0]} & {*asked} - {*metafunc.fixturenames})
    metafunc.parametrize(list(rows[0]), params)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a silenced rank say what it cannot collect, for its end would be an exit code alone."""
    report = yield
    if report.outcome == "failed" and not is_rank_0():
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E  ")]
        say_own(f"cannot collect {report.nodeid}: {lines[-1][1:].strip() if lines else 'error'}")
    elif report.outcome == "skipped":
        collector.config.stash.setdefault(SKIPPED, []).append(f"{report.nodeid}: {_reason(report)}")
    return report


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Let a silenced rank say why it ends the session, where `_exit` has not."""
    code = getattr(excinfo.value, "returncode", None)
    if isinstance(excinfo.value, pytest.Session.Interrupted):
        return  # the launch ends in order, and rank 0 says why
    words = f"ended the session: {excinfo.typename}: {excinfo.value}".rstrip(": ")
    if is_rank_0():
        if code is not None:  # of pytest.exit in a case, which pytest prints
            errors.note(str(excinfo.value))
    elif code not in (EXIT_USAGE, EXIT_MACHINE):
        say_own(words)


def pytest_internalerror(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Say what broke outside a case, as a signal's handler may: a silenced rank shows nothing."""
    say_own(f"broke outside a case: {excinfo.typename}: {excinfo.value}".rstrip(": "))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    measured = [item for item in items if is_measured(item)]
    try:
        options.refuse_tests(items, measured, placement().world_size)
        left_out = config.stash.get(DESELECTED, [])
        if left_out or measured:
            options.refuse_selection(config, left_out, _settings(config).labels)
        if not measured:
            return
        if placement().world_size > 1:  # for hooks that came late
            options.refuse_options(config)
        options.refuse_ignored(config)
        chosen = of_part(measured, _settings(config).part)
        # A worker of pytest-xdist has a workerinput.
        if not config.option.collectonly and not hasattr(config, "workerinput"):
            chosen = _begin(config, chosen)
    except ImportError as error:
        todo = 'pip install "/path/to/checkout[bench]" brings what measuring needs'
        end_session(RuntimeError(f"{error}; {todo}"), EXIT_MACHINE)
    except (ValueError, RuntimeError, OSError) as error:
        if launch := config.stash.get(SESSION, None):
            launch.close()  # all ranks refuse alike, so no rank loses the store early
            del config.stash[SESSION]
        if isinstance(error, ValueError):
            refuse(error)
        end_session(error, EXIT_MACHINE)
    config.hook.pytest_deselected(items=[item for item in measured if item not in chosen])
    items[:] = [item for item in items if item not in measured] + chosen


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        if is_measured(item):
            item.config.stash.setdefault(DESELECTED, []).append(item)


def _begin(config: pytest.Config, expected: list[pytest.Item]) -> list[pytest.Item]:
    """Join the other ranks and return the cases that are left to measure."""
    # There is one timer, the watchdog's; pytest's own plugin would cancel it at each failure.
    if config.pluginmanager.hasplugin("faulthandler"):
        config.pluginmanager.unregister(name="faulthandler")
    launch = config.stash[SESSION] = sessions.join(_settings(config))
    chosen = launch.prepare(expected)
    benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    document = {  # the head of pytest-benchmark's JSON, as its own hooks make it
        "machine_info": benchmarks.get_machine_info() | {"node": hostname()},
        "commit_info": config.hook.pytest_benchmark_generate_commit_info(config=config),
        "datetime": datetime.now(UTC).isoformat(),
        "version": version("pytest-benchmark"),
    }
    launch.open_journal([case_of(item) for item in expected], document)
    if launch.writer.folder:
        errors.keep_in(launch.writer.folder, launch.world.rank)
    for item in chosen:
        item.add_marker(pytest.mark.benchmark(timer=launch.clock, group=study_of(item)))
    return chosen


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    launch = config.stash.get(SESSION, None)
    if launch is None or not launch.provenance:  # pytest reports a refused collection, too
        return []
    w, settings = launch.world, launch.settings
    lines = [
        f"lockstep: world size {w.world_size} on {w.num_nodes} node(s), {w.backend} on "
        f"{', '.join(launch.provenance['device_names'])}, {w.threads_per_rank} thread(s) a rank",
        f"lockstep: size {settings.size_name} ({settings.size.rounds} rounds of "
        f"{counted(settings.size.steps_per_round, 'step')}), "
        f"journal {settings.journal_path or '-'}",
    ]
    if w.device.type == "cpu" and settings.device is None:
        # Hooks that came late lack the option until they are named.
        named = f"-p {HOOKS} --device" if config.stash.get(CAME_LATE, False) else "--device"
        lines.append(f"lockstep: {NO_GPU.replace('--device', named, 1)}")
    return lines + [f"lockstep: flag: {flag}" for flag in launch.flags]


def results_of_session(config: pytest.Config) -> Path | None:
    """Return where rank 0 keeps what was measured; None where the caller has named a place."""
    launch = config.stash.get(SESSION, None)
    path = launch and launch.writer.journal and launch.settings.journal_path
    unnamed = path and path.parent.parent == options.UNNAMED and journal.outcomes(path)
    return path.parent if path and unnamed else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.stash[NEXT] = case_of(nextitem) if nextitem else None


@pytest.hookimpl(tryfirst=True)  # before pytest skips a marked case, or the ranks lose count
def pytest_runtest_setup(item: pytest.Item) -> None:
    launch = _launch_of(item)
    if launch is not None:
        launch.begin(case_of(item))
        if launch.ending:
            raise item.session.Interrupted(launch.ending.reason)
    elif is_measured(item) and hasattr(item.config, "workerinput"):
        pytest.fail(options.IN_A_WORKER, pytrace=False)


def _launch_of(item: pytest.Item) -> LaunchSession | None:
    return item.config.stash.get(SESSION, None) if is_measured(item) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    launch = _launch_of(item)
    if launch is None:
        return report
    reason = _reason(report)
    if report.outcome != "failed":
        ended = Ended(report.outcome, reason)
    elif call.excinfo is None:  # as where a case passed that was to fail
        ended = Ended.with_words(reason)
    else:
        error = call.excinfo
        ended = Ended("failed", reason, error.exconly(), is_consequence(error.value))
    _settle(launch, item, report, ended)
    if call.excinfo:
        _forget(call.excinfo.value)
    if launch.ending:
        item.session.shouldstop = launch.ending.reason
    return report


def _settle(
    launch: LaunchSession, item: pytest.Item, report: pytest.TestReport, ended: Ended
) -> None:
    """Give a phase of the case, which has ended on this rank, the outcome that holds on all."""
    benchmark: Any = getattr(item, "funcargs", {}).get("benchmark")
    if report.when == "setup":
        settled = launch.end_set_up(ended)
    elif report.when == "call":
        if ended.outcome == "passed" and launch.settings.journal_path and not launch.current.part:
            ended = Ended.with_words("it recorded nothing; call lockstep.measure")
        settled = launch.end_call(ended, lambda: _entry(launch, item, benchmark))
    else:
        settled = launch.leave_case(ended, item.stash[NEXT])
    if settled.outcome == "failed":
        if benchmark is not None and benchmark.stats:
            benchmark.has_error = True
            benchmark.stats.stats.data.clear()
        if launch.world.world_size > 1 or report.outcome == "passed":
            report.longrepr = settled.reason
    report.outcome = settled.outcome


def _entry(launch: LaunchSession, item: pytest.Item, benchmark: Any) -> tuple[dict[str, Any], str]:
    """Return what the journal is to keep of a case that passed, and why it cannot, if so."""
    if benchmark is None or not benchmark.stats:  # under --benchmark-disable
        return {}, ""
    stats, size = benchmark.stats, launch.world.world_size
    stats.name, stats.fullname = (sized_name(name, size) for name in (stats.name, stats.fullname))
    params = {"params": params_of(item)} if stats.params else {}
    entry = {"kind": "case", "case": case_of(item), "benchmark": stats.as_dict() | params}
    try:
        return journal.fixed(entry), ""
    except (TypeError, ValueError) as error:
        return {}, f"the journal cannot keep what it recorded: {error}"


def _forget(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold, such as a process group to be built again."""
    seen = set[int]()  # `raise ... from` may close a chain of causes to a ring
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):  # pytest keeps them
        vars(sys).pop(name, None)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


@pytest.hookimpl(optionalhook=True)  # sessions that measure nothing may leave the plugin out
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Make the JSON from the journal's records: failed cases out, a resumed launch's in."""
    launch = config.stash.get(SESSION, None)
    if launch is not None and launch.writer.journal is not None:
        rebuilt = journal.rebuild(launch.writer.journal.path)
        output_json |= {"benchmarks": rebuilt["benchmarks"], KEY: rebuilt[KEY]}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    launch = session.config.stash.get(SESSION, None)
    skipped = session.config.stash.get(SKIPPED, [])
    if launch is None and skipped and not is_rank_0():
        say_own(f"skips all that it could measure: {skipped[0]}")
    if launch is not None and not launch.write_json(session.config):
        session.exitstatus = EXIT_IO
    # That nothing was measured is a warning, which as an error would hide what failed.
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            return (yield)
        finally:
            if launch is not None:
                launch.leave(session.config)


def _settings(config: pytest.Config) -> options.Settings:
    if SETTINGS not in config.stash:
        config.stash[SETTINGS] = options.read(_option(config))
    return config.stash[SETTINGS]


def _option(config: pytest.Config) -> Any:
    """Return the session's options, ours with their defaults if it began without them."""
    if not config.stash.get(CAME_LATE, False):
        return config.option
    return argparse.Namespace(**vars(config.option) | options.defaults())
