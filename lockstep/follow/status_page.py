"""A campaign's status as one self-contained HTML page."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from lockstep.follow import status_wording
from lockstep.follow.receiver import CHANGES_PATH
from lockstep.report.page.render import environment, own

# Whoever reads slowly can keep a page as it is, which a refresh in its head would not let them;
# that of the template is for viewers without scripts.
AGAIN = """
const box = Object.assign(document.createElement("input"), {{
  type: "checkbox", id: "again", checked: true,
}});
const label = document.createElement("label");
label.append(box, " Read it again every {every_s} s");
document.querySelector("#as-of").append(" ", label);
const again = () => {{ if (box.checked) location.reload(); }};
setInterval(again, {every_s} * 1000);
"""
# A page that is served asks to be told of changes.
LISTEN = f'new EventSource("{CHANGES_PATH}").onmessage = again;'


def html(record: Mapping[str, Any], refresh_s: float | None, *, is_served: bool = False) -> str:
    """Return the page of a record.

    A browser reads the page again after `refresh_s`; a served one is told of changes.
    """
    script = "" if refresh_s is None else AGAIN.format(every_s=round(refresh_s))
    script += LISTEN if is_served else ""
    return (
        environment()
        .get_template("status.html.j2")
        .render(
            title=status_wording.title(record),
            summary=status_wording.summary(record),
            warnings=list(status_wording.warnings(record)),
            sections=status_wording.sections(record),
            next=record["next"],
            monitor=record["monitor"],
            time=record["time"],
            refresh_s=None if refresh_s is None else round(refresh_s),
            style=own("report.css"),
            script=Markup(script),  # noqa: S704, since it is our own constant
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        )
    )
