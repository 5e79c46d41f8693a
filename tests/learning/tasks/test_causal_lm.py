"""Language modelling from text to a trained model in use."""

import itertools
import json
import math
import shutil
from collections import Counter

import jax
import numpy as np
import pytest
from support import tiny_run
from support.changed_keys import changed
from support.tiny_causal import FOLDERS

import collapipe_jax as cp
from collapipe_jax.cli import predict
from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.learning.models.causal_lm import NOTHING
from collapipe_jax.learning.tasks.causal_lm import (
    LanguageModelling,
    bits_per_byte,
    count_bytes,
    perplexity,
)
from collapipe_jax.learning.tasks.registry import seal_model
from collapipe_jax.learning.tasks.subwords import ByteTokenizer, train_byte_pieces
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.loop import train

LINES = ["the cat sees a dog", "the dog sees the cat", "a cat saw </s> na\u00efve dogs \u6f22"] * 4


def get_config():
    config = tiny_run.get_config()
    config.task.update({"kind": "causal_lm", "vocabulary_size": 300, "source_length": 20})
    config.model.update({"key_value_heads": 1, "label_smoothing": 0.0, "dropout_rate": 0.0})
    config.dynamics.availability = 1.0
    return config


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_pieces(LINES, 300)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The objective on invented sentences, fresh parameters, and the folder of their model."""
    folder = tmp_path_factory.mktemp("causal") / "model"
    objective = LanguageModelling.from_config(get_config())
    params = jax.jit(objective.model.init)(jax.random.key(0))
    objective.export(params, folder)
    return objective, params, folder


def test_any_text_comes_back(tokenizer):
    texts = [*LINES[:3], "  two  spaces\t\u00e9\U0001f600 <s>", ""]
    encoded = tokenizer.encode(texts)
    assert [tokenizer.continuation([], ids) for ids in encoded] == texts
    assert min(map(min, filter(None, encoded))) > 2  # no special piece
    assert tokenizer.continuation(encoded[0][:3], encoded[0][3:]) in texts[0]
    again = train_byte_pieces(LINES, 300)
    assert again.model.to_str() == tokenizer.model.to_str()


def test_each_piece_is_predicted_once(tokenizer):
    rows = tokenizer.rows(LINES[:3], 4)
    whole = [[1, *ids, 2] for ids in tokenizer.encode(LINES[:3])]
    assert rows.shape[1] == 5
    targets = rows[:, 1:][rows[:, 1:] != NOTHING].tolist()
    assert targets == [piece for text in whole for piece in text[1:]]
    # A piece stands before its successor, in whichever row.
    pairs = [(a, b) for row in rows for a, b in itertools.pairwise(row) if b != NOTHING]
    assert pairs == [pair for text in whole for pair in itertools.pairwise(text)]


def test_too_few_pieces_are_refused():
    with pytest.raises(InputError, match="259"):
        train_byte_pieces(LINES, 258)


def write(folder, name, lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(folder / name)


def test_files_become_sets(tmp_path):
    config = get_config()
    objects = [json.dumps({"words": f"text {n}"}) for n in range(3)]
    files = {
        "train": write(tmp_path, "train.txt", [f"line {n}" for n in range(20)] + ["", "  "]),
        "test": write(tmp_path, "test.txt", ["Line 7", "another"]),
    }
    config.task.update(files)
    with pytest.warns(InputWarning, match="1 of 2 texts"):
        sets = LanguageModelling.read_corpus(config)
    assert [len(part) for part in sets] == [18, 2, 2]
    assert sorted(sets.train + sets.validation) == sorted(f"line {n}" for n in range(20))
    config.task.update({"validation": write(tmp_path, "v.jsonl", objects), "samples": 5})
    with pytest.raises(InputError, match="no column text among words"):
        LanguageModelling.read_corpus(config)
    (tmp_path / "v.jsonl").write_text((tmp_path / "v.jsonl").read_text().replace("words", "text"))
    sets = LanguageModelling.read_corpus(config)
    assert len(sets.train) == 5
    assert sets.validation == ["text 0", "text 1", "text 2"]


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("task.corpus", "pairs.txt", "task.train"),
        ("task.labels", 2, "task.labels"),
        ("model.key_value_heads", 3, "model.key_value_heads"),
        ("model.heads", 3, "model.heads"),
        ("model.head_size", 3, "model.head_size"),
        ("task.vocabulary_size", 100, "task.vocabulary_size"),
    ],
)
def test_wrong_keys_are_named(name, value, key):
    with pytest.raises(InputError) as caught:
        build_experiment(changed(name, value, get_config()))
    assert caught.value.errors[0].key == key


def test_other_tasks_refuse_its_keys():
    for name, value in (("model.query_bias", True), ("model.key_value_heads", 2)):
        with pytest.raises(InputError, match="translation does not read it"):
            build_experiment(changed(name, value))


def test_invented_sentences_are_split():
    data = LanguageModelling.load_data(get_config())
    assert len(data.validation.arrays.token_ids) >= 20
    assert len(data.test.arrays.token_ids) >= 30
    with pytest.raises(InputError, match="none are left"):
        LanguageModelling.load_data(changed("task.pairs", 50, get_config()))


@pytest.mark.slow
def test_training_lowers_perplexity_and_a_round_is_priced(tmp_path):
    experiment = build_experiment(get_config())
    run = train(experiment, tmp_path / "run")
    model = cp.load(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, model.params, run.params)
    score, loss = (run.history[name] for name in ("score", "validation_loss"))
    known = np.isfinite(score)
    np.testing.assert_allclose(np.log(score[known]), loss[known], rtol=1e-5)
    assert score[known][-1] < 300.0
    workload = experiment.system.mean_problem.workload
    assert workload.target_bits == 20 * experiment.config["payload"]["token_bits"]
    sizes = experiment.task.model.sizes
    assert (sizes.key_value_heads, sizes.head_size, sizes.positions) == (1, 8, 20)


def test_scores_are_those_of_their_definitions(exported):
    objective, params, _ = exported
    data, summary = objective.data, objective.test(params)
    loss, score = objective.validate(params)
    assert score == objective.validate(params)[1] == pytest.approx(math.exp(loss))
    assert objective.trivial_score() < 300.0 < score
    counts = Counter(data.train.token_ids[:, 1:].ravel().tolist())
    total = sum(counts[piece] + 1 for piece in range(300))
    pieces = [piece for piece in data.test.arrays.token_ids[:, 1:].ravel() if piece != NOTHING]
    bits = [-math.log2((counts[piece] + 1) / total) for piece in pieces]
    assert summary["test_perplexity_unigram"] == pytest.approx(2 ** np.mean(bits))
    assert summary["test_tokens"] == len(pieces)
    assert summary["test_perplexity"] == pytest.approx(math.exp(summary["test_loss"]))
    in_bits = summary["test_loss"] * len(pieces) / math.log(2)
    assert summary["test_bits_per_byte"] == pytest.approx(in_bits / count_bytes(data.test.text))
    assert perplexity(1e4) == math.inf
    assert bits_per_byte(math.log(2), 16, 8) == pytest.approx(2.0)


def test_the_model_is_loaded_scored_and_continues_texts(exported, tmp_path):
    _, params, folder = exported
    model = cp.load(folder)
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    texts = ["the old cat", "", "the king " * 30]
    said = model.predict(texts, tokens=5)
    assert said == model.predict(texts, tokens=5)
    assert [model.predict([text], tokens=5)[0] for text in texts] == said
    drawn = [model.predict(texts, temperature=2.0, seed=seed) for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    assert model.predict([]) == []
    assert model.task.record(said[0]) == {"continuation": said[0]}
    assert model.task.line("a\nb") == "a b"
    lines = ["the old cat", "a king saw the dog"]
    scores, pieces = (
        model.evaluate(write(tmp_path, "test.txt", lines)),
        model.task.data.tokenizer.rows,
    )
    assert (scores["texts"], scores["tokens"]) == (2, (pieces(lines, 99)[:, 1:] != NOTHING).sum())
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))


def test_transformers_cuts_and_continues_texts_alike(peers, exported):
    folder, texts = exported[2], ["the old cat", "a </s> \u6f22"]
    tokenizer = peers[1].AutoTokenizer.from_pretrained(folder)
    peer = peers[1].AutoModelForCausalLM.from_pretrained(folder).eval()
    model = cp.load(folder)
    for text, said in zip(texts, model.predict(texts, tokens=4), strict=True):
        row = tokenizer(text, return_tensors="pt", split_special_tokens=True)
        assert row["input_ids"][0].tolist() == [1, *model.tokenizer.encode([text])[0]]
        found = peer.generate(**row, max_new_tokens=4, do_sample=False)[0]
        new = found[row["input_ids"].shape[1] :].tolist()
        assert said == tokenizer.decode(new, skip_special_tokens=True)


def test_the_command_continues_lines(exported, capsys, tmp_path):
    given, folder = write(tmp_path, "starts.txt", ["the old", ""]), exported[2]
    options = {"tokens": 4, "temperature": 1.5, "top_p": 0.9, "seed": 3}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    predict.main([f"--model={folder}", "--json", *flags, given])
    said = cp.load(folder).predict(["the old", ""], **options)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["continuation"] for record in found] == said
    with pytest.raises(InputError, match="--beams"):
        predict.main([f"--model={folder}", "--beams=2", given])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tokens": 20}, "--tokens"),
        ({"temperature": -1.0}, "--temperature"),
        ({"top_p": 1.5}, "--top-p"),
        ({"seed": -2}, "--seed"),
    ],
)
def test_wrong_options_are_named(exported, options, key):
    with pytest.raises(InputError) as caught:
        cp.load(exported[2]).predict(["a"], **options)
    assert caught.value.key == key


def test_a_pretrained_model_is_a_start(tmp_path, tokenizer):
    """Sizes come from the folder where they are not the configuration's to choose."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = Tokenizer(models.BPE({chr(97 + n): n for n in range(26)}, []))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ByteTokenizer(model, 1, [2]).save(tmp_path, 64)
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((FOLDERS["qwen2"] / file).read_bytes())
    config = get_config()
    config.model.update({"pretrained": str(tmp_path), "heads": 4, "feed_forward_width": 24})
    config.model.update({"key_value_heads": 2, "query_bias": True})
    with pytest.raises(InputError, match="has 40") as caught:
        LanguageModelling.from_config(config)
    assert caught.value.key == "task.vocabulary_size"
    config.task.vocabulary_size = 40
    objective = LanguageModelling.from_config(config)
    assert objective.model.sizes.initial_deviation == 0.5
    assert LanguageModelling.make_sizes(config).rotary_base == objective.model.sizes.rotary_base
    start = objective.starting_params({})
    np.testing.assert_array_equal(start["embedding"]["word"], start["decoder"]["word"])
    objective.export(start, tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["model_type"], written["tie_word_embeddings"]) == ("qwen2", True)
    assert (written["bos_token_id"], written["eos_token_id"]) == (1, 2)


def letters(template=None):
    """A tokenizer of letters, numbers 3 to 28, with or without a rule on what begins a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<s>": 1} | {chr(97 + n): 3 + n for n in range(26)}
    model = Tokenizer(models.BPE(vocabulary, []))
    model.add_special_tokens(["<s>"])
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template:
        number = model.token_to_id("<s>")
        model.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", number)]
        )
    return model, model.token_to_id("<s>")


@pytest.mark.parametrize(
    ("template", "begins", "starts"),
    [(None, False, False), (None, True, True), ("<s> $A", False, True), ("$A", False, False)],
)
def test_texts_begin_as_the_tokenizer_says(tmp_path, template, begins, starts):
    model, begin = letters(template)
    model.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": begins}))
    document = {"bos_token_id": begin, "eos_token_id": [2, 1]}
    found = ByteTokenizer.from_folder(tmp_path, document)
    assert found.prefix == [begin] * starts
    assert found.rows(["ab"], 4)[0].tolist()[: 3 + starts] == [*found.prefix, 3, 4, 2]
    assert found.prompts([[3, 4], []], 9) == [[*found.prefix, 3, 4], [begin]]
    found.save(tmp_path, 64)  # and read again
    assert ByteTokenizer.from_folder(tmp_path, document).prefix == found.prefix


def test_no_number_behind_the_pieces_is_drawn(tmp_path):
    """The model has 40 rows, the tokenizer 27 pieces, the last of them number 28."""
    model, begin = letters()
    folder = shutil.copytree(FOLDERS["llama"], tmp_path / "model")
    model.save(str(folder / "tokenizer.json"))
    generator, params = LanguageModelling.load(folder)
    tokenizer = generator.data.tokenizer
    assert tokenizer.is_piece(40).sum() == 27
    drawn = []
    tokenizer.continuation = lambda prompt, new: drawn.extend(new) or ""
    generator.predict(params, ["abc"] * 40, tokens=12, temperature=50.0)
    assert {begin, *range(3, 29)} >= {int(number) for number in drawn}
    assert len(set(drawn)) > 20


def test_a_changed_file_of_an_exported_model_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported[2], tmp_path / "model")
    seal_model(folder)
    cp.load(folder)
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        whole = (folder / name).read_bytes()
        place = len(whole) // 2
        (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError, match=name):
            cp.load(folder)
        (folder / name).write_bytes(whole)
    cp.load(folder)
