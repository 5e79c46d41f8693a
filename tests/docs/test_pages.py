"""What pages point at is there: files, sections, programs and configurations."""

import importlib.util
import json
import pathlib
import re

import pytest
from support import ROOT

from collapipe_jax.cli.main import COMMANDS
from collapipe_jax.runs.config import NAMED
from collapipe_jax.runs.config.files import read_config

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if page.parent.name != "templates"
)


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def links(page):
    found = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, section = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if section and target.suffix == ".md":
            assert section in anchors(target), link


@pytest.mark.parametrize("page", PAGES)
def test_programs_and_configurations_exist(page, monkeypatch):
    text = text_of(page)
    monkeypatch.chdir(ROOT)
    for module in re.findall(r"python -m\s+((?:experiments|figures)[\w.]*)", text):
        assert importlib.util.find_spec(module), module
    for command in re.findall(r"\bcollapipe ([a-z]+)", text):
        assert command in COMMANDS, command
    written = re.findall(r"%%writefile (\S+)", text)  # by the page itself
    for path in re.findall(r"--config=([\w./]+(?::[a-z_]+)?)", text):
        if path not in written:
            read_config(path)


@pytest.mark.parametrize("page", PAGES)
def test_pages_import_public_names_alone(page):
    code = "\n".join(
        re.findall(r"^```.*?python\d?\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    )
    for module, names in re.findall(
        r"^from (collapipe_jax[\w.]*) import (.*)$", code, re.MULTILINE
    ):
        if module == "collapipe_jax.cli.main":  # of the page that prints the help of all commands
            continue
        for name in names.split(","):
            assert name.split(" as ")[0].strip() in importlib.import_module(module).__all__, name
    for module in re.findall(r"^import (collapipe_jax[\w.]*)", code, re.MULTILINE):
        assert module == "collapipe_jax"


@pytest.mark.parametrize("wing", ["edge", "learning", "runs"])
def test_public_names_of_a_wing_are_there(wing):
    module = importlib.import_module(f"collapipe_jax.{wing}")
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_files_of_configurations_exist():
    pages = [ROOT / page for page in PAGES if page != "CHANGELOG.md"]  # it names former files
    for page in (*pages, ROOT / "collapipe_jax/runs/config/named.py"):
        for path in re.findall(r"configs/\w+\.py", page.read_text(encoding="utf-8")):
            assert (ROOT / path).is_file(), (page, path)


def test_versions_agree():
    (version,) = re.findall(r'^version = "(.*)"$', text_of("pyproject.toml"), re.MULTILINE)
    assert re.findall(r"^version: (.*)$", text_of("CITATION.cff"), re.MULTILINE) == [version]
    assert json.loads(text_of(".zenodo.json"))["version"] == version
    assert re.findall(r"version = \{(.*)\}", text_of("docs/cite.md")) == [version]


def test_every_figure_on_file_is_shown():
    shown = {pathlib.Path(link).name for page in PAGES for link in links(page)}
    assert {path.name for path in (ROOT / "docs/figures").iterdir()} <= shown


def test_every_configuration_is_on_some_page():
    pages = "".join(text_of(page) for page in PAGES)
    for path in (ROOT / "configs").glob("[!_]*.py"):
        assert f"configs/{path.name}" in pages, path.name
    for name in NAMED:
        assert re.search(rf"--config={name}\b", pages), name
