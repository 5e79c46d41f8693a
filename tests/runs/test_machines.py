"""Machines on file, and what published models ask of them."""

import json

import jax
import numpy as np
import pytest
from support import GOLDEN as DATA

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.cli.plan import main
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.runs.machines import inference_work, read_machines, training_work

LLAMA, BERT = DATA / "llama_tiny", DATA / "bert_tiny"
TWO = {
    "machines": [
        {"name": "a", "memory_gb": 2, "tflops": 3, "memory_gb_s": 50},
        {"name": "b", "memory_gb": 1.5, "tflops": 1},
    ],
    "links": [{"between": ["b", "a"], "gbit_s": 0.5, "rtt_ms": 4}],
}


def written(tmp_path, document):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_machines_and_links_are_read(tmp_path):
    found = read_machines(written(tmp_path, TWO))
    assert found.names == ("a", "b")
    np.testing.assert_allclose(found.memory_bytes, [2e9, 1.5e9])
    np.testing.assert_allclose(found.flops_per_s, [3e12, 1e12])
    np.testing.assert_allclose(found.read_bytes_per_s, [50e9, np.inf])
    np.testing.assert_allclose(found.rate_bps, [[0, 5e8], [5e8, 0]])
    np.testing.assert_allclose(found.delay_s, [[0, 2e-3], [2e-3, 0]])


def test_all_that_is_wrong_is_named_at_once(tmp_path):
    broken = {
        "machines": [
            {"name": "a", "memory_gb": -1, "tflop": 3},
            {"name": "a", "memory_gb": 1},
            "c",
        ],
        "link": [
            {"between": ["a", "x"], "gbit_s": 0, "foo": 1},
            {"between": ["a", "a"], "gbits": 1, "rtt_ms": -0.2},
        ],
    }
    with pytest.raises(InputError) as caught:
        read_machines(written(tmp_path, broken))
    assert len(caught.value.errors) == 12  # two machines have the same name
    for words in (
        "cluster.json: link = [",
        "unknown key. Did you mean links",
        "machines[0].tflop = 3: unknown key. Did you mean tflops",
        "machines[0].memory_gb = -1",
        "machines[1].tflops = None: missing. Give a number above 0",
        "links[0].foo = 1: unknown key. Choose among: between, gbit_s, rtt_ms",
        "links[1].gbits = 1: unknown key. Did you mean gbit_s",
        "links[1].rtt_ms = -0.2: not a number from 0 on",
        "machines[2] = 'c': is no object",
        "links[0].gbit_s = 0",
        "machines: name = 'a'",
        "links: between = 'x': is no machine",
        "does not join two machines",
    ):
        assert words in str(caught.value), words


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ("[]", "no JSON object"), ('{"machines": 3}', "is no list")],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "cluster.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_machines(str(path))
    with pytest.raises(InputError, match="cannot be read"):
        read_machines(str(tmp_path / "none.json"))


def test_work_is_counted_from_the_parameters():
    sizes, params, _ = load_causal_lm(LLAMA)
    of = {name: sum(leaf.size for leaf in jax.tree.leaves(params[name])) for name in params}
    work = training_work(sizes, tokens=16, batch=4)
    assert work.blocks * work.block_static_bytes == 16 * of["encoder"]
    assert work.first_static_bytes == 16 * of["embedding"]
    assert work.last_static_bytes == 16 * of["decoder"]
    assert work.trained_bits == 32 * sum(of.values())
    adapted = training_work(sizes, tokens=16, batch=4, lora=2)
    assert adapted.first_static_bytes == 4 * of["embedding"]
    assert adapted.block_static_bytes < 0.6 * work.block_static_bytes
    assert adapted.block_flops < work.block_flops
    once = inference_work(sizes, tokens=16, requests=4)
    assert once.blocks * once.block_static_bytes == 2 * of["encoder"]
    # The next token reads keys and values of all tokens, which are kept in 16 bits.
    assert once.block_kept_bytes == 2 * 2 * 16 * sizes.groups * sizes.head_width


@pytest.mark.parametrize("more", [[], ["--lora=2"], ["--inference"]])
def test_the_plan_is_printed(tmp_path, capsys, more):
    arguments = [f"--cluster={written(tmp_path, TWO)}", f"--model={LLAMA}", "--tokens=16", *more]
    assert run_reporting_errors(main, arguments) == 0
    printed = capsys.readouterr().out
    assert "tokens/s" in printed
    assert "slowest: " in printed
    assert ("data parallelism instead" in printed) == (more != ["--inference"])
    assert ("memory_gb_s" in printed) == (more == ["--inference"])


def test_what_cannot_be_planned_is_said(tmp_path, capsys):
    path = written(tmp_path, TWO)
    (tmp_path / "small").mkdir()
    machines = [{"name": "a", "memory_gb": 1e-6, "tflops": 1}]
    small = written(tmp_path / "small", {"machines": machines})
    for arguments, words in (
        ([f"--cluster={path}"], "--model = '': is missing beside --cluster"),
        ([f"--cluster={path}", f"--model={BERT}", "--inference"], "writes no texts"),
        ([f"--cluster={small}", f"--model={LLAMA}", "--tokens=16"], "no pipeline of its machines"),
        ([], "--instance = '': is missing"),
        ([f"--cluster={path}", f"--model={LLAMA}", "--lora=-1"], "--lora = -1: no rank"),
        ([f"--cluster={path}", f"--model={LLAMA}", "--lora=8", "--inference"], "trains nothing"),
        ([f"--cluster={path}", f"--model={LLAMA}", "--tokens=9000"], "--tokens = 9000: the model"),
        ([f"--cluster={path}", "--policy=dssra", "--certify"], "2 things are wrong"),
    ):
        assert run_reporting_errors(main, arguments) == 2
        assert words in capsys.readouterr().err
