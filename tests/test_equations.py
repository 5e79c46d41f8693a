"""Every equation of the system model is written once: one function names its number."""

import ast
import re

import pytest
from support import ROOT

DOCUMENT = "docs/system-model.md"
NUMBER = r"\((?:\d+|P\d)\)"
CITATION = re.compile(rf"Source: {re.escape(DOCUMENT)} ({NUMBER}(?:(?:, | and |-){NUMBER})*)")


def equations():
    """Numbers of all equations of the document, in order."""
    return re.findall(r"\\tag\{(\w+)\}", (ROOT / DOCUMENT).read_text())


def cited_numbers(docstring):
    """Numbers of the equations that a docstring gives as its source."""
    text = " ".join(docstring.split())
    return [
        number.strip("()")
        for cited in CITATION.findall(text)
        for number in re.findall(NUMBER, cited)
    ]


def sources():
    """Functions, methods and classes that name an equation as their source, by number."""
    found = {}
    for path in sorted((ROOT / "collapipe_jax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for number in cited_numbers(ast.get_docstring(node) or ""):
                    name = f"{path.relative_to(ROOT)}:{node.name}"
                    found.setdefault(number, []).append(name)
    return found


def test_the_document_numbers_its_equations_without_gaps():
    assert equations().count("P1") == equations().count("P2") == 1
    plain = [number for number in equations() if number not in ("P1", "P2")]
    assert plain == [str(number) for number in range(1, len(plain) + 1)]


@pytest.mark.parametrize(
    ("docstring", "numbers"),
    [
        ("Rate. Source: docs/system-model.md (2).", ["2"]),
        ("Rate.\n\n    Source: docs/system-model.md (3), (P2). Shapes broadcast.", ["3", "P2"]),
        ("Rate of docs/system-model.md (2). Source: docs/theory.md (T3).", []),
    ],
)
def test_citations_are_read(docstring, numbers):
    assert cited_numbers(docstring) == numbers


def test_every_equation_is_the_source_of_exactly_one_function():
    found, wanted = sources(), equations()
    missing = [number for number in wanted if number not in found]
    double = {number: names for number, names in found.items() if len(names) > 1}
    unknown = {number: names for number, names in found.items() if number not in wanted}
    assert not missing
    assert not double
    assert not unknown
