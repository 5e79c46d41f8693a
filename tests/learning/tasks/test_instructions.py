"""Prompts with answers: their forms on file, the template of a chat, and a loss on answers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDEN as DATA

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch, CausalLM, logits
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.instructions import ChatTemplate, Exchange, Message
from collapipe_jax.learning.tasks.plain_text import read_texts
from collapipe_jax.learning.tasks.subwords import ByteTokenizer, train_byte_pieces

TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ASKED = Exchange((Message("user", "two and two?"),), "four")


def written(tmp_path, records, name="data.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return TextFile("task.train", str(path))


@pytest.mark.parametrize(
    "record",
    [
        {"question": "two and two?", "answer": " four\n"},
        {"prompt": "two and two?", "completion": "four"},
        {"prompt": "two and two?", "response": "four", "id": 3},
        {"instruction": "two and two?", "output": "four"},
        {"instruction": "two and two?", "input": " ", "output": "four"},
        {"messages": [m._asdict() for m in (*ASKED.asked, Message("assistant", "four"))]},
    ],
)
def test_forms_are_told_by_their_keys(tmp_path, record):
    assert read_texts(written(tmp_path, [record, record])) == [ASKED, ASKED]


def test_an_input_follows_its_instruction_and_each_answer_of_a_chat_counts(tmp_path):
    record = {"instruction": "Add.", "input": "2 2", "output": "4"}
    (found,) = read_texts(written(tmp_path, [record]))
    assert found == Exchange((Message("user", "Add.\n\n2 2"),), "4")
    turns = [("system", "Be brief."), ("user", "hi"), ("assistant", "hello")]
    turns += [("user", "and?"), ("assistant", "bye")]
    messages = [Message(*turn) for turn in turns]
    record = {"messages": [message._asdict() for message in messages]}
    first, second = read_texts(written(tmp_path, [record]))
    assert first == Exchange(tuple(messages[:2]), "hello")
    assert second == Exchange(tuple(messages[:4]), "bye")


def test_tables_have_them_too_and_a_column_of_texts_comes_first(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("question;answer\ntwo and two?;four\n")
    assert read_texts(TextFile("task.train", str(path))) == [ASKED]
    path.write_text("text,question,answer\nplain,two and two?,four\n")
    assert read_texts(TextFile("task.train", str(path))) == ["plain"]
    path.write_text("question,answer\ntwo and two?,four\n")
    file = TextFile("task.train", str(path))
    assert read_texts(file, text_column="question") == ["two and two?"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "two?", "answer": ""}, "line 2 has an empty prompt or answer"),
        ({"question": "two?"}, "line 2 has no column answer"),
        ({"question": "two?", "answer": 2}, "line 2 has 2 where text should be"),
    ],
)
def test_broken_exchanges_are_named(tmp_path, record, message):
    good = {"question": "two and two?", "answer": "four"}
    with pytest.raises(InputError, match=message):
        read_texts(written(tmp_path, [good, record]))


@pytest.mark.parametrize(
    "messages", ["text", [{"role": "user"}], [{"role": "pope", "content": "x"}], [["user", "x"]]]
)
def test_broken_chats_are_named(tmp_path, messages):
    with pytest.raises(InputError, match="line 1 has no messages of a role"):
        read_texts(written(tmp_path, [{"messages": messages}]))
    alone = [{"role": "user", "content": "x"}]
    with pytest.raises(InputError, match="no answer of the assistant"):
        read_texts(written(tmp_path, [{"messages": alone}]))


def test_a_template_writes_what_is_asked_and_the_answer_with_its_end():
    template = ChatTemplate(TEMPLATE, {})
    asked, answer = template.parts(ASKED)
    assert asked == "<|im_start|>user\ntwo and two?<|im_end|>\n<|im_start|>assistant\n"
    assert answer == "four<|im_end|>\n"
    # One that changes former turns cannot be cut; the answer then ends by the end of a text.
    odd = ChatTemplate("{{ messages | length }}", {})
    assert odd.parts(ASKED) == ("1", "four")
    strict = ChatTemplate("{{ raise_exception('no system') }}", {})
    with pytest.raises(InputError, match="no system"):
        strict.render(ASKED.asked, asks=True)


def test_a_template_reaches_nothing_outside(tmp_path):
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(Exception, match=r"unsafe|undefined"):
        template.render(ASKED.asked, asks=True)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(InputError, match="is no template"):
        ChatTemplate.from_folder(tmp_path)


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer with two marks of turns, the second of which ends texts."""
    from tokenizers import AddedToken

    model = train_byte_pieces(["two and two is four"] * 3, 300).model
    size = model.get_vocab_size()
    model.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    chat = ChatTemplate(TEMPLATE, {})
    return ByteTokenizer(model, begin=size, ends=[size + 1], chat=chat)


def test_marks_are_pieces_in_a_template_and_text_elsewhere(tokenizer):
    asked, answer = tokenizer.exchange(ASKED)
    assert asked.count(tokenizer.begin) == 2
    assert answer[-1] == tokenizer.ends[0]
    assert answer.count(tokenizer.ends[0]) == 1
    assert tokenizer.begin not in tokenizer.encode(["<|im_start|>"])[0]


def test_rows_keep_the_end_of_a_prompt_and_the_begin_of_an_answer(tokenizer):
    asked, answer = tokenizer.exchange(ASKED)
    whole = len(asked) + len(answer)
    rows, is_answer, cut = tokenizer.exchange_rows([ASKED], whole + 4)
    assert (rows[is_answer].tolist(), cut) == (answer, 0)
    assert rows[0].tolist() == [*asked, *answer, *[NOTHING] * 5]
    rows, is_answer, cut = tokenizer.exchange_rows([ASKED], whole - 3)
    assert rows[0].tolist() == [*asked[2:], *answer]
    assert (rows[is_answer].tolist(), cut) == (answer, 1)
    rows, is_answer, _ = tokenizer.exchange_rows([ASKED], 2)
    assert rows[0].tolist() == [asked[-1], *answer[:2]]
    assert is_answer.tolist() == [[False, True, True]]


def test_the_loss_is_of_answers_alone():
    sizes, params, _ = load_causal_lm(DATA / "llama_tiny")
    ids = np.array([[5, 6, 7, 8, 9, NOTHING], [9, 8, 7, 6, 5, 4]])
    batch = CausalBatch(jnp.asarray(ids), np.arange(6) >= np.array([[3], [1]]))
    lm = CausalLM(sizes=sizes)

    @jax.jit
    def both(params):
        return example_losses(lm, params, batch), jax.nn.log_softmax(logits(lm, params, batch))

    (losses, counts), log_p = both(params)
    right = np.take_along_axis(np.asarray(log_p), np.maximum(ids[:, 1:], 0)[..., None], -1)[..., 0]
    assert counts.tolist() == [2, 5]
    np.testing.assert_allclose(losses, [-right[0, 2:4].sum(), -right[1].sum()], rtol=1e-5)
    short = lm.shortened(batch, 0.5)
    assert short.token_ids.shape == (2, 3)
    assert short.scored.tolist() == [[False] * 3, [False, True, True]]
