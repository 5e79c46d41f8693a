"""Tiny decoder-only models below tests/data that `transformers` drew, and what it computes.

To draw them anew, where `transformers` and `torch` are installed, from the folder tests:

    python -c "from support import tiny_causal; tiny_causal.write_golden()"
"""

import numpy as np

from collapipe_jax.learning.models.causal_lm import NOTHING
from support import GOLDEN

CLASSES = {"llama": "Llama", "llama3": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
FOLDERS = {name: GOLDEN / f"{name}_tiny" for name in CLASSES}
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
OWN = {
    "llama": {
        "head_dim": 6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "rms_norm_eps": 1e-5,
    },
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 300.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 6, "tie_word_embeddings": True},
}
PROMPTS = ([1, 5, 30, 0, 17, 9, 39], [1, 12], [1, 7, 7, 8])
ROOM = 10  # tokens that are generated


def padded():
    """The prompts as one array."""
    ids = np.full((len(PROMPTS), max(map(len, PROMPTS))), NOTHING, np.int32)
    for row, prompt in zip(ids, PROMPTS, strict=True):
        row[: len(prompt)] = prompt
    return ids


def random_model(peers, name, seed=0, **settings):
    """A model of `transformers` with every parameter away from where it starts."""
    torch, transformers = peers
    torch.manual_seed(seed)
    config = getattr(transformers, f"{CLASSES[name]}Config")(**SIZES | OWN[name] | settings)
    model = getattr(transformers, f"{CLASSES[name]}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def theirs(peers, model):
    """Logits after every token ``[n, P, V]``, and greedily generated tokens ``[n, ROOM]``.

    Each prompt is computed alone, without padding; places behind it hold 0, and NOTHING.
    """
    torch, _ = peers
    ids = padded()
    logits = np.zeros((*ids.shape, SIZES["vocab_size"]), np.float32)
    generated = np.full((len(ids), ROOM), NOTHING, np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens = torch.tensor([prompt])
        with torch.no_grad():
            logits[row, : len(prompt)] = model(tokens).logits[0].numpy()
            said = model.generate(tokens, max_new_tokens=ROOM, do_sample=False)[0, len(prompt) :]
        said = said[said != SIZES["eos_token_id"]]
        generated[row, : len(said)] = said
    return logits, generated


def write_golden():
    """Draw all models, and note what `transformers` computes."""
    import torch
    import transformers

    peers = torch, transformers
    for name, folder in FOLDERS.items():
        model = random_model(peers, name)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        logits, generated = theirs(peers, model)
        np.savez(folder / "expected.npz", logits=logits, generated=generated)
