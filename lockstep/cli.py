"""The command `lockstep`, assembled from one small command module per room.

A command's module is loaded only for that command, so the start is quick and needs
neither torch nor pandas. Exit codes: 0 done; 1 a case, check or gate failed; 2 the input is wrong;
3 the machine failed; 130 interrupted.
"""

import difflib
import importlib
import os
import sys

import click

from lockstep.core.formats import one_line

# group -> command -> (where it is, one line for --help), in the order a user meets them
GROUPS = {
    "Measure on this machine": {
        "demo": (
            "lockstep.report.report_cli:demo",
            "Show the page of a recorded campaign, in seconds.",
        ),
        "run": ("lockstep.campaign.local.run_cli:run", "Measure a campaign on this machine."),
        "diagnose": (
            "lockstep.campaign.local.diagnose_cli:diagnose",
            "Answer one question about scaling, in about five minutes.",
        ),
        "verify": (
            "lockstep.trainer.cli:verify",
            "Check that DDP trains alike at two world sizes.",
        ),
        "train": (
            "lockstep.trainer.cli:train",
            "Train a workload with DDP and keep its curves.",
        ),
        "data": ("lockstep.trainer.cli:data", "List data sets to train on, or fetch one."),
    },
    "Before measuring": {
        "doctor": (
            "lockstep.before.doctor.doctor_cli:doctor",
            "Say whether this machine can measure.",
        ),
        "screen": (
            "lockstep.before.screen.screen_cli:screen",
            "Find a slow node, device or link before a campaign.",
        ),
        "system": (
            "lockstep.machine.system_cli:system",
            "Describe this machine, as SYSTEM.md or JSON.",
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
        "render": (
            "lockstep.slurm.submit.submit_cli:render",
            "Write the batch scripts of a campaign.",
        ),
        "submit": ("lockstep.slurm.submit.submit_cli:submit", "Send a campaign's jobs to Slurm."),
        "status": (
            "lockstep.slurm.status.status_cli:status",
            "Say how far a campaign's jobs and launches are.",
        ),
        "serve": (
            "lockstep.slurm.status.serve_cli:serve",
            "Serve a campaign's status page, and take events of its jobs.",
        ),
        "resume": (
            "lockstep.slurm.submit.submit_cli:resume",
            "Send what a campaign's jobs have not measured yet.",
        ),
        "cancel": (
            "lockstep.slurm.status.jobs_cli:cancel",
            "Cancel a campaign's jobs that have not ended.",
        ),
        "collect": (
            "lockstep.slurm.status.jobs_cli:collect",
            "Gather what a campaign's jobs have measured.",
        ),
    },
    "Any job of Slurm": {
        "jobs": ("lockstep.slurm.any_job.any_job_cli:jobs", "Say what all your jobs of Slurm do."),
        "nodes": (
            "lockstep.slurm.any_job.any_job_cli:nodes",
            "Say what each node does, for whom, or why it is drained.",
        ),
        "why": (
            "lockstep.slurm.any_job.any_job_cli:why",
            "Say why a job waits, when it may start, or how it ended.",
        ),
        "eff": (
            "lockstep.slurm.any_job.any_job_cli:eff",
            "Say how well a job used CPUs, memory and time.",
        ),
        "top": (
            "lockstep.slurm.any_job.any_job_cli:top",
            "Show what the nodes of a running job do now.",
        ),
        "shell": (
            "lockstep.slurm.any_job.any_job_cli:shell",
            "Open a shell in an allocation like a point's.",
        ),
    },
    "Read results": {
        "report": (
            "lockstep.report.report_cli:report",
            "Make the scaling report of measured or imported results.",
        ),
        "check": (
            "lockstep.report.check.check_cli:check",
            "Say whether results are a valid scaling study.",
        ),
        "compare": (
            "lockstep.report.compare.compare_cli:compare",
            "Say of each point whether B is faster than A.",
        ),
        "gate": ("lockstep.report.gate.gate_cli:gate", "Say whether results reach their targets."),
        "predict": (
            "lockstep.report.predict.predict_cli:predict",
            "Predict a world size, or recommend one.",
        ),
        "import": (
            "lockstep.report.report_cli:import_table",
            "Read a published or hand-made table into points.",
        ),
        "export": (
            "lockstep.report.tracker.export_cli:export",
            "Give results to MLflow, TensorBoard or another program.",
        ),
        "sync": (
            "lockstep.report.tracker.export_cli:sync",
            "Send a tracker what it lacks of results.",
        ),
        "bundle": (
            "lockstep.report.bundle.bundle_cli:bundle",
            "Pack results, their page and how to reproduce them.",
        ),
    },
}
COMMANDS = {name: facts for group in GROUPS.values() for name, facts in group.items()}

# What people type as a command, and is a function.
FUNCTIONS = {
    "explain": "call lockstep.explain(step, model=ddp, batches=loader) in the training script; "
    "docs/how-to/own-training-script.md shows it",
    "measure": "call lockstep.measure(step, samples=N, ddp=ddp) in a test with the fixture "
    "lockstep; lockstep run --tests FOLDER runs such tests",
    "read": "call lockstep.read(FOLDER) in Python; lockstep report FOLDER --csv prints the same",
}
EXIT_INPUT = 2
EXIT_MACHINE = 3
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command to run it, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, click's signature
        """Return the commands in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant, or refuse a mistyped one with the nearest."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "lockstep --help lists them"
            hint = FUNCTIONS.get(args[0], hint)
            ctx.fail(f"No such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lockstep-bench", prog_name="lockstep")
@click.option("--verbose", is_flag=True, help="Where Slurm fails, say its own words, too.")
def lockstep(*, verbose: bool) -> None:
    """Measure how PyTorch data-parallel training scales, and see why it stops.

    \b
    Examples:
      lockstep run                      the built-in campaign, on this machine
      lockstep run --dry-run            what that would start
      lockstep report results/laptop    the page of its results
      lockstep import table.csv --to results/published
      lockstep init                     on a cluster: files for its Slurm, then doctor and submit
      lockstep --verbose plan campaign.toml   with Slurm's own words, where it gives no answer
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
        click.echo(f"Error: {one_line(_said(error))}", err=True)
        sys.exit(EXIT_MACHINE)
    except MemoryError:
        click.echo("Error: there is not enough memory for this; give less, or free some", err=True)
        sys.exit(EXIT_MACHINE)


def _said(error: Exception) -> str:
    """Return what an error says; of the system's, which file it is about and why."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
