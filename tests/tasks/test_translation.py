import dataclasses
import os
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import TransformerConfig
from collapipe_jax.models.decoding import beam_search
from collapipe_jax.models.transformer import (
    TranslationBatch,
    Translator,
    decode,
    init_params,
    logits,
    source_memory,
)
from collapipe_jax.tasks import task as held_out
from collapipe_jax.tasks import translation
from collapipe_jax.tasks.corpora import text_key
from collapipe_jax.tasks.parallel_text import normalise, read_parallel_text, split_by_source
from collapipe_jax.tasks.scores import bleu
from collapipe_jax.tasks.task import held_out_loss
from collapipe_jax.tasks.translation import (
    MAX_LABELS,
    Translation,
    length_labels,
)

CONFIG = TransformerConfig(
    vocabulary_size=120,
    width=16,
    heads=2,
    feed_forward_width=32,
    encoder_blocks=1,
    decoder_blocks=1,
    source_length=40,
    target_length=48,
    dropout_rate=0.3,
    label_smoothing=0.2,
)
MODEL = Translator(CONFIG)
BATCH = 4
FIRST = slice(0, 2 * BATCH + 3)  # two full batches and a rest


def load_translation(seed, reverse=False, **task):
    files = {"train": "", "validation": "", "test": "", "samples": 0, "validation_samples": 0}
    return Translation.load_data({"seed": seed, "task": {"reverse": reverse, **files, **task}})


@pytest.fixture(scope="module")
def data():
    return load_translation(
        corpus="synthetic",
        pairs=120,
        validation_pairs=10,
        test_pairs=20,
        vocabulary_size=CONFIG.vocabulary_size,
        source_length=CONFIG.source_length,
        target_length=CONFIG.target_length,
        seed=0,
    )


@pytest.fixture(scope="module")
def params():
    # Looks at its source more than at initialisation, so that translations differ.
    params = init_params(jax.random.key(1), CONFIG)
    blocks = params["decoder"]["blocks"]
    attentive = jax.tree.map(lambda leaf: 8.0 * leaf, blocks["memory_attention"])
    blocks = blocks | {"memory_attention": attentive}
    return params | {"decoder": params["decoder"] | {"blocks": blocks}}


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)
    jax.clear_caches()


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(held_out, "_BATCH", BATCH)


def some(arrays, rows=FIRST):
    return TranslationBatch(arrays.source_ids[rows], arrays.target_ids[rows])


def objective(data):
    return Translation(model=MODEL, data=data, beams=2, length_penalty=0.6)


@jax.jit
def scores(params, source, target):
    memory = source_memory(params, CONFIG, source)
    return logits(
        params["decoder"],
        decode(params["decoder"], CONFIG, target[:, :-1], memory, source != 0),
    )


def log_likelihoods(params, arrays):
    """Log-probability of every target token, 0 where padded, straight from the definition."""
    found = np.asarray(scores(params, *map(jnp.asarray, arrays)), np.float64)
    log_p = found - np.log(np.exp(found).sum(-1, keepdims=True))
    wanted = arrays.target_ids[:, 1:]
    found = np.take_along_axis(log_p, wanted[..., None], axis=-1)[..., 0]
    return np.where(wanted != 0, found, 0.0), (wanted != 0).sum()


@pytest.mark.usefixtures("small_batches")
def test_loss_is_the_mean_over_tokens_not_over_batches(params, data):
    arrays = some(data.test)
    log_p, tokens = log_likelihoods(params, arrays)
    loss = held_out_loss(params, MODEL, arrays)
    assert loss == pytest.approx(-log_p.sum() / tokens, rel=1e-5)
    lengths = (arrays.target_ids[:, 1:] != 0).sum(1)
    assert len(set(lengths)) > 1
    assert abs(loss - np.mean(-log_p.sum(1) / lengths)) > 1e-3  # the mean over sentences


@pytest.mark.parametrize("batch", [1, 11, 1000])
def test_loss_does_not_depend_on_the_cut(params, data, monkeypatch, batch):
    arrays = some(data.test)
    monkeypatch.setattr(held_out, "_BATCH", batch)
    log_p, tokens = log_likelihoods(params, arrays)
    assert held_out_loss(params, MODEL, arrays) == pytest.approx(-log_p.sum() / tokens, rel=1e-5)


def test_loss_ignores_dropout_and_smoothing(params, data):
    plain = dataclasses.replace(CONFIG, dropout_rate=0.0, label_smoothing=0.0)
    arrays = some(data.test, slice(0, BATCH))
    assert held_out_loss(params, MODEL, arrays) == pytest.approx(
        held_out_loss(params, Translator(plain), arrays), rel=1e-6
    )


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("beams", [1, 2])
def test_translations_stand_in_the_order_of_their_sources(params, data, beams):
    arrays = some(data.test)
    texts = objective(data).translate(params, arrays.source_ids, beams)
    source = jnp.asarray(arrays.source_ids)
    penalty = 0.6 if beams > 1 else 0.0
    ids, _ = beam_search(params, CONFIG, source, beams=beams, length_penalty=penalty)
    assert texts == data.tokenizer.decode_batch(np.asarray(ids))
    assert len(set(texts)) > len(texts) // 2


@pytest.mark.usefixtures("small_batches")
def test_score_of_the_translations_themselves_is_perfect(params, data):
    """A real model scored against what it says, and against what it was asked for."""
    text = data.test_text
    said = objective(data).translate(params, some(data.test).source_ids)
    few = data._replace(
        test=some(data.test), test_text=text._replace(sources=text.sources[FIRST], references=said)
    )
    perfect = objective(few).test(params)
    assert perfect["test_bleu_greedy"] == pytest.approx(100.0)
    assert "tok:13a" in perfect["bleu_signature"]
    asked = text._replace(sources=text.sources[FIRST], references=text.references[FIRST])
    assert objective(few._replace(test_text=asked)).test(params)["test_bleu_greedy"] < 20.0


@pytest.mark.usefixtures("small_batches")
def test_perfect_model_and_echo(params, data, monkeypatch):
    """Rows of ids stand for a model; validation and test sentences belong to their rows."""
    arrays, text = data.test, data.test_text
    row_of = {row.tobytes(): i for i, row in enumerate(arrays.source_ids)}

    def reference(params, config, source_ids, *, beams, **_):
        if beams > 1:
            return arrays.target_ids[:1, 1:], None
        rows = [row_of[np.asarray(row).tobytes()] for row in source_ids]
        return arrays.target_ids[rows, 1:], None

    monkeypatch.setattr(translation, "beam_search", reference)
    # Every batch with several beams then says one sentence too few: only the greedy score counts.
    monkeypatch.setattr(held_out, "_BATCH", 1)
    told = objective(data).test(params)
    assert told["test_bleu_greedy"] == pytest.approx(100.0)
    alone = dataclasses.replace(objective(data), beams=1).test(params)
    assert alone == {name: value for name, value in told.items() if name != "test_bleu_beam"}
    monkeypatch.setattr(translation, "beam_search", lambda *given, **_: (given[2], None))
    echo = objective(data).test(params)
    assert echo["test_bleu_greedy"] == pytest.approx(echo["test_bleu_copy"])
    assert echo["test_bleu_copy"] == bleu(text.sources, text.references).value < 50.0


SMALL = {
    "corpus": "synthetic",
    "pairs": 600,
    "validation_pairs": 40,
    "test_pairs": 60,
    "vocabulary_size": 300,
    "source_length": 64,
    "target_length": 72,
    "seed": 0,
}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(scope="module")
def small():
    return load_translation(**SMALL)


@pytest.fixture
def corpus(tmp_path):
    """Sources of 2 to 11 words, each with two translations; one empty pair."""
    path = tmp_path / "corpus.tsv"
    rows = [
        (f"{i} " + " ".join(WORDS[: i % 10 + 1]), f"x {i} y" + " y" * (i % 7)) for i in range(60)
    ]
    text = "".join(f"{s}\t{t}\n{s}!\t{t} z\n" for s, t in rows)
    path.write_text(text + "lonely\t\n", encoding="utf-8")
    return path


def rows_of(arrays):
    return [bytes(row) for row in arrays.source_ids]


def test_shapes_and_types(small):
    for arrays, count in ((small.train, 500), (small.validation, 40), (small.test, 60)):
        assert arrays.source_ids.shape == (count, 64)
        assert arrays.target_ids.shape == (count, 73)
        assert arrays.source_ids.dtype == arrays.target_ids.dtype == np.int32
        assert arrays.target_ids.max() < small.tokenizer.model.get_vocab_size() <= 300
    assert small.dropped == {"empty": 0, "train": 0, "validation": 0, "test": 0}
    assert small.split_keys.shape == (500,)


@pytest.mark.parametrize("side", ["source_ids", "target_ids"])
def test_rows_are_begin_tokens_end_padding(small, side):
    for row in getattr(small.train, side):
        (end,) = np.flatnonzero(row == 2)
        start = 1 if side == "target_ids" else 0
        assert np.all(row[:start] == 1)
        assert end > start
        assert np.all(row[start:end] > 3)
        assert np.all(row[end + 1 :] == 0)


def test_arrays_hold_the_sentences_of_the_text(small):
    for arrays, text in ((small.validation, small.validation_text), (small.test, small.test_text)):
        assert tuple(small.tokenizer.decode_batch(arrays.source_ids)) == text.sources
        assert tuple(small.tokenizer.decode_batch(arrays.target_ids)) == text.references


def test_no_source_leaks(small):
    sets = [set(rows_of(arrays)) for arrays in (small.train, small.validation, small.test)]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 600


def test_the_same_arguments_give_the_same_arrays(small):
    again, other = load_translation(**SMALL), load_translation(**{**SMALL, "seed": 1})
    for one, two in zip(small.train, again.train, strict=True):
        assert np.array_equal(one, two)
    assert small.test_text == again.test_text
    assert small.test_text != other.test_text


def test_reverse_swaps_the_sides(small):
    mirror = load_translation(**SMALL, reverse=True)
    forward = dict(zip(*small.test_text, strict=True)) | dict(
        zip(*small.validation_text, strict=True)
    )
    sources = {source.split()[-1] for source in mirror.test_text.sources}
    assert not sources & set(" ".join(forward).split())
    assert set(" ".join(mirror.test_text.references).split()) & set(" ".join(forward).split())


def load_file(corpus, **changes):
    sizes = {"pairs": 110, "validation_pairs": 5, "test_pairs": 5, "vocabulary_size": 200}
    return load_translation(**{**SMALL, **sizes, "corpus": corpus, **changes})


def test_long_pairs_are_dropped_and_counted_never_cut(corpus):
    whole, short = load_file(str(corpus)), load_file(str(corpus), source_length=8)
    assert whole.dropped == {"empty": 1, "train": 0, "validation": 0, "test": 0}
    assert short.dropped["empty"] == 1
    assert short.dropped["train"] > 0
    for name in ("train", "validation", "test"):
        full, kept = getattr(whole, name), getattr(short, name)
        fits = np.sum(full.source_ids != 0, axis=1) <= 8
        assert np.array_equal(full.source_ids[fits, :8], kept.source_ids)
        assert short.dropped[name] == np.sum(~fits)
    assert len(short.split_keys) == len(short.train.source_ids)
    assert len(short.test_text.sources) == len(short.test.source_ids)


def test_the_longest_pair_fits_exactly(corpus):
    whole = load_file(str(corpus))
    source, target = (int(np.sum(ids != 0, axis=1).max()) for ids in whole.train)
    exact = load_file(str(corpus), source_length=source, target_length=target - 1)
    assert exact.dropped["train"] == 0
    assert load_file(str(corpus), source_length=source - 1).dropped["train"] > 0
    assert load_file(str(corpus), target_length=target - 2).dropped["train"] > 0


def test_translations_of_one_sentence_stay_in_one_set(corpus):
    data = load_file(str(corpus))
    keys = [
        {text_key(text) for text in data.tokenizer.decode_batch(arrays.source_ids)}
        for arrays in (data.train, data.validation, data.test)
    ]
    assert [len(k) for k in keys] == [50, 5, 5]
    assert len(set.union(*keys)) == 60
    assert len(data.train.source_ids) == 100


def test_pairs_limits_the_corpus(corpus):
    assert len(load_file(str(corpus), pairs=45).train.source_ids) == 35


def test_two_aligned_files_and_relative_names(corpus, monkeypatch):
    lines = [line.split("\t") for line in corpus.read_text(encoding="utf-8").splitlines()]
    for column, name in enumerate(("a.txt", "b.txt")):
        text = "".join(line[column] + "\n" for line in lines)
        (corpus.parent / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("COLLAPIPE_DATA", str(corpus.parent))
    two, one = load_file("a.txt|b.txt"), load_file("corpus.tsv")
    assert np.array_equal(two.train.target_ids, one.train.target_ids)
    assert two.dropped == one.dropped


def test_the_vocabulary_is_learnt_from_training_text_alone(corpus):
    # every one of these sources has a character of its own
    rare = "".join(f"{chr(0x6F00 + i)}\tx\n" for i in range(60))
    corpus.write_text(corpus.read_text(encoding="utf-8") + rare, encoding="utf-8")
    data = load_file(str(corpus))
    held_out = np.concatenate([data.validation.source_ids, data.test.source_ids])
    assert np.any(held_out == 3)
    assert not np.any(data.train.source_ids == 3)


def test_text_key_ignores_case_and_punctuation():
    assert text_key("Run!") == text_key("run.") != text_key("Runs.")
    assert text_key("?!") == "?!"


def test_length_labels_are_ordered_classes_of_about_equal_size():
    lengths = np.random.default_rng(0).permutation(np.arange(800))
    labels = length_labels(lengths)
    assert np.all(np.diff(labels[np.argsort(lengths)]) >= 0)
    counts = np.bincount(labels)
    assert len(counts) == MAX_LABELS
    assert np.all(np.abs(counts - 100) <= 1)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([5, 5, 5], [0, 0, 0]), ([9, 3, 3, 9], [1, 0, 0, 1]), ([3] * 90 + [8], [0] * 90 + [1])],
)
def test_equal_lengths_share_a_label_and_labels_have_no_gaps(lengths, expected):
    assert length_labels(np.array(lengths)).tolist() == expected


def test_keys_follow_the_length_of_the_source(small):
    lengths = np.sum(small.train.source_ids != 0, axis=1)
    assert 4 <= len(np.unique(small.split_keys)) <= MAX_LABELS
    for label in range(1, small.split_keys.max() + 1):
        assert (
            lengths[small.split_keys == label].min() > lengths[small.split_keys == label - 1].max()
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": 100}, r"task\.pairs = 100: validation and test take 100 of them"),
        ({"target_length": 3}, r"= \(64, 3\): none of the 500 pairs for train fits"),
        ({"vocabulary_size": 20}, r"task\.vocabulary_size = 20: the characters"),
        ({"corpus": "no/such.tsv"}, r"task\.corpus = 'no/such\.tsv': no such file"),
    ],
)
def test_wrong_arguments_are_named_with_a_remedy(change, message):
    with pytest.raises(InputError, match=message) as caught:
        load_translation(**{**SMALL, **change})
    assert caught.value.remedy in str(caught.value)


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
def test_the_real_corpus_in_arrays():
    data = load_translation(
        **{
            **SMALL,
            "corpus": "mt_tatoeba_deu_eng/deu.txt",
            "pairs": 30_000,
            "validation_pairs": 1000,
            "test_pairs": 1000,
            "vocabulary_size": 4000,
            "source_length": 24,
            "target_length": 28,
        }
    )
    assert data.tokenizer.model.get_vocab_size() == 4000
    kept = len(data.train.source_ids)
    assert kept + data.dropped["train"] == 28_000
    assert 0.97 < kept / 28_000 < 1
    sources = data.tokenizer.decode_batch(data.train.source_ids)
    held_out = {*data.test_text.sources, *data.validation_text.sources}
    assert not held_out & set(sources)
    assert all(normalise(text) == text for text in held_out)
    assert bleu(*data.test_text).value < 2
    assert 4 <= len(np.unique(data.split_keys)) <= MAX_LABELS


ODD = "\u00a0\u202f\u200b\u00ad\u2019\u201e\u201c\u2581\u0301e\t\r\n\u2028 \u3000\u1fef\ufeff"


def test_normalise_on_each_kind_of_oddity():
    assert normalise("\u201eIt\u2019s\u201c\u00a0 so\u202f\tmu\u00adch ") == '"It\'s" so much'
    assert normalise("e\u0301") == "\u00e9"
    assert normalise("a\u2581b") == "a_b"


@given(st.text(alphabet=st.one_of(st.sampled_from(ODD), st.characters(codec="utf-8"))))
def test_normalise_is_idempotent(text):
    once = normalise(text)
    assert normalise(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split(" ")).strip()


def test_normalise_is_idempotent_on_every_character():
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            once = normalise(chr(code))
            assert normalise(once) == once


def test_reads_two_columns_and_counts_empty_pairs(tmp_path):
    path = tmp_path / "corpus.tsv"
    text = "\ufeffHi.\tHallo.\tignored\r\n\nBye.\t \n  \nSo\u2028what?\tNa und?"
    path.write_bytes(text.encode())
    assert read_parallel_text(str(path)) == ([("Hi.", "Hallo."), ("So what?", "Na und?")], 3)


def test_a_mark_of_byte_order_is_no_text(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_bytes("\ufeff\na\tb\n".encode())
    assert read_parallel_text(str(path)) == ([("a", "b")], 1)


def test_reads_two_aligned_files(tmp_path):
    (tmp_path / "a").write_text("one\n\nthree\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    pairs, empty = read_parallel_text(f"{tmp_path}/a|{tmp_path}/b")
    assert (pairs, empty) == ([("one", "eins"), ("three", "drei")], 1)
    with pytest.raises(InputError, match="more than two files"):
        read_parallel_text("a|b|c")


def test_misaligned_files_tell_both_counts(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"task\.corpus = .*the files have 2 and 3 lines"):
        read_parallel_text(f"{tmp_path}/a|{tmp_path}/b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\n\nno tab here\n", "line 3 has no tab"),
        (b"a\tb\nGr\xfc\xdfe\tx\n", "line 2 holds bytes that are not UTF-8"),
    ],
)
def test_broken_lines_are_numbered(tmp_path, content, message):
    path = tmp_path / "corpus.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_parallel_text(str(path))
    assert caught.value.key == "task.corpus"
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"task\.corpus = .*nowhere.*no such file"):
        read_parallel_text(f"{tmp_path}/nowhere.tsv")


@given(
    st.lists(st.integers(0, 30), min_size=20, max_size=80),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 5),
)
def test_split_is_disjoint_by_source(sources, validation, test, seed):
    pairs = [(str(s), f"{s}/{i}") for i, s in enumerate(sources)]
    groups = {s for s, _ in pairs}
    if len(groups) <= validation + test:
        return
    everything = split_by_source(pairs, (0, validation, test), seed)
    held_out = {s for part in everything[1:] for s, _ in part}
    train = sum(s not in held_out for s, _ in pairs)
    split = split_by_source(pairs, (train, validation, test), seed)
    parts = [{s for s, _ in part} for part in split]
    assert parts[0] | parts[1] | parts[2] == groups
    assert sum(map(len, parts)) == len(groups)
    assert (len(split.validation), len(split.test)) == (validation, test)
    # training keeps every pair of its groups, the others the first of the corpus
    assert sorted(split.train) == sorted(p for p in pairs if p[0] in parts[0])
    for pair in split.validation + split.test:
        assert pair == next(p for p in pairs if p[0] == pair[0])
    assert split == split_by_source(pairs, (train, validation, test), seed)


def test_split_takes_the_asked_sizes_and_is_shuffled():
    pairs = [(str(i), "x") for i in range(500)]
    split = split_by_source(pairs, (100, 20, 30), 0)
    assert [len(part) for part in split] == [100, 20, 30]
    assert split.train != sorted(split.train, key=lambda p: int(p[0]))
    assert split != split_by_source(pairs, (100, 20, 30), 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 5, 5), "10 distinct source sentences, too few to hold out 5"),
        ((9, 1, 1), "only 8 pairs for training"),
    ],
)
def test_impossible_splits(sizes, message):
    with pytest.raises(InputError, match=message):
        split_by_source([(str(i), "x") for i in range(10)], sizes, 0)


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
def test_the_real_corpus_reads_clean():
    pairs, empty = read_parallel_text("mt_tatoeba_deu_eng/deu.txt")
    assert (len(pairs), empty) == (169813, 0)
    text = " ".join(side for pair in pairs for side in pair)
    assert not set(text) & set("\u00a0\u202f\u2019\u201e\u201c\u200b\u00ad\u2581\n\t")
