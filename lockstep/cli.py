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

from lockstep.core.errors import EXIT_MACHINE
from lockstep.core.formats import one_line

# group -> command -> (module below lockstep, one line for --help), in the order a user meets them;
# the module's function has the command's name unless `:NAME` follows
GROUPS = {
    "Measure on this machine": {
        "demo": ("report.report_cli", "Show the page of a recorded campaign."),
        "run": ("campaign.run_cli", "Measure a campaign; see also run train, run verify and run "
                                    "data."),
        "diagnose": ("campaign.run_cli",
            "Look for one cause of poor scaling in five minutes: loader, nodes ..."),
    },
    "Before measuring": {
        "doctor": ("before.doctor.doctor_cli",
            "Check whether this machine can measure, or list its hardware."),
        "screen": ("before.screen.screen_cli",
            "Find a slow node, device or link before a campaign."),
        "init": ("before.init.init_cli", "Write a site file and a campaign file for this machine."),
        "lint": ("before.lint.lint_cli", "Find errors in your own scripts."),
        "image": ("image.image_cli", "Build, inspect, verify or hash a container image."),
    },
    "Measure on Slurm": {
        "plan": ("slurm.submit.plan_cli", "Show the Slurm jobs of a campaign and their cost."),
        "submit": ("slurm.submit.submit_cli",
            "Submit a campaign's jobs to Slurm, or write their scripts."),
        "status": ("slurm.status.status_cli",
            "Show the progress of a campaign's jobs, and collect their results."),
        "resume": ("slurm.submit.submit_cli",
            "Submit a campaign's launches that are not measured yet."),
        "cancel": ("slurm.status.status_cli", "Cancel a campaign's jobs that have not ended."),
        "slurm": ("cli",
            "Use a command for any Slurm job: jobs, why, eff, top, nodes, shell, serve."),
    },
    "Read results": {
        "report": ("report.report_cli", "Make the scaling report of measured or imported results."),
        "check": ("report.check.check_cli",
            "Check whether results are valid and reach their targets."),
        "compare": ("report.compare.compare_cli",
            "Show for each point whether results B are faster than results A."),
        "predict": ("report.predict.predict_cli",
            "Predict results at a world size, or recommend a world size."),
        "import": ("report.report_cli:import_table",
            "Import a published or hand-made table as measured points."),
        "explain": ("report.profiles.explain_cli", "Show where the time of a profiled step goes."),
        "export": ("report.tracker.export_cli",
            "Export results to MLflow, TensorBoard or another program."),
        "bundle": ("report.bundle.bundle_cli",
            "Pack results, their page and instructions to reproduce them."),
    },
}  # fmt: skip
# Commands of two words, whose first word is a command as well.
SECOND_WORDS = {
    "run train": (
        "trainer.training_cli",
        "Train a workload with DDP and record its loss and accuracy curves.",
    ),
    "run verify": (
        "trainer.training_cli",
        "Check that DDP gives the same training result at two world sizes.",
    ),
    "run data": ("trainer.training_cli", "List, fetch or make data sets to train on."),
}
ANY_JOB = {
    "jobs": ("slurm.any_job.any_job_cli", "Show all your Slurm jobs."),
    "nodes": ("slurm.any_job.any_job_cli",
        "Show the state and jobs of each node, or why a node is drained."),
    "why": ("slurm.any_job.any_job_cli",
        "Show why a job waits, when it may start, or how it ended."),
    "eff": ("slurm.any_job.any_job_cli", "Show how well a job used its CPUs, memory and time "
                                         "limit."),
    "top": ("slurm.any_job.any_job_cli", "Show the current load of a running job's nodes."),
    "shell": ("slurm.any_job.any_job_cli",
        "Open a shell on as many nodes as a campaign needs for one world size."),
    "serve": ("slurm.status.serve_cli",
        "Serve a campaign's status page, and receive events of its jobs."),
}  # fmt: skip
COMMANDS = {name: facts for group in GROUPS.values() for name, facts in group.items()}

# Mistaken command -> what to use instead.
MEANT = {
    "measure": "call lockstep.measure(step, samples=N, ddp=ddp) in a test that takes the pytest "
    "fixture lockstep, then run lockstep run --tests FOLDER",
    "read": "call lockstep.read(FOLDER) in Python, or print the same table with lockstep report "
    "FOLDER --csv",
    **{name: f"use lockstep slurm {name}" for name in ANY_JOB},
    **{two.partition(" ")[2]: f"use lockstep {two}" for two in SECOND_WORDS},
}
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command to run it, not to list it; its tables are as `GROUPS`."""

    def __init__(
        self,
        *,
        groups: dict[str, dict[str, tuple[str, str]]],
        second_words: dict[str, tuple[str, str]] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(**attributes)
        self.groups = groups
        self.known = {name: row for group in groups.values() for name, row in group.items()}
        self.known |= second_words or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, click's signature
        """Return the commands in the table's order."""
        return list(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none of that name."""
        if cmd_name not in self.known:
            return None
        module_name, _, function = self.known[cmd_name][0].partition(":")
        module = importlib.import_module(f"lockstep.{module_name}")
        command: click.Command = getattr(module, function or cmd_name.split()[-1])
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
    help="Show any Slurm job, even of other programs, or serve a status page.",
    groups={"Commands": ANY_JOB},
    context_settings=CONTEXT,
)


@click.command(cls=LazyGroup, groups=GROUPS, second_words=SECOND_WORDS, context_settings=CONTEXT)
@click.version_option(package_name="lockstep-bench", prog_name="lockstep")
@click.option(
    "--verbose", is_flag=True, help="If a Slurm command fails, also print its error message."
)
def lockstep(*, verbose: bool) -> None:
    """Measure how PyTorch data-parallel training scales, and see why it stops.

    \b
    Examples:
      lockstep run                     # measure the built-in campaign on this machine
      lockstep run --dry-run           # print the launches without starting them
      lockstep report results/laptop   # make the report of the results
      lockstep import table.csv --to results/published
      lockstep init                    # write a site file and a campaign file for a cluster
      lockstep --verbose plan campaign.toml   # also print the message of a failed Slurm command
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
        if context is not None and text == context.get_help():  # a group without its command
            click.echo(text, err=True)
        else:
            click.UsageError(one_line(text), context).show()
        sys.exit(EXIT_INPUT)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        elif isinstance(error, MemoryError):
            text = "there is not enough memory; use less data, or free some memory"
        click.echo(f"Error: {one_line(text)}", err=True)
        sys.exit(EXIT_INPUT if isinstance(error, ValueError) else EXIT_MACHINE)
