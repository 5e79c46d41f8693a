"""The house of the package: wings that import downwards only, and folders without a circle."""

import ast
import functools
import graphlib
import re
from collections import defaultdict

import pytest
from support import ROOT

PACKAGE = "collapipe_jax"
BELOW = {
    "core": set(),
    "edge": {"core"},
    "learning": {"core"},
    "runs": {"core", "edge", "learning"},
    "cli": {"core", "edge", "learning", "runs"},
}
"""Wings that a wing may import besides itself."""


@functools.cache
def imports():
    """Pairs of files of the wings, as parts below the package: who imports, and what."""
    pairs = set()
    files = {path.relative_to(ROOT / PACKAGE).with_suffix("").parts: path
             for wing in BELOW for path in (ROOT / PACKAGE / wing).rglob("*.py")}  # fmt: skip
    for parts, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                package, *target = name.split(".")
                if package == PACKAGE:
                    pairs.add((parts, tuple(target)))
    return pairs


def folder(parts):
    """Folder of a file, in which its neighbours stand: a wing, or a room of it."""
    return parts[:2] if (ROOT / PACKAGE).joinpath(*parts[:2]).is_dir() else parts[:1]


@pytest.mark.parametrize("wing", BELOW)
def test_a_wing_imports_only_wings_below_it(wing):
    known = BELOW[wing] | {wing}
    wrong = {(who, what) for who, what in imports() if who[0] == wing and what[0] not in known}
    assert not wrong


def test_folders_import_each_other_in_no_circle():
    graph = defaultdict(set)
    for who, what in imports():
        # Files beside the rooms of a wing, such as edge/system.py, are rooms themselves.
        here, there = folder(who), folder(what)
        here = who[:2] if len(here) == 1 else here
        there = what[:2] if len(there) == 1 else there
        if here != there:
            graph[here].add(there)
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) > len(BELOW)


def test_files_that_pages_and_docstrings_name_exist():
    wings = "|".join(f"{wing}/" for wing in BELOW)
    named = re.compile(rf"`((?:{wings}|{PACKAGE}/|tests/|experiments/|configs/)[\w/]+\.py)`")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    sources = [path for top in (PACKAGE, "experiments") for path in (ROOT / top).rglob("*.py")]
    for place in (*pages, *sources):
        for name in named.findall(place.read_text(encoding="utf-8")):
            exists = (ROOT / name).exists() or (ROOT / PACKAGE / name).exists()
            assert exists, f"{place.relative_to(ROOT)} names {name}"
