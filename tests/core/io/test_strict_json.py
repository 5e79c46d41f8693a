import pytest

from collapipe_jax.core.files import loads, read_object


def test_plain_json_is_read():
    text = '{"a": [1, -2.5e-3, null, true, "\\u00e9\\ud83d\\ude00"], "b": {"a": {}}}'
    assert loads(text) == {"a": [1, -2.5e-3, None, True, "é😀"], "b": {"a": {}}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "b": {"c": 2, "c": 3}}', "the key 'c' is there twice"),
        ('{"a": NaN}', "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[1e999]", "1e999 is beyond"),
        (f"[{'9' * 5000}]", "digits"),
        ('{"\\ud800": "a"}', "half a character"),
        ("[" * 100_000, "nested too deep"),
        ("{", "Expecting"),
    ],
)
def test_what_readers_guess_at_is_refused(text, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        loads(text)
    (tmp_path / "file.json").write_text(text)
    assert read_object(tmp_path / "file.json") is None
