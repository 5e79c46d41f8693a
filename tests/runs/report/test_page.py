"""The page: one file that loads nothing, and that a browser shows without an error."""

import html.parser
import json
import re
import shutil
import subprocess

import pytest

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.cli.report import main
from collapipe_jax.runs.report.gather import make_page, report_data

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no chromium or google-chrome")
EVIL = '</script><img src=x onerror="console.error(1)">'


class Texts(html.parser.HTMLParser):
    """Texts of scripts by their id, and names of all tags."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self._inside = [], {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._inside = dict(attrs).get("id", "code") if tag == "script" else None

    def handle_data(self, data):
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data


def opened(page, path):
    """The document after its scripts, and what the console shows."""
    path.write_text(page, encoding="utf-8")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
    profile = f"--user-data-dir={path.parent / 'profile'}"
    command = [BROWSER, *flags, profile, "--window-size=400,900", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_text_of_data_ends_no_script(folders):
    data = report_data([str(folders["plan"])]) | {"title": EVIL, "folder": "a & b"}
    data["runs"][0]["name"] = EVIL
    found = Texts(make_page(data))
    assert "img" not in found.tags
    assert json.loads(found.scripts["data"])["runs"][0]["name"] == EVIL


def test_a_page_loads_nothing(folders):
    page = make_page(report_data([str(folders["plan"])]))
    code = Texts(page).scripts["code"]
    assert not re.search(r"""(src|href)=["']|@import|url\(|fetch\(|import\(""", page)
    assert set(re.findall(r"https?://[^\"]+", code)) == {"http://www.w3.org/2000/svg"}


def test_the_command_writes_a_file(folders, tmp_path, capsys):
    out = tmp_path / "page.html"
    main([f"--workdir={folders['plan']}", f"--out={out}"])
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"written: {out}" in capsys.readouterr().out
    assert run_reporting_errors(main, [f"--workdir={tmp_path}"]) == 2


@pytest.mark.slow
@needs_browser
def test_slider_and_list_change_what_is_shown(folders, tmp_path):
    workdirs = [str(folders[kind]) for kind in ("pipeline", "clients")]
    page = make_page(report_data(workdirs) | {"folder": "both"})
    found = []
    for number, change in enumerate(({}, {"place": 0}, {"run": 1})):
        script = f"<script>show({json.dumps(change)})</script></body>"
        shown, console = opened(page.replace("</body>", script), tmp_path / f"{number}.html")
        assert not console
        found.append(shown)
    rounds = [re.search(r'id="round_number">(\d+)<', shown)[1] for shown in found]
    assert rounds == ["5", "0", "5"]
    for section in ("network", "timeline"):
        parts = [re.search(rf'id="{section}".*?</section>', shown)[0] for shown in found]
        assert len(set(parts)) == 3


@needs_browser
@pytest.mark.parametrize(
    "kind",
    [
        *("pipeline", "sweep"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("clients", "compare", "plan")),
    ],
)
def test_a_browser_shows_all_that_the_data_has(folders, kind, tmp_path):
    data = report_data([str(folders[kind])]) | {"folder": EVIL}
    shown, console = opened(make_page(data), tmp_path / "page.html")
    assert not console
    sections = set(re.findall(r'<section class="card" id="(\w+)"', shown))
    (run,) = data["runs"]
    charts = {chart["name"] for chart in (*run["charts"], *data["charts"])}
    tables = {f"table_{table['name']}" for table in (*run["tables"], *data["tables"])}
    assert {"network"} | charts | tables <= sections
    assert ("timeline" in sections) == ("timeline" in run)
    assert ("holdings" in sections) == ("held" in run["network"] and len(run["rounds"]) > 1)
    assert "NaN" not in re.sub(r"<script.*?</script>", "", shown, flags=re.DOTALL)
