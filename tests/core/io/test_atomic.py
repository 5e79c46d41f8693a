"""JSON objects on file: whole, sealed by their digest, or not there."""

import json

import numpy as np

from collapipe_jax.core.files import read_object, write_json, write_sealed

VALUE = {"name": "run", "score": 41.5, "rounds": [1, 2, 3], "loss": float("nan")}


def test_a_sealed_object_comes_back_and_one_without_a_seal_is_read_too(tmp_path):
    for write in (write_sealed, write_json):
        write(tmp_path / "a.json", VALUE)
        assert read_object(tmp_path / "a.json") == VALUE | {"loss": None}


def test_no_flipped_bit_of_a_sealed_object_goes_unseen(tmp_path):
    path = tmp_path / "a.json"
    write_sealed(path, VALUE)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    before = read_object(path)
    seal = content.index(b'"sha256"')
    for place in range(seal):  # the name of the seal itself may become another key
        path.write_bytes(
            content[:place]
            + bytes([content[place] ^ 1 << int(rng.integers(8))])
            + content[place + 1 :]
        )
        # Where only white space or the case of an escape changed, the values are the same.
        assert read_object(path) in (None, before), place


def test_a_changed_value_is_damage(tmp_path):
    path = tmp_path / "a.json"
    write_sealed(path, VALUE)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"score": 99.0}))
    assert read_object(path) is None
