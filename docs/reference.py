"""Pages of the documents that are made of the code itself: commands, keys of files, columns.

mkdocs calls `on_page_markdown` for each page; a line `<!-- made: NAME -->` is replaced.
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lockstep.campaign.campaign import Campaign
from lockstep.cli import lockstep
from lockstep.report import columns
from lockstep.report.gate.targets import Targets
from lockstep.report.load import contents
from lockstep.slurm.site import Site

_PLACE = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page's text with what is made of the code in its places."""
    return _PLACE.sub(lambda found: MADE[found[1]](), markdown)


def _commands() -> str:
    return "\n\n".join(_command("lockstep", lockstep, "##"))


def _command(name: str, command: click.Command, level: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, max_content_width=88)
    yield f"{level} {name}\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from _command(f"{name} {word}", below, "##" if name == "lockstep" else "###")


def on_post_build(config: Any) -> None:
    """Write the JSON Schemas of our files beside the pages: schemas/campaign.json and others."""
    folder = Path(config["site_dir"]) / "schemas"
    folder.mkdir(exist_ok=True)
    for name, schema in SCHEMAS.items():
        (folder / f"{name}.json").write_text(json.dumps(schema(), indent=1))


def _keys(content: dict[str, Any]) -> str:
    parts = [_table(content)]
    for name, below in content.get("$defs", {}).items():
        parts.append(f"## {name}\n\n{below.get('description', '')}\n\n{_table(below)}")
    return "\n\n".join(parts)


def _table(content: dict[str, Any]) -> str:
    required = content.get("required", [])
    rows = [
        f"| `{key}` | {_type(one)} | {_default(key, one, required)} | {_cell(one)} |"
        for key, one in content["properties"].items()
    ]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])


def _type(one: dict[str, Any]) -> str:
    kinds = [kind for kind in one.get("anyOf", [one]) if kind.get("type") != "null"]
    return " or ".join(dict.fromkeys(map(_kind, kinds)))


def _kind(one: dict[str, Any]) -> str:
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    if "const" in one:
        return f"`{one['const']}`"
    if "$ref" in one:
        name = one["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if one.get("type") == "array":
        return f"list of {_kind(one['items'])}"
    return {"object": "table", "string": "text"}.get(one.get("type", ""), one.get("type", "any"))


def _default(key: str, one: dict[str, Any], required: list[str]) -> str:
    if key in required:
        return "required"
    default = one.get("default")
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"


def _cell(one: dict[str, Any]) -> str:
    return one.get("description", "").replace("|", "\\|")


def _columns() -> str:
    extra = {"points": columns.DETAILS}
    parts = []
    for name, table in columns.TABLES.items():
        rows = [
            f"| `{column}` | {what.unit} | {what.meaning.replace('|', '/')} |"
            for column, what in (table | extra.get(name, {})).items()
        ]
        parts.append(
            "\n".join([f"## {name}\n", "| column | unit | meaning |", "|---|---|---|", *rows])
        )
    return "\n\n".join(parts)


def _api() -> str:
    """Return the public functions and what the fixture has, by their docstrings."""
    import lockstep as package
    from lockstep.measure.harness import Harness

    functions = {
        "lockstep.explain": package.explain,
        "lockstep.read": package.read,
        "Fixture: lockstep.measure": Harness.measure,
        "Fixture: lockstep.time": Harness.time,
    }
    parts = []
    for name, function in functions.items():
        named = [str(one) for key, one in inspect.signature(function).parameters.items()
                 if key != "self"]  # fmt: skip
        call = f"{name.rpartition(' ')[2]}({', '.join(named)})".replace("'", "")
        parts.append(f"## {name}\n\n```text\n{call}\n\n{inspect.getdoc(function)}\n```")
    parts.append(
        "## Fixture: other attributes\n\n`lockstep.world` has `rank`, `local_rank`, `world_size` "
        "and `num_nodes`; `lockstep.device` is this rank's device."
    )
    return "\n\n".join(parts)


SCHEMAS = {
    "campaign": Campaign.model_json_schema,
    "site": Site.model_json_schema,
    "targets": Targets.model_json_schema,
    "record": contents.json_schema,
}
MADE = {
    "api": _api,
    "commands": _commands,
    "campaign": lambda: _keys(SCHEMAS["campaign"]()),
    "site": lambda: _keys(SCHEMAS["site"]()),
    "columns": _columns,
}
