"""`lockstep run train`, `verify` and `data`: commands about training runs.

A training run is a campaign of one case of the study `train`, which `lockstep run` launches, too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from lockstep import content, workloads
from lockstep.campaign import launcher
from lockstep.campaign.campaign import Campaign, Launch, set_threads
from lockstep.campaign.folder import Outcome
from lockstep.campaign.ladder import Ladder, only_driver
from lockstep.campaign.run_cli import fit_local_gpus
from lockstep.core import factors, journal, studies
from lockstep.core.files import default_folder
from lockstep.core.formats import counted, listed
from lockstep.core.processes import die_with_parent
from lockstep.core.record import KEY, Epoch
from lockstep.core.sizes import LR_SCALES, MAX_COUNT, OPTIMIZERS, PRECISIONS, SCHEDULERS, case_id
from lockstep.measure.loading import download, sample
from lockstep.measure.loading.download import SOURCES
from lockstep.ranks.placement import is_launched, placement, refuse_apart
from lockstep.ranks.process_group import usable_cores
from lockstep.report.tracker.live import live_sender
from lockstep.trainer.plan import Batch, TrainConfig, case_folder, refuse_changed

STUDY = "train"
# Fields that are not factors of the study: the campaign has the seed, the launch the folders.
NO_FACTORS = ("seed", "data_root", "folder")
DEFAULTS = {field.name: field.default for field in fields(TrainConfig)}
MEGA, MOST_SIZES = 1e6, 12
# An error of a rank -> the exit code of `lockstep run train`; any other error gives 3.
EXIT_CODES = {"ValueError": 2, "NoRoomError": 2, "DivergedError": 1}
# Errors whose message already names the ranks.
AGREED = ("ValueError", "NoRoomError", "DivergedError", "RankError", "OtherRankError")
# The run of `lockstep run verify` at every world size. The batch of 120 divides over 1 to 6, 8, 10
# and 12 ranks, and divides the 1,440 training digits.
VERIFY: dict[str, Any] = {
    "workload": "mlp:width=64,depth=2", "data": "digits", "global_batch": 120, "epochs": 12,
    "lr": 0.1, "scheduler": "cosine",
}  # fmt: skip
# Changes for a user's own model: few steps, since it may be large.
OWN = {"data": "synthetic", "num_synthetic": 480, "epochs": 2, "lr": 0.01}
SHIPPED = {
    "digits": "included: 1,797 handwritten digits of 8 x 8 pixels",
    "synthetic": "random samples that the workload makes, in any number",
    sample.NAME: "made by lockstep run data make: 100 images in CIFAR-10's file format",
}
KNOWN = {
    "mnist": "70,000 handwritten digits of 28 x 28 pixels, 12 MB to fetch",
    "cifar10": "60,000 photographs of 32 x 32 pixels in ten classes, 170 MB to fetch",
}
CHOICES = {
    "optimizer": OPTIMIZERS, "lr_scale": LR_SCALES, "scheduler": SCHEDULERS,
    "precision": PRECISIONS,
}  # fmt: skip


device_option = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Device to train on; by default cuda if there is a GPU.",
)


def _options_of_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of `TrainConfig` but its folder, with its default."""
    hints = get_type_hints(TrainConfig, include_extras=True)
    for field in reversed([field for field in fields(TrainConfig) if field.name != "folder"]):
        name, is_required = field.name, field.default is MISSING
        flags = {"num_workers": "--workers", "augment": "--augment/--no-augment"}
        kind, *text = get_args(hints[name]) or [hints[name]]
        kind = (*get_args(kind), kind)[0]  # int for `int | None`
        option = click.option(
            flags.get(name, f"--{name.replace('_', '-')}"),
            name,
            type=click.Choice(CHOICES[name]) if name in CHOICES else kind,
            required=is_required,
            **({} if is_required else {"default": field.default, "show_default": True}),
            help=" ".join(text) or None,
        )
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  lockstep run train --workload mlp:width=64 --data digits --global-batch 64
  lockstep run train --workload mlp:width=64 --data digits --local-batch 32 --optimizer adamw
      --lr 0.001 --warmup-epochs 1 --epochs 4 --checkpoint-every 2 --name adamw
  lockstep run train --world-size 2 --workload mnist_cnn --data mnist --local-batch 16 --epochs 5
  lockstep run train --workload resnet18_cifar --data cifar10 --global-batch 512 --lr 0.1
      --lr-scale linear --scheduler cosine --augment --precision bf16 --epochs 30 --resume
"""
)
@click.option(
    "--world-size", type=click.IntRange(min=1), default=1, show_default=True,
    help="Number of ranks to start on this machine. Under torchrun or srun, the launcher sets the "
         "number of ranks.",
)  # fmt: skip
@_options_of_config
@click.option(
    "--results", default=default_folder("results"), type=str, show_default=True,
    help="Folder that holds all runs.",
)  # fmt: skip
@click.option(
    "--name",
    default="run",
    show_default=True,
    help="Name of this run, and of its folder in --results.",
)
@click.option("--resume", is_flag=True, help="Continue from the run's checkpoint if there is one.")
@click.option(
    "--threads-per-rank", type=click.IntRange(min=1),
    help="Number of CPU threads of each rank; by default an equal share of the cores.",
)  # fmt: skip
@device_option
@click.option(
    "--timeout-s",
    default=300.0,
    show_default=True,
    help="Longest time in seconds for which a rank waits for the others.",
)
def train(
    world_size: int,
    *,
    results: str,
    name: str,
    resume: bool,
    threads_per_rank: int | None,
    device: str | None,
    timeout_s: float,
    **options: Any,
) -> None:
    """Train a model with DDP and record time, loss and accuracy of every epoch.

    The run is stored in the folder RESULTS/NAME, which `lockstep report` reads as a campaign with
    one case. The folder holds the case's record, the parameters of the last epoch (checkpoint.pt)
    and of the best epoch (best.pt), and steps.jsonl with one line per update. To make many runs,
    with repeats or on a cluster, measure a campaign instead: lockstep run rates.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError(
            f"the name {name!r} may contain only letters, digits, '.', '_' and '-'; "
            "choose another --name"
        )
    config = TrainConfig(**options)
    if absent := launcher.missing_packages():
        raise RuntimeError(absent)
    run = Run(config, Path(results) / name, world_size, device, threads_per_rank, timeout_s)
    if is_launched():
        run = replace(run, world_size=placement().world_size)
        _train_as_rank(run, resume=resume)
        return
    refuse_apart(os.environ)
    block = run.train(resume=resume)
    if sizes := block["details"].get("bucket_bytes"):
        named = listed((f"{size / MEGA:.3g}" for size in sizes), MOST_SIZES)
        click.echo(f"{counted(len(sizes), 'gradient bucket')} of {named} MB")
    click.echo(f"Next: lockstep report {run.folder}", err=True)


@dataclass(frozen=True)
class Run:
    """A training run: a campaign of one launch with one case."""

    config: TrainConfig
    folder: Path  # the campaign's folder, which contains all files of the run
    world_size: int
    device: str | None = None  # cpu or cuda; None for CUDA if there is a GPU
    threads_per_rank: int | None = None
    timeout_s: float = 300.0  # how long a rank waits for the others

    @property
    def launch(self) -> Launch:
        return Launch(self.world_size, repeat=0)

    def ladder(self) -> Ladder:
        """Return the ladder of the launch, with its number of threads chosen; refuse options."""
        config = self.config
        name, _ = workloads.parse(config.workload)
        if name not in workloads.TABLE and ":" not in name:
            workloads.builder_of(config.workload)  # a model of torchvision, or a wrong name
        # Optional factors are recorded only if they differ from their defaults, except the number
        # of synthetic samples, by which a report distinguishes such runs.
        on_request = studies.STUDIES[STUDY].on_request
        usual = {name: value for name, value in DEFAULTS.items() if name in on_request}
        if config.data == "synthetic":
            usual.pop("num_synthetic", None)
        own = {
            name: (value,)
            for name, value in vars(config).items()
            if value is not None and name not in NO_FACTORS and usual.get(name) != value
        }
        factors.check(own)
        Batch.of(config, self.world_size)
        campaign = Campaign.model_validate({
            "schema": 1, "name": self.folder.name, "studies": (STUDY,),
            "world_sizes": (self.world_size,), "repeats": 1, "size": "laptop",
            "seed": config.seed, "device": self.device, "factors": own,
            "threads_per_rank": self.threads_per_rank,
            "case_budget": float(MAX_COUNT),  # no limit for an epoch
        })  # fmt: skip
        options = f"--data-root={config.data_root}", f"--comm-timeout={self.timeout_s:g}"
        ladder = Ladder(campaign, self.folder, options=options)
        before = (ladder.results.read_claim() or {}).get("threads_per_rank")
        return replace(ladder, campaign=set_threads(campaign, before, usable_cores()))

    def train(self, *, resume: bool = False, is_quiet: bool = False) -> dict[str, Any]:
        """Train with ranks on this machine, and return the record of the case."""
        sys.path.append(str(Path.cwd()))  # ranks (`python -m`) find the user's workload there
        ladder = self.ladder()
        chosen, _ = fit_local_gpus(ladder.campaign)
        sender: AbstractContextManager[Callable[..., None]] = (
            nullcontext(lambda *_: None) if is_quiet else live_sender(self.folder)
        )
        with (
            self.claimed(replace(ladder, campaign=chosen), resume=resume) as ladder,
            sender as send,
        ):
            seen = len(_epochs(ladder, self.launch))

            def advance(launch: Launch, _: Outcome) -> None:
                nonlocal seen
                rows = _epochs(ladder, launch)
                if len(rows) > seen:
                    if not is_quiet:
                        for row in rows[seen:]:
                            show_epoch(row)
                    seen = len(rows)
                    send(0)

            outcome = ladder.run(self.launch, advance)
            send()
            return block_of(ladder, self.launch, outcome)

    @contextmanager
    def claimed(self, ladder: Ladder, *, resume: bool) -> Iterator[Ladder]:
        """Lock the folder for this run; an earlier run in it continues from its checkpoint."""
        with only_driver(self.folder, otherwise="choose another --name") as lock:
            self._prepare(ladder, resume=resume)
            ladder.results.claim(ladder.campaign, [self.launch])
            yield replace(ladder, lock=lock)

    def _prepare(self, ladder: Ladder, *, resume: bool) -> None:
        """Move an earlier run of the folder to the place where the launch continues it."""
        trained = sorted(self.folder.glob("launches/*/train/*/checkpoint.pt"))
        if trained and not resume:
            raise ValueError(f"{self.folder} already holds a run; pass --resume or another --name")
        then = ladder.results.read_claim()
        if then is None:
            return
        if trained:
            before = DEFAULTS | {name: values[0] for name, values in then["factors"].items()}
            before |= {"seed": then["seed"], "world_size": then["world_sizes"][0]}
            now = {"local_batch": self.config.local_batch, "world_size": self.world_size}
            refuse_changed(self.folder, self.config, before, **now)
        journal_file = ladder.results.journal(self.launch.name)
        is_same = {**then, **json.loads(json.dumps(ladder.campaign.facts()))} == then
        if is_same and (journal_file.exists() or not trained):
            return
        # A run with more epochs is another case, which continues in its own folder.
        (row,) = studies.rows(STUDY, ladder.campaign.measured_size())
        place = journal_file.parent / case_folder(f"test_{STUDY}[{case_id(row)}]")
        for path in (journal_file, ladder.results.result_file(self.launch.name)):
            path.unlink(missing_ok=True)
        if trained and trained[0].parent != place:
            place.parent.mkdir(parents=True, exist_ok=True)
            trained[0].parent.rename(place)


def _epochs(ladder: Ladder, launch: Launch) -> list[Epoch]:
    path = ladder.results.journal(launch.name)
    lines = journal.read(path) if path.exists() else []
    return [Epoch(**line["row"]) for line in lines if line["kind"] == "epoch"]


def show_epoch(row: Epoch) -> None:
    accuracy = "-" if row.accuracy is None else f"{row.accuracy:.4f}"
    click.echo(
        f"epoch {row.epoch}  train loss {row.loss:.4f}  validation loss "
        f"{row.validation_loss:.4f}  accuracy {accuracy}  {row.samples_per_s:,.0f} samples/s"
    )


def block_of(ladder: Ladder, launch: Launch, outcome: Outcome) -> dict[str, Any]:
    """Return the record of the case that a launch has measured, or raise what its rank raised."""
    log = ladder.results.log_file(launch.name)
    if outcome.failed:
        failed = outcome.failed[-1]
        if not failed.get("causes"):
            raise RuntimeError(f"{failed.get('reason')}; its output: {log}")
        cause = failed["causes"][0]  # of the first rank at fault
        line = (cause["error"].strip().splitlines() or ["the rank did not answer in time"])[0]
        kind, _, message = line.partition(": ")
        kind = kind.rpartition(".")[2]
        text = message if kind in AGREED else f"rank {cause['rank']} on {cause['host']}: {line}"
        code = EXIT_CODES.get(kind, 3)
        if code == 2:
            raise ValueError(text)
        if code == 1:
            click.echo(f"Error: {text}", err=True)
            sys.exit(code)
        raise RuntimeError(f"{text}; its output: {log}")
    if not outcome.complete:
        words = outcome.ended.facts.words if outcome.ended else "the launch did not end"
        raise RuntimeError(f"{words}; its output: {log}")
    document = ladder.results.result(launch.name) or {}
    if not document["benchmarks"]:
        raise RuntimeError(str(document[KEY]["skipped"][0]["reason"]))
    block: dict[str, Any] = document["benchmarks"][0]["extra_info"][KEY]
    return block


def _train_as_rank(run: Run, *, resume: bool) -> None:
    """Run as one rank of a launch that torchrun or srun started; rank 0 writes the folder."""
    ladder, launch, is_first = run.ladder(), run.launch, placement().rank == 0
    with run.claimed(ladder, resume=resume) if is_first else nullcontext(ladder) as ladder:
        # Without torchrun, which already started this process.
        command = ladder.command(launch)[len(launcher.torchrun(run.world_size)) :]
        paths = filter(None, [str(content.IMPORTABLE_FROM), os.environ.get("PYTHONPATH"), "."])
        path = ladder.results.log_file(launch.name) if is_first else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            code = subprocess.run(
                [sys.executable, "-P", "-u", *command],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                preexec_fn=die_with_parent,
                check=False,
            ).returncode
        if not is_first:
            sys.exit(code)
        ladder.results.write_result(launch.name)
        outcome = ladder.outcome(launch)
        if not outcome.failed and not outcome.complete:
            raise RuntimeError(f"training ended with exit code {code}; its output is in {path}")
        for row in block_of(ladder, launch, outcome)["training"]["rows"]:
            show_epoch(Epoch(**row))


MIN_ACCURACY = 0.95
# The order of summation differs between world sizes; 144 steps amplify that to about 10^-7 on CPUs.
# A gradient summed instead of averaged, a sample used twice or another learning rate differs more.
CURVE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Check:
    """A claim (accuracy, curve or parameters) about a run at a world size, with its evidence."""

    name: str
    world_size: int
    passed: bool
    evidence: str


def compare(
    runs: Mapping[int, Mapping[str, Any]], min_accuracy: float | None = MIN_ACCURACY
) -> list[Check]:
    """Check runs of equal global batch, in ascending world size.

    Each has its `accuracy` at the end, `step_losses` and `parameters_equal`.
    """
    baseline = runs[min(runs)]["step_losses"]
    checks = []
    for world_size, run in sorted(runs.items()):
        losses, accuracy, is_equal = run["step_losses"], run["accuracy"], run["parameters_equal"]
        if min_accuracy is not None:
            text = f"{accuracy:.4f}, at least {min_accuracy:g} wanted"
            checks.append(Check("accuracy", world_size, accuracy >= min_accuracy, text))
        if len(losses) != len(baseline) or not baseline:
            text, is_near = f"{len(losses)} steps, not {len(baseline)}", False
        else:
            shares = [abs(a - b) / baseline[0] for a, b in zip(losses, baseline, strict=True)]
            # The maximum alone is not enough: a NaN may compare as smaller.
            is_near = all(share <= CURVE_TOLERANCE for share in shares)
            text = (
                f"losses of the same step differ between world sizes by up to {max(shares):.1e} "
                f"of the first loss; at most {CURVE_TOLERANCE:g} is allowed"
            )
        checks.append(Check("curve", world_size, is_near, text))
        equal = "equal" if is_equal else "not equal"
        text = f"the parameters are {equal} on {world_size} rank(s)"
        checks.append(Check("parameters", world_size, is_equal, text))
    return checks


@click.command(
    epilog="""\b
Examples:
  lockstep run verify
  lockstep run verify --world-sizes 1,2,4 --json
  lockstep run verify --workload mine:tabular
"""
)
@click.option("--world-sizes", default="1,2", show_default=True, help="Comma-separated.")
@click.option(
    "--workload",
    help="Model of your own, such as `mine:tabular`, trained on batches of its make_batch.",
)
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def verify(world_sizes: str, workload: str | None, device: str | None, as_json: bool) -> None:
    """Check that training computes the same at every world size, on real handwritten digits.

    The same model is trained with the same global batches at each size. Every size must reach the
    required accuracy, follow the loss curve of the smallest size, and end with equal parameters on
    all ranks. For a model of your own, no accuracy is required. A model with batch normalisation
    always differs between sizes, because each rank normalises over its own samples.
    """
    sizes, options = parse_sizes(world_sizes), VERIFY
    if workload:
        options = VERIFY | OWN | {"workload": workload}
    for world_size in sizes:
        Batch.of(TrainConfig(**options), world_size)
    if absent := launcher.missing_packages():
        raise RuntimeError(absent)
    num_gpus = launcher.num_gpus()
    if device is None and 0 < num_gpus < max(sizes):
        device = "cpu"
        click.echo(
            f"Verifying on the CPU, because {max(sizes)} ranks need one GPU each and torch sees "
            f"only {num_gpus}.",
            err=True,
        )
    with tempfile.TemporaryDirectory(prefix="lockstep-verify-") as folder:
        runs = {size: _verification_run(options, folder, size, device) for size in sizes}
    checks = compare(runs, None if workload else MIN_ACCURACY)
    click.echo(json.dumps([asdict(check) for check in checks]) if as_json else table(checks))
    if failed := [check for check in checks if not check.passed]:
        named = ", ".join(f"{check.name} at world size {check.world_size}" for check in failed)
        click.echo(f"FAILED: {named}", err=True)
        sys.exit(1)


def _verification_run(
    options: dict[str, Any], folder: str, world_size: int, device: str | None
) -> dict[str, Any]:
    run = Run(
        TrainConfig(**options), Path(folder) / f"world{world_size}", world_size, device=device
    )
    block = run.train(is_quiet=True)
    training = block["training"]
    steps = run.folder / "launches" / run.launch.name / training["steps_file"]
    lines = steps.read_text(encoding="utf-8").splitlines()
    return {
        "accuracy": training["rows"][-1]["accuracy"],
        "step_losses": [json.loads(line)["loss"] for line in lines],
        "parameters_equal": block["checks"]["parameters_equal"],
    }


def parse_sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts) or len(set(parts)) < 2:
        raise ValueError(
            f"--world-sizes {text!r} is not a list of two or more sizes to compare, such as 1,2"
        )
    return sorted({int(part) for part in parts})


def table(checks: list[Check]) -> str:
    rows = [
        f"{check.world_size:>10}  {check.name:<10}  {'ok' if check.passed else 'FAILED':<6}  "
        f"{check.evidence}"
        for check in checks
    ]
    has_accuracy = any(check.name == "accuracy" for check in checks)
    accuracy = f"accuracy >= {MIN_ACCURACY:g}, " if has_accuracy else ""
    verdict = (
        f"verified: {accuracy}loss curves differ by at most {CURVE_TOLERANCE:g} of the first loss, "
        "and all ranks have equal parameters"
    )
    lines = [f"{'world size':>10}  {'check':<10}  {'':<6}  evidence", *rows]
    return "\n".join([*lines, verdict] if all(check.passed for check in checks) else lines)


to = click.option(
    "--to", "root", type=click.Path(path_type=Path), default=default_folder("data"),
    show_default=True,     help="Folder of the data sets, which all nodes must see.",
)  # fmt: skip


@click.group(name="data")
def data() -> None:
    """List, fetch or make data sets to train on."""


@data.command(
    name="list",
    epilog="""\b
Examples:
  lockstep run data list
  lockstep run data list --to data
""",
)
@to
def list_(root: Path) -> None:
    """List the data sets, and show which of them are already fetched."""
    for name, text in SHIPPED.items():
        click.echo(f"{name:<14} {text}")
    for name, text in KNOWN.items():
        missing = [archive for archive in SOURCES[name] if not (root / archive.path).exists()]
        state = f"fetch it with lockstep run data fetch {name}" if missing else f"in {root}"
        click.echo(f"{name:<14} {text}; {state}")


@data.command(
    epilog="""\b
Examples:
  lockstep run data make --to data
  lockstep run train --workload resnet18_cifar:width=8 --data tiny_cifar10
      --global-batch 20 --epochs 1
"""
)
@to
def make(root: Path) -> None:
    """Make 100 images in CIFAR-10's file format, without a download; they are always the same.

    The images are noisy patterns in ten classes: 80 images to train on and 20 to validate. Use them
    to test that data, loader and training work; the accuracy on these images means nothing.
    """
    click.echo(f"made {sample.write(root)}: {sample.NUM_IMAGES} images, SHA-256 {sample.SHA256}")


@data.command(
    epilog="""\b
Examples:
  lockstep run data fetch mnist
  lockstep run data fetch cifar10 --to /scratch/data
"""
)
@click.argument("name", type=click.Choice(list(SOURCES)))
@to
def fetch(name: str, root: Path) -> None:
    """Download a data set, or its missing files, and check its checksums.

    An interrupted download continues. The command needs no torch, so a login node can download data
    for nodes without internet. Give the nodes the folder as --data-root, or make it the folder
    `data` of the campaign.
    """
    fetched = download.fetch(SOURCES[name], root)
    for archive in fetched:
        click.echo(f"fetched {root / archive.path}; its checksum is correct")
    if not fetched:
        click.echo(f"{name} is already in {root}; its checksums are correct")
