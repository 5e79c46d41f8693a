"""Pages with figures are those of templates and records, and templates type no figure by hand."""

import re

import pytest
from support import ROOT

from experiments import pages
from experiments.results.record import Record

DEFINITIONS = (
    # Names
    "CLINC150",
    "BC5CDR",
    "H100",
    "span F1",
    "arXiv:2509.19855",
    "(P2)",
    "D2D",
    # What intervals, limits and tables are
    "95 %",
    "95th",
    "1 %",
    "1e-5",
    "weight 0.01",
    "order 3",
    "order 5",
    # What is counted
    "4 clusters and 5 boards",
    "64 random networks over 50 rounds",
    "4 bytes",
    "4 bits",
    "16 bits",
    "30 minutes",
    "1/21",
    "bits | 16 | 8 | 4",
    "Python 3.11",
    "Apache-2.0",
    # Claims of the paper
    "15.09 %",
    "48.98 %",
    "18.94 %",
)
"""Numbers that templates may have in their prose."""
NOT_PROSE = (
    r"```.*?```",
    r"\$\$.*?\$\$",
    r"\{%.*?%\}",
    r"\{\{.*?\}\}",
    r"`[^`]*`",
    r"\$[^$]*\$",
    r"!\[[^\]]*\]\([^)]*\)",
    r"\[[Ss]ection \d+\]\([^)]*\)",
    r"\]\([^)]*\)",
    r"^#.*?$",
    r"\(T?\d+\)",
)


def prose_of(template):
    for pattern in NOT_PROSE:
        template = re.sub(pattern, " ", template, flags=re.DOTALL | re.MULTILINE)
    for words in DEFINITIONS:
        template = re.sub(rf"(?<![\w.]){re.escape(words)}(?![\w.]*\d)", " ", template)
    return template


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_page_on_file_is_up_to_date(name):
    on_file = (ROOT / pages.PAGES[name]).read_text(encoding="utf-8")
    assert on_file == pages.render(name), "run python -m experiments.pages"


@pytest.mark.parametrize("name", pages.PAGES)
def test_no_figure_is_typed_by_hand(name):
    text = (pages.TEMPLATES / name).read_text(encoding="utf-8")
    assert re.findall(r".*\d.*", prose_of(text)) == []


def test_a_typed_figure_is_found():
    assert re.search(r"\d", prose_of("It takes 146 s, or `--rounds=2`, see (12)."))
    assert not re.search(
        r"\d", prose_of("It takes {{ number(x, 2) }} s, or `--rounds=2`, see (12).")
    )


def test_pages_are_short():
    words = {name: len(pages.render(name).split()) for name in pages.PAGES}
    assert words["README.md"] <= 600
    assert words["results.md"] <= 3000


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2286.6, 3, "2 290"),
        (22.9002, 3, "22.9"),
        (0.04664, 1, "0.05"),
        (3.66e6, 3, "3.7·10⁶"),
        (1.58e12, 3, "1.6·10¹²"),
        (-52.58, 2, "-53"),
        (999.6, 3, "1 000"),
        (0.0, 1, "0"),
        (None, 3, "∞"),
    ],
)
def test_numbers(value, digits, text):
    assert pages.number(value, digits) == text


def test_intervals_and_shares():
    assert pages.interval({"mean": 1.16, "ci95": 1.34}) == "1.2 ± 1.3"
    assert pages.percent(0.859) == "86 %"
    assert pages.median({"median": 146.2, "median_ci95": [142.0, 156.4]}) == "146 [142, 156]"


def test_commands_are_wrapped_and_quotes_stay_whole():
    command = 'collapipe sweep --workdir=FOLDER --sweep "a=1,2 b=3,4" ' + "--config.x.y=1 " * 10
    block = pages.commands(Record("", (command,), "", "", None, None, {}))
    lines = block.splitlines()[1:-1]
    assert all(len(line) <= 120 for line in lines)
    assert '"a=1,2 b=3,4"' in block
    joined = " ".join(line.removesuffix("\\").strip() for line in lines)
    assert joined.split() == command.split()
