"""pytest's hooks of a session that measures: options, output by rank 0 alone, outcomes of cases.

If `lockstep.plugin` loads these hooks after the collection, the options have their defaults.
"""

import argparse
import os
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
from lockstep.core.errors import EXIT_CANNOT_MEASURE, EXIT_IO, AgreedError
from lockstep.core.formats import counted
from lockstep.core.processes import hostname
from lockstep.core.record import KEY, sized_name
from lockstep.launch import HOOKS, leave_files, options
from lockstep.launch import session as sessions
from lockstep.launch.items import case_of, is_measured, params_of, select_part, study_of
from lockstep.launch.profiler import NSYS, Marking, Tracing
from lockstep.launch.session import LaunchSession
from lockstep.launch.verdict import Ended, is_consequence
from lockstep.ranks.control import LostError
from lockstep.ranks.placement import Placement, placement
from lockstep.ranks.process_group import NO_GPU

EXIT_USAGE = 4
REFUSAL_S = 6.0  # time for rank 0, which may still be importing torch
# Plugins of pytest that write a file without an option.
WRITERS = ("LFPlugin", "NFPlugin", "StepwisePlugin")


def _place() -> Placement:
    try:
        return placement()
    except ValueError:  # wrong variables of the launcher, which joining refuses with a message
        return Placement(world_size=0)


def is_rank_0() -> bool:
    return _place().rank == 0


def leave_results(config: pytest.Config) -> None:
    benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    if benchmarks is not None:
        benchmarks.json = benchmarks.save = benchmarks.autosave = benchmarks.compare = None
        benchmarks.quiet = True


def refuse(error: ValueError) -> NoReturn:
    """End the session with one sentence, printed by rank 0."""
    if is_rank_0():
        raise pytest.UsageError(str(error)) from error
    end_session(error, EXIT_USAGE)


def end_session(error: Exception, returncode: int) -> NoReturn:
    """End the session of this rank with an exit code; rank 0 prints why."""
    if not is_rank_0():
        rank, named = placement().rank, getattr(error, "ranks", ())
        if rank in named:  # perhaps no other rank knows of the error
            errors.say(str(error))
        # A launcher ends all ranks as soon as one rank has ended, so give rank 0 time to print.
        time.sleep(REFUSAL_S)
        if isinstance(error, LostError):  # its text names the rank
            errors.say(str(error))
        elif not (isinstance(error, AgreedError) or named):  # perhaps rank 0 does not know of it
            errors.say(f"rank {rank} on {hostname()}: {error}")
    pytest.exit(str(error), returncode=returncode)


def say_own(words: str) -> None:
    """Print a message of this rank, on a new line after rank 0's dots."""
    sys.stderr.write("\n")
    errors.say(f"rank {placement().rank} on {hostname()}: {words}")


# Whether these hooks were loaded after the command line was read.
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
        config.addinivalue_line("markers", f"{study}: marks the cases of the study {study}")
    config.addinivalue_line(
        "markers", "cases(study): parametrize the test with the cases of a study"
    )
    if folder := getattr(config.option, "torch_trace", None):
        config.pluginmanager.register(Tracing(folder))
    elif NSYS in os.environ:
        config.pluginmanager.register(Marking())
    if not is_rank_0():
        config.pluginmanager.unregister(name="terminalreporter")
        leave_results(config)
        for plugin in config.pluginmanager.get_plugins():
            if type(plugin).__name__ in WRITERS:
                config.pluginmanager.unregister(plugin)
    if config.pluginmanager.hasplugin("dsession") and _place().world_size != 1:
        # pytest-xdist would start its workers before the ranks could refuse the option.
        config.pluginmanager.unregister(name="dsession")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # With -p this plugin is configured before pytest-benchmark, so do this again.
    if not is_rank_0():
        leave_results(session.config)


def pytest_collection(session: pytest.Session) -> None:
    # Later, while pytest collects files, a wrong option would become an error of each file.
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
        # A warning by another release of torch must not fail a measurement.
        metafunc.config.addinivalue_line("filterwarnings", "default")
        warnings.simplefilter("default")  # the collection already uses the filters of the ini file
    (study,) = marker.args
    if study not in studies.STUDIES:
        names = ", ".join(studies.STUDIES)
        text = (
            f"there is no study {study}; choose from {names}, or add the study to "
            "lockstep/core/studies.py"
        )
        pytest.fail(text, pytrace=False)
    rows = studies.rows(study, _settings(metafunc.config).size)
    mark = getattr(pytest.mark, study)
    params = [pytest.param(*row.values(), id=sizes.case_id(row), marks=[mark]) for row in rows]
    # A factor need not be an argument of the test, which may read it from `lockstep.factors`.
    metafunc.fixturenames.extend(name for name in rows[0] if name not in metafunc.fixturenames)
    metafunc.parametrize(list(rows[0]), params)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a rank above 0 print what it cannot collect, which its exit code does not show."""
    report = yield
    if report.outcome == "failed" and not is_rank_0():
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E  ")]
        say_own(f"cannot collect {report.nodeid}: {lines[-1][1:].strip() if lines else 'error'}")
    elif report.outcome == "skipped":
        collector.config.stash.setdefault(SKIPPED, []).append(f"{report.nodeid}: {_reason(report)}")
    return report


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Let a rank above 0 print why it ends the session."""
    code = getattr(excinfo.value, "returncode", None)
    if isinstance(excinfo.value, pytest.Session.Interrupted):
        return  # the launch ends in order, and rank 0 prints why
    words = f"ended the session: {excinfo.typename}: {excinfo.value}".rstrip(": ")
    if is_rank_0():
        if code is not None:  # pytest.exit in a case, whose reason pytest prints
            errors.note(str(excinfo.value))
    elif code not in (EXIT_USAGE, EXIT_CANNOT_MEASURE):
        say_own(words)


def pytest_internalerror(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Print an error outside a case, for example of a signal handler, on any rank."""
    say_own(f"an error occurred outside a case: {excinfo.typename}: {excinfo.value}".rstrip(": "))


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
        if placement().world_size > 1:  # not checked yet if the hooks were loaded late
            options.refuse_options(config)
        options.refuse_ignored(config)
        chosen = select_part(measured, _settings(config).part)
        # Only a worker of pytest-xdist has `workerinput`.
        if not config.option.collectonly and not hasattr(config, "workerinput"):
            chosen = _begin(config, chosen)
    except ImportError as error:
        todo = (
            'run pip install "/path/to/checkout[bench]" to install the packages that measuring '
            "needs"
        )
        end_session(RuntimeError(f"{error}; {todo}"), EXIT_CANNOT_MEASURE)
    except (ValueError, RuntimeError, OSError) as error:
        if launch := config.stash.get(SESSION, None):
            launch.close()  # all ranks refuse together, so no rank loses the store early
            del config.stash[SESSION]
        if isinstance(error, ValueError):
            refuse(error)
        end_session(error, EXIT_CANNOT_MEASURE)
    config.hook.pytest_deselected(items=[item for item in measured if item not in chosen])
    items[:] = [item for item in items if item not in measured] + chosen


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        if is_measured(item):
            item.config.stash.setdefault(DESELECTED, []).append(item)


def _begin(config: pytest.Config, expected: list[pytest.Item]) -> list[pytest.Item]:
    # pytest's plugin faulthandler would cancel the watchdog's timer at each failure.
    if config.pluginmanager.hasplugin("faulthandler"):
        config.pluginmanager.unregister(name="faulthandler")
    launch = config.stash[SESSION] = sessions.join(_settings(config))
    chosen = launch.prepare(expected)
    benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    document = {  # the head of pytest-benchmark's JSON, made by its own hooks
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
    if launch is None or not launch.provenance:  # the collection was refused
        return []
    w, settings = launch.world, launch.settings
    devices = ", ".join(launch.provenance["device_names"])
    steps = counted(settings.size.steps_per_round, "step")
    lines = [
        f"lockstep: world size {w.world_size} on {w.num_nodes} node(s), {w.backend} on {devices}, "
        f"{w.threads_per_rank} thread(s) per rank",
        f"lockstep: size {settings.size_name} ({settings.size.rounds} rounds of {steps}), journal "
        f"{settings.journal_path or 'none'}",
    ]
    if w.device.type == "cpu" and settings.device is None:
        # If the hooks were loaded late, the option --device exists only with -p.
        named = f"-p {HOOKS} --device" if config.stash.get(CAME_LATE, False) else "--device"
        lines.append(f"lockstep: {NO_GPU.replace('--device', named, 1)}")
    return lines + [f"lockstep: flag: {flag}" for flag in launch.flags]


def results_of_session(config: pytest.Config) -> Path | None:
    """Return the results folder of a session that named no journal or JSON; else None."""
    launch = config.stash.get(SESSION, None)
    path = launch and launch.writer.journal and launch.settings.journal_path
    unnamed = path and path.parent.parent == options.UNNAMED and journal.outcomes(path)
    return path.parent if path and unnamed else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.stash[NEXT] = case_of(nextitem) if nextitem else None


@pytest.hookimpl(tryfirst=True)  # before pytest skips a marked case, so that all ranks count it
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
    elif call.excinfo is None:  # for example, a strict xfail case passed
        ended = Ended.from_words(reason)
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
    benchmark: Any = getattr(item, "funcargs", {}).get("benchmark")
    if report.when == "setup":
        settled = launch.end_set_up(ended)
    elif report.when == "call":
        if ended.outcome == "passed" and launch.settings.journal_path and not launch.current.part:
            ended = Ended.from_words("the test measured nothing; call lockstep.measure in the test")
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
    """Return the journal's entry of a passed case, or an empty entry and the reason."""
    if benchmark is None or not benchmark.stats:  # with --benchmark-disable
        return {}, ""
    stats, size = benchmark.stats, launch.world.world_size
    stats.name, stats.fullname = (sized_name(name, size) for name in (stats.name, stats.fullname))
    params = {"params": params_of(item)} if stats.params else {}
    entry = {"kind": "case", "case": case_of(item), "benchmark": stats.as_dict() | params}
    try:
        return journal.copy_as_json(entry), ""
    except (TypeError, ValueError) as error:
        return {}, f"the result cannot be written to the journal: {error}"


def _forget(error: BaseException | None) -> None:
    """Free the objects in the frames of an error, such as a process group to rebuild."""
    seen = set[int]()  # a chain of causes by `raise ... from` may be a ring
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):  # set by pytest
        vars(sys).pop(name, None)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


@pytest.hookimpl(optionalhook=True)  # a session that measures nothing may lack pytest-benchmark
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Make the JSON from the journal: without failed cases, with those of earlier sessions."""
    launch = config.stash.get(SESSION, None)
    if launch is not None and launch.writer.journal is not None:
        rebuilt = journal.rebuild(launch.writer.journal.path)
        output_json |= {"benchmarks": rebuilt["benchmarks"], KEY: rebuilt[KEY]}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    launch = session.config.stash.get(SESSION, None)
    skipped = session.config.stash.get(SKIPPED, [])
    if launch is None and skipped and not is_rank_0():
        say_own(f"skips every case: {skipped[0]}")
    if launch is not None and not launch.write_json(session.config):
        session.exitstatus = EXIT_IO
    # pytest-benchmark warns if nothing was measured; as an error this would hide the failure.
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            return (yield)
        finally:
            if launch is not None:
                launch.leave(session.config)


def _settings(config: pytest.Config) -> options.Settings:
    if SETTINGS not in config.stash:
        option = config.option
        if config.stash.get(CAME_LATE, False):  # the command line was read without these options
            option = argparse.Namespace(**vars(option) | options.defaults())
        config.stash[SETTINGS] = options.read(option)
    return config.stash[SETTINGS]
