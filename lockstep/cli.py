"""The command `lockstep`, assembled from one small command module per room.

A command's module is loaded only for that command, so the start is quick and needs
neither torch nor pandas. Exit codes: 0 done; 1 a case, a check or a target failed; 2 the input is
wrong; 3 the machine failed; 130 interrupted.
"""

import difflib
import importlib
import os
import sys
from typing import Any

import click

from lockstep.core.formats import one_line

# group -> command -> (where it is, one line for --help), in the order a user meets them
GROUPS = {
    "Measure on this machine": {
        "demo": (
            "lockstep.report.report_cli:demo",
            "Show the page of a recorded campaign, in seconds.",
        ),
        "run": (
            "lockstep.campaign.run_cli:run",
            "Measure a campaign; or: run train, run verify, run data.",
        ),
        "diagnose": (
            "lockstep.campaign.run_cli:diagnose",
            "Answer one question about scaling, in about five minutes.",
        ),
    },
    "Before measuring": {
        "doctor": (
            "lockstep.before.doctor.doctor_cli:doctor",
            "Check whether this machine can measure, and describe it.",
        ),
        "screen": (
            "lockstep.before.screen.screen_cli:screen",
            "Find a slow node, device or link before a campaign.",
        ),
        "init": (
            "lockstep.before.init.init_cli:init",
            "Write a site and a campaign file for this place.",
        ),
        "lint": ("lockstep.before.lint.lint_cli:lint", "Find errors in your own scripts."),
        "image": ("lockstep.image.image_cli:image", "Build, inspect, verify or hash the image."),
    },
    "Measure on Slurm": {
        "plan": (
            "lockstep.slurm.submit.plan_cli:plan",
            "Show the Slurm jobs of a campaign and their cost.",
        ),
        "submit": (
            "lockstep.slurm.submit.submit_cli:submit",
            "Submit a campaign's jobs to Slurm, or write their scripts.",
        ),
        "status": (
            "lockstep.slurm.status.status_cli:status",
            "Show the progress of a campaign's jobs, and collect their results.",
        ),
        "resume": (
            "lockstep.slurm.submit.submit_cli:resume",
            "Submit what a campaign's jobs have not measured yet.",
        ),
        "cancel": (
            "lockstep.slurm.status.jobs_cli:cancel",
            "Cancel a campaign's jobs that have not ended.",
        ),
        "slurm": (
            "lockstep.cli:slurm",
            "Any job: jobs, nodes, why, eff, top, shell; serve a status page.",
        ),
    },
    "Read results": {
        "report": (
            "lockstep.report.report_cli:report",
            "Make the scaling report of measured or imported results.",
        ),
        "check": (
            "lockstep.report.check.check_cli:check",
            "Check whether results are valid, and reach their targets.",
        ),
        "compare": (
            "lockstep.report.compare.compare_cli:compare",
            "Show for each point whether B is faster than A.",
        ),
        "predict": (
            "lockstep.report.predict.predict_cli:predict",
            "Predict a world size, or recommend one.",
        ),
        "import": (
            "lockstep.report.report_cli:import_table",
            "Read a published or hand-made table into points.",
        ),
        "explain": (
            "lockstep.report.profiles.explain_cli:explain",
            "Show where the time of a profiled step goes.",
        ),
        "export": (
            "lockstep.report.tracker.export_cli:export",
            "Export results to MLflow, TensorBoard or another program.",
        ),
        "bundle": (
            "lockstep.report.bundle.bundle_cli:bundle",
            "Pack results, their page and how to reproduce them.",
        ),
    },
}
# Commands of two words whose first one is a command of its own, too.
SECOND_WORDS = {
    "run train": (
        "lockstep.trainer.training_cli:train",
        "Train a workload with DDP and keep its curves.",
    ),
    "run verify": (
        "lockstep.trainer.training_cli:verify",
        "Check that DDP trains the same at two world sizes.",
    ),
    "run data": ("lockstep.trainer.training_cli:data", "List data sets to train on, or fetch one."),
}
ANY_JOB = {
    "jobs": ("lockstep.slurm.any_job.any_job_cli:jobs", "Show all your jobs of Slurm."),
    "nodes": (
        "lockstep.slurm.any_job.any_job_cli:nodes",
        "Show each node's state and jobs, or why it is drained.",
    ),
    "why": (
        "lockstep.slurm.any_job.any_job_cli:why",
        "Show why a job waits, when it may start, or how it ended.",
    ),
    "eff": (
        "lockstep.slurm.any_job.any_job_cli:eff",
        "Show how well a job used CPUs, memory and time.",
    ),
    "top": (
        "lockstep.slurm.any_job.any_job_cli:top",
        "Show the current load of a running job's nodes.",
    ),
    "shell": (
        "lockstep.slurm.any_job.any_job_cli:shell",
        "Open a shell in an allocation like a point's.",
    ),
    "serve": (
        "lockstep.slurm.status.serve_cli:serve",
        "Serve a campaign's status page, and take events of its jobs.",
    ),
}
COMMANDS = {name: facts for group in GROUPS.values() for name, facts in group.items()}

# Old or mistaken command -> what to use instead.
MEANT = {
    "measure": "call lockstep.measure(step, samples=N, ddp=ddp) in a test with the fixture "
    "lockstep; lockstep run --tests FOLDER runs such tests",
    "read": "call lockstep.read(FOLDER) in Python; lockstep report FOLDER --csv prints the same",
    "gate": "it is lockstep check FOLDER --targets FILE",
    "system": "it is lockstep doctor --system",
    "render": "it is lockstep submit CAMPAIGN --by-hand",
    "collect": "it is lockstep status FOLDER --collect",
    "sync": "it is lockstep export again FOLDER",
    **{name: f"it is lockstep slurm {name}" for name in ANY_JOB},
    **{two.partition(" ")[2]: f"it is lockstep {two}" for two in SECOND_WORDS},
}
EXIT_INPUT = 2
EXIT_MACHINE = 3
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command to run it, not to list it.

    Args:
        groups: Title -> command -> (where it is, one line for --help).
        second_words: Commands of two words, in the same form.
    """

    def __init__(
        self,
        *,
        groups: dict[str, dict[str, tuple[str, str]]],
        second_words: dict[str, tuple[str, str]] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(**attributes)
        self.groups = groups
        self.listed = {name: facts for group in groups.values() for name, facts in group.items()}
        self.known = self.listed | (second_words or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, click's signature
        """Return the commands in the table's order."""
        return list(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none of that name."""
        if cmd_name not in self.known:
            return None
        module_name, _, attribute = self.known[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant, or refuse a mistyped one with the nearest."""
        if (two := " ".join(args[:2])) in self.known:
            return two, self.get_command(ctx, two), args[2:]
        if args[0] not in self.known and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"{ctx.command_path} --help lists them"
            hint = MEANT.get(args[0], hint)
            ctx.fail(f"No such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        for title, commands in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


CONTEXT = {"help_option_names": ["-h", "--help"]}
slurm = LazyGroup(
    name="slurm",
    help="Show any job of Slurm, also of other programs, or serve a status page.",
    groups={"Commands": ANY_JOB},
    context_settings=CONTEXT,
)


@click.command(cls=LazyGroup, groups=GROUPS, second_words=SECOND_WORDS, context_settings=CONTEXT)
@click.version_option(package_name="lockstep-bench", prog_name="lockstep")
@click.option("--verbose", is_flag=True, help="If Slurm fails, also print its own message.")
def lockstep(*, verbose: bool) -> None:
    """Measure how PyTorch data-parallel training scales, and see why it stops.

    \b
    Examples:
      lockstep run                      the built-in campaign, on this machine
      lockstep run --dry-run            what that would start
      lockstep report results/laptop    the page of its results
      lockstep import table.csv --to results/published
      lockstep init                     on a cluster: files for its Slurm, then doctor and submit
      lockstep --verbose plan campaign.toml   with Slurm's own message, if it fails
    """
    if verbose:
        os.environ["LOCKSTEP_VERBOSE"] = "1"


def main() -> None:
    """Run the command; errors become one sentence on stderr and an exit code."""
    try:
        result = lockstep.main(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        text, context = error.format_message(), getattr(error, "ctx", None)
        if context is not None and text == context.get_help():  # what a group alone raises
            click.echo(text, err=True)
        else:
            click.UsageError(one_line(text), context).show()
        sys.exit(EXIT_INPUT)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except ValueError as error:
        click.echo(f"Error: {one_line(str(error))}", err=True)
        sys.exit(EXIT_INPUT)
    except (RuntimeError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        click.echo(f"Error: {one_line(text)}", err=True)
        sys.exit(EXIT_MACHINE)
    except MemoryError:
        click.echo("Error: not enough memory; give less data, or free some memory", err=True)
        sys.exit(EXIT_MACHINE)
