"""Progress in a file, and names in tables."""

import io

from rich.console import Console

from collapipe_jax.core import console as module
from collapipe_jax.core.console import make_table, name_lines, progress


def test_a_file_gets_a_line_a_minute_and_a_last_one(monkeypatch):
    now_s, console = [0.0], Console(file=io.StringIO(), width=20)
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s[0])
    with progress(console, "rounds", 10, 2, "compiling") as advance:
        for _ in range(8):
            now_s[0] += 25.0
            advance(1, "loss 2.00 and more")
    assert console.file.getvalue().splitlines() == [
        "rounds 2/10 compiling",
        "rounds 5/10, 125 s left loss 2.00 and more",
        "rounds 8/10, 50 s left loss 2.00 and more",
        "rounds 10/10, 0 s left loss 2.00 and more",
    ]


def test_a_name_breaks_at_its_signs_alone_however_narrow_the_table_is():
    console = Console(file=io.StringIO(), width=45)
    row = [name_lines("titanic_pipelined"), *["12 [10, 14]"] * 4]
    console.print(make_table(["policy", "a", "b", "c", "d"], [row]))
    assert {"titanic_", "pipelined"} <= set(console.file.getvalue().split())
    assert (
        name_lines("my_package.policies:fastest_first") == "my_package.\npolicies:\nfastest_first"
    )
