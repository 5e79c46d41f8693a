"""Several errors in one."""

import pickle

import pytest

from collapipe_jax.core.errors import (
    AlreadyReported,
    InputError,
    InputErrors,
    ValidValues,
    collect,
    meant,
    rename_error_keys,
    shortened,
)


def wrong(key):
    return InputError(key, 0, "is zero", "Give 1")


def tell(*keys, last=None):
    with collect() as step:
        for key in keys:
            with step():
                raise wrong(key)
        if last:
            raise wrong(last)


def test_all_steps_run_and_all_errors_are_reported_in_order():
    with pytest.raises(InputErrors) as told:
        tell(*"abc", last="d")
    assert [error.key for error in told.value.errors] == ["a", "b", "c", "d"]
    assert told.value.key == "a"
    first, *lines = str(told.value).splitlines()
    assert first == "4 things are wrong:"
    assert lines == [f"  {wrong(name)}" for name in "abcd"]


def test_one_error_is_raised_as_it_is():
    error = wrong("a")
    with pytest.raises(InputError) as told, collect() as step, step():
        raise error
    assert told.value is error


def test_nothing_wrong_raises_nothing_and_other_errors_pass():
    with collect() as step, step():
        pass
    with pytest.raises(ZeroDivisionError), collect() as step, step():
        raise ZeroDivisionError


def test_nested_collections_are_reported_flat_and_by_other_keys():
    def nested():
        with collect() as step:
            with step(), rename_error_keys({"a": "task.a"}):
                tell("a", "b")
            with step():
                tell("c")

    with pytest.raises(InputErrors) as told:
        nested()
    assert [error.key for error in told.value.errors] == ["task.a", "b", "c"]


def test_what_a_failed_step_should_have_found_is_not_told_twice():
    known = ValidValues()

    def ask(*wrong_keys):
        with collect() as step:
            with step():
                tell(*wrong_keys)
            with step():
                known["b"] = known["a"] + 1

    with pytest.raises(InputError) as told:
        ask("a")
    assert told.value.key == "a"
    with pytest.raises(AlreadyReported):  # the error is that of a larger collection
        ask()


def test_they_reach_other_processes():
    errors = InputErrors([wrong("a"), wrong("b")])
    again = pickle.loads(pickle.dumps(errors))
    assert str(again) == str(errors)
    assert [error.key for error in again.errors] == ["a", "b"]


def test_a_long_text_loses_its_middle_between_words_and_never_grows():
    text = "no column among " + "text, " * 40 + "klass"
    short = shortened(text, 60)
    assert len(short) < len(text)
    assert short.startswith("no column among text, text, ... [")
    assert short.endswith("] ... text, text, text, text, klass")
    almost = "line 1 has no column category or label among text, klass and x"
    assert shortened(almost, len(almost) - 1) == almost
    assert shortened("a" * 99, 40) == f"{'a' * 20} ... [59 characters] ... {'a' * 20}"


def test_a_remedy_that_asks_ends_with_its_question_mark():
    error = InputError("a", 1, "unknown", meant("headz", ["heads", "rate"]))
    assert str(error) == "a = 1: unknown. Did you mean heads?"
    assert meant("x", ["heads"]) == ""
