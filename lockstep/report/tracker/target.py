"""Which tracker results go to: the table `[tracker]` of a site file, or what a command is given."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lockstep import content
from lockstep.core import files, inputs
from lockstep.report.load import sources

SITE_VARIABLE = "LOCKSTEP_SITE"
SITE_FILE = "site.toml"
KEY_VARIABLE = "LOCKSTEP_TRACKER_KEY"
# Of a results folder: what its trackers have confirmed, and where they are.
FOLDER = sources.TRACKER
TARGET = "target.json"
DATABASE = "mlflow.db"


def _address(text: str) -> str:
    if not text.isprintable() or " " in text:
        raise ValueError("no address of a tracker; write sqlite:///PATH or http://SERVER")
    parts = urlsplit(text)
    if parts.scheme not in ("sqlite", "http", "https"):
        raise ValueError("no address of a tracker; it begins with sqlite:///, http:// or https://")
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "an address is kept in files, so no key may be in it; put the key into an environment "
            "variable and name that in key_variable"
        )
    return text.rstrip("/")


class Tracker(BaseModel):
    """Where runs are tracked while and after they are measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["mlflow", "http"] = Field(
        default="mlflow", description="MLflow, or a plain HTTP interface"
    )
    uri: Annotated[str, AfterValidator(_address)] | None = Field(
        default=None,
        description=f"sqlite:///PATH, or a server's address; {DATABASE} beside the results folder "
        "by default",
    )
    key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default=KEY_VARIABLE, description="environment variable that holds the server's key, if any"
    )

    @property
    def key(self) -> str | None:
        """The server's key, which is in no file."""
        return os.environ.get(self.key_variable) or None

    @property
    def database(self) -> Path | None:
        """The SQLite file; None for a server."""
        uri = self.uri or ""
        return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:") else None

    def beside(self, folder: Path) -> Self:
        """Return the tracker with its address filled in, and a file's made absolute."""
        default = folder.resolve().parent / DATABASE
        path = default if self.uri is None else self.database
        if path is None:
            return self
        return self.model_copy(update={"uri": f"sqlite:///{path.absolute()}"})

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        if self.kind == "http" and not (self.uri or "").startswith("http"):
            raise ValueError("a tracker of kind http needs uri, the address of its server")
        return self


def given(kind: str, uri: str | None) -> Tracker:
    """Return the tracker that a command is given.

    Raises:
        ValueError: The address is none.
    """
    return _checked({"kind": kind, "uri": uri}, "--to")


def find(folder: Path) -> Tracker | None:
    """Return the tracker of a results folder; None where nobody names one.

    The site that commands are about names it, else the one that the folder's jobs were sent for,
    else what was used before.

    Raises:
        ValueError: A file that may name it cannot be read, or says something that is not allowed.
    """
    source = os.environ.get(SITE_VARIABLE) or SITE_FILE
    shipped = content.ROOT / "slurm_templates" / "sites" / f"{source}.toml"
    site = shipped if shipped.is_file() else Path(source)
    sent_for, used = folder / "jobs" / "site.json", folder / FOLDER / TARGET
    readers: dict[Path, Callable[[], dict[str, Any] | None]] = {
        site: lambda: inputs.table(site, "tracker"),
        sent_for: lambda: _json(sent_for).get("tracker"),
        used: lambda: _json(used),
    }
    for path, read in readers.items():
        if path.is_file() and (table := read()):
            return _checked(table, str(path)).beside(folder)
    return None


def _json(path: Path) -> dict[str, Any]:
    found = files.parse(files.content(path))
    return found if isinstance(found, dict) else {}


def _checked(table: Mapping[str, Any], where: str) -> Tracker:
    try:
        return Tracker.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{where}: {inputs.sentence(error, Tracker)}") from None
