"""Which page a folder gets, and the page itself."""

import functools
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import finite, write_text
from collapipe_jax.runs.report.charts import Data
from collapipe_jax.runs.report.studies import comparison_page, sweep_page
from collapipe_jax.runs.report.training import document_formats, plan_page, race_page, runs_page
from collapipe_jax.runs.results.experiment import nothing_there, read_settings

_PAGES = {
    "race": race_page,
    "compare": comparison_page,
    "sweep": sweep_page,
    "map": functools.partial(sweep_page, experiment="map"),
    "plan": plan_page,
}
"""Pages of one folder by what wrote it; training runs may be several."""
_TEMPLATE = Path(__file__).with_name("template.html")
_TITLE, _DATA = "{{title}}", "{{data}}"


def report_data(workdirs: Sequence[str]) -> Data:
    """The data of the page of a folder, or of several training runs.

    Raises:
      InputError: if it holds nothing that a page shows, or something is missing or damaged.
    """
    kinds = [_kind_of(workdir) for workdir in workdirs]
    if set(kinds) == {"run"}:
        return runs_page(workdirs)
    if len(kinds) > 1:
        problem = "only training runs share a page"
        raise InputError("--workdir", list(workdirs), problem, "Name one folder at a time")
    return _PAGES[kinds[0]](workdirs[0])


def _kind_of(workdir: str) -> str:
    """The kind of a folder: ``run``, or a key of ``_PAGES``."""
    settings = read_settings(workdir)
    kind = settings.get("experiment", "run" if "policy" in settings else "")
    if not settings and document_formats(Path(workdir)):
        kind = "plan"
    if kind == "run" or kind in _PAGES:
        return kind
    if kind == "train":
        remedy = "Name folders in its runs/, or draw it with collapipe figures"
        raise InputError("--workdir", workdir, "holds a sweep of training runs", remedy)
    raise nothing_there(workdir, "holds nothing that a report shows", ["run", *_PAGES])


def make_page(data: Data) -> str:
    """The page: one text of HTML with all of its data, which loads nothing.

    No text of the data ends the script that holds it.
    """
    text = json.dumps(finite(data), allow_nan=False, separators=(",", ":"))
    template = _template()
    title = html.escape(f"{data['title']}: {data.get('folder', 'collapipe')}")
    return template.replace(_TITLE, title).replace(_DATA, text.replace("<", "\\u003c"))


@functools.cache
def _template() -> str:
    return _TEMPLATE.read_text(encoding="utf-8")


def write_report(workdirs: Sequence[str], out: Path) -> None:
    """Write the page of folders to a file.

    Raises:
      InputError: as of :func:`report_data`.
    """
    data: dict[str, Any] = report_data(workdirs)
    names = [Path(workdir).resolve().name for workdir in workdirs]
    write_text(out, make_page({**data, "folder": ", ".join(names)}))
