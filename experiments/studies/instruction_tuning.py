"""Answers after LoRA: over the network, in one place, and by PyTorch's ``peft``.

    python -m experiments.studies.instruction_tuning --model=models/SmolLM2-135M \
        --data=gsm8k/train.jsonl --test=gsm8k/test.jsonl --workdir=runs/answers

Trains a published decoder-only model on prompts with answers, as ``collapipe train`` does. All
three ways start from the same adapters and take the same exchanges in the same order, each in a
row of its own, at the same rates. In one place, and by ``peft``, a step takes the mini-batches of
all clusters as one. The adapters, the last norm and the table of outputs are trained. Prints loss
(nats a token) and perplexity of the test answers. Then compares what ``peft`` computes with the
adapters of the first run, and what we do: logits of test rows, and greedily generated tokens. Goes
on with what is finished.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import read_object, write_json
from collapipe_jax.learning.federated.optimizers import Optimizer
from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch, logits, scored_targets
from collapipe_jax.learning.models.decoding import Sampling, generate
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.tasks.causal_lm import LanguageModelling
from collapipe_jax.learning.tasks.scores import perplexity
from collapipe_jax.learning.tasks.subwords import pad_rows
from collapipe_jax.runs.config.experiment import Experiment, build_experiment
from collapipe_jax.runs.config.files import parse_overrides, read_values
from collapipe_jax.runs.config.finetuning import fine_tuning
from collapipe_jax.runs.training.learning_rounds import ROUNDS_PER_CALL, LearningRounds
from collapipe_jax.runs.training.loop import train
from collapipe_jax.runs.training.ongoing_run import initial_params, learning_place
from experiments.benchmarks.adapters import peer_model
from experiments.studies.central import central_learner, central_rounds

START, COLLABORATIVE, CENTRAL, PEFT = "before", "collaborative", "one place", "peft"
_ROWS, _PROMPTS, _TOKENS = 2, 4, 32  # of PyTorch at a time, and of the comparison
_ADAM = {"betas": (0.9, 0.98), "eps": 1e-9}
"""As of ``learning/federated/optimizers.py``."""


def main(argv: Sequence[str]) -> None:
    """Train what is not on file, and print the table and the comparison."""
    experiment, console = read_experiment(argv), Console()
    folder = Path(_options(argv)[0].workdir)
    # Of NumPy: learning gives up the arrays that it starts from.
    start = jax.tree.map(np.array, initial_params(experiment))
    ways = {
        START: lambda: _score(experiment, start),
        COLLABORATIVE: lambda: _train_over_network(experiment, folder, console),
        CENTRAL: lambda: _score(experiment, train_in_one_place(experiment, start)),
        PEFT: lambda: _train_by_peft(experiment, start, folder),
    }
    path = folder / "answers.json"
    losses = read_object(path) or {}
    for name, run in ways.items():
        if name not in losses:
            losses[name] = run()
            write_json(path, losses)
            console.print(f"{name}: {losses[name]:.5f}")
    rows = [
        (name, f"{loss:.4f}", f"{perplexity(loss):.4f}", f"{loss / losses[PEFT]:.4f}")
        for name, loss in losses.items()
    ]
    console.print(make_table(("", "loss", "perplexity", "loss over peft's"), rows))
    console.print(compare_files(experiment, folder / COLLABORATIVE / "adapters"))


def _options(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and keys of the configuration."""
    parser = make_parser(__doc__, "model", "data", "test", "workdir", lora=(8, "rank of adapters"))
    return parser.parse_known_args(argv)


def read_experiment(argv: Sequence[str]) -> Experiment:
    """The experiment of ``collapipe train`` with these options.

    Raises:
      InputError: as that command, and for another model than a decoder-only one.
    """
    options, overrides = _options(argv)
    # `transformers` has no rows of several exchanges that see themselves alone.
    values = dict[str, Any](parse_overrides(overrides)) | {"task.packing": False}
    tuning = fine_tuning(options.model, options.data, options.test, options.lora, values)
    experiment = build_experiment(*read_values(tuning.config, tuning.values))
    if not isinstance(experiment.task, LanguageModelling):
        problem, remedy = "no decoder-only model", "Give a folder of a Llama or a Qwen"
        raise InputError("--model", options.model, problem, remedy)
    return experiment


def _score(experiment: Experiment, params: Params) -> float:
    """Nats a token of the test answers."""
    return experiment.task.loss(params, experiment.task.data.test)


def _train_over_network(experiment: Experiment, folder: Path, console: Console) -> float:
    """Loss on the test answers after ``collapipe train``."""
    workdir = folder / COLLABORATIVE
    run = train(experiment, workdir, resume=workdir.exists(), console=console)
    return _score(experiment, run.params)


def train_in_one_place(experiment: Experiment, start: Params) -> Params:
    """Parts keep their rates, unlike in ``studies/central.py``, where one trains all."""
    learner = central_learner(experiment)
    optimizers = learner.optimizers.replace(client=experiment.optimizers.client)
    learner = learner.replace(optimizers=optimizers)
    learning = LearningRounds([learner], [learner.init(start)], learning_place(experiment))
    rounds = experiment.config["training"]["rounds"]
    for first in range(0, rounds, ROUNDS_PER_CALL):
        numbers = range(first, min(first + ROUNDS_PER_CALL, rounds))
        learning.advance([central_rounds(experiment, numbers)])
    return learning.state(0).scored_params


def _train_by_peft(experiment: Experiment, start: Params, folder: Path) -> float:
    """Loss on the test answers after training by PyTorch."""
    task, optimizers = experiment.task, experiment.optimizers
    task.export_adapters(start, folder / "start")
    torch, base, model = _load_in_peft(experiment, folder / "start", is_trainable=True)
    adapters = [weight for weight in model.parameters() if weight.requires_grad]
    # Tables of inputs and outputs are apart, as here.
    base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().clone())
    head = [base.lm_head.weight, base.model.norm.weight.requires_grad_()]
    parts: list[tuple[list, Optimizer]] = [
        (adapters, optimizers.client),
        (head, optimizers.decoder),
    ]
    adam = torch.optim.Adam([{"params": weights} for weights, _ in parts], lr=0.0, **_ADAM)
    number = 0
    for index in range(experiment.config["training"]["rounds"]):
        (batches,) = central_rounds(experiment, range(index, index + 1)).batches
        for turn in range(experiment.config["training"]["local_steps"]):
            batch = jax.tree.map(lambda leaf, turn=turn: np.asarray(leaf[turn, 0]), batches)
            adam.zero_grad()
            count = int(scored_targets(batch).sum())
            for rows in _in_parts(batch):
                (_peer_loss(torch, model, rows) / count).backward()
            for group, (weights, optimizer) in zip(adam.param_groups, parts, strict=True):
                group["lr"] = float(optimizer.step_size(number))
                if optimizer.clip_norm:
                    torch.nn.utils.clip_grad_norm_(weights, optimizer.clip_norm)
            adam.step()
            number += 1
    arrays = task.data.test.arrays
    with torch.no_grad():
        losses = [_peer_loss(torch, model.eval(), rows).item() for rows in _in_parts(arrays)]
    return sum(losses) / int(scored_targets(arrays).sum())


def _load_in_peft(experiment: Experiment, folder: Path, **options: Any) -> tuple[Any, Any, Any]:
    """PyTorch, the published model in it, and this model with the adapters of a folder."""
    import peft

    task = experiment.task
    assert isinstance(task, LanguageModelling)
    torch, base = peer_model(task.model.sizes, task.pretrained_folder)
    return torch, base, peft.PeftModel.from_pretrained(base, str(folder), **options)


def _in_parts(batch: CausalBatch) -> Iterator[CausalBatch]:
    """A few rows at a time: PyTorch keeps the activations of all blocks."""
    for first in range(0, len(batch.token_ids), _ROWS):
        yield jax.tree.map(lambda leaf, first=first: leaf[first : first + _ROWS], batch)


def _peer_loss(torch: Any, model: Any, batch: CausalBatch) -> Any:
    """Cross entropy summed over the scored tokens."""
    ids = torch.tensor(batch.token_ids).long()
    scored = torch.tensor(np.array(scored_targets(batch)))
    scores = model(input_ids=ids[:, :-1].clamp(min=0), use_cache=False).logits[scored]
    return torch.nn.functional.cross_entropy(scores, ids[:, 1:][scored], reduction="sum")


def compare_files(experiment: Experiment, folder: Path) -> dict[str, float | int]:
    """What ``peft`` computes with the adapters of a run, beside what we do.

    Returns:
      The largest difference of logits on test rows; numbers of generated tokens, and of those
      among them that are equal.
    """
    task, params = LanguageModelling.load(folder)
    torch, _, model = _load_in_peft(experiment, folder)
    model = model.eval()
    rows = experiment.task.data.test.arrays.token_ids[:_ROWS]
    ours = np.asarray(logits(task.model, params, CausalBatch(jnp.asarray(rows))))
    with torch.no_grad():
        ids = torch.tensor(np.maximum(rows[:, :-1], 0)).long()
        theirs = model(input_ids=ids, use_cache=False).logits.numpy()
    is_token = rows[:, :-1] != NOTHING
    difference = np.abs(ours - theirs)[is_token].max()
    tokenizer = task.data.tokenizer
    prompts = [tokenizer.asked(sample.asked) for sample in experiment.corpus.test[:_PROMPTS]]
    padded = jnp.asarray(pad_rows(prompts, max(map(len, prompts)), NOTHING))
    keys, ends = jax.random.split(jax.random.key(0), len(prompts)), jnp.asarray(tokenizer.ends)
    given = {"room": _TOKENS, "most": _TOKENS, "sampling": Sampling(0.0, 1.0)}
    given |= {"is_piece": jnp.asarray(tokenizer.is_piece(task.model.sizes.vocabulary_size))}
    made = np.asarray(generate(params, task.model.sizes, padded, keys, ends, **given))
    counted, equal = 0, 0
    for prompt, new in zip(prompts, made, strict=True):
        with torch.no_grad():
            said = model.generate(
                input_ids=torch.tensor([list(map(int, prompt))]),
                max_new_tokens=_TOKENS,
                do_sample=False,
            )[0, len(prompt) :].tolist()
        said = [token for token in said if token not in tokenizer.ends]
        kept = new[new != NOTHING].tolist()
        counted += max(len(said), len(kept))
        equal += sum(one == other for one, other in zip(said, kept, strict=False))
    largest = float(np.abs(theirs[is_token]).max())
    return {
        "difference": float(difference),
        "largest_logit": largest,
        "tokens": counted,
        "equal_tokens": equal,
    }


if __name__ == "__main__":
    raise SystemExit(run_training(main))
