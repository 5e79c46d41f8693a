"""Invented corpora, small and learnable: tags and classes that words tell."""

import numpy as np

CITIES, METALS = ("oslo", "lima", "cairo", "quito"), ("zinc", "iron", "gold", "lead")
SETS = {"train": 60, "validation": 20, "test": 20}


def tagged(count, seed):
    """Sentences in two columns: a city is a Place, two metals in a row are one Metal."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        city, first, second = rng.choice(CITIES), *rng.choice(METALS, 2)
        words = [("we", "O"), ("sell", "O"), (first, "B-Metal"), (second, "I-Metal"), ("in", "O")]
        lines += [f"{word}\t{tag}" for word, tag in [*words, (city, "B-Place")]] + [""]
    return "\n".join(lines) + "\n"


def labelled(count, seed):
    """Texts whose class a word in them tells, half of either."""
    rng = np.random.default_rng(seed)
    names = {"place": CITIES, "metal": METALS}
    rows = ["text,label"]
    for index in range(count):
        label = ("place", "metal")[index % 2]
        rows.append(f"tell me of {rng.choice(names[label])} please,{label}")
    return "\n".join(rows) + "\n"


def load_data(objective, seed=0, **task):
    """Data of an objective by the keys of a configuration's ``task``, without a model on file."""
    files = {"train": "", "validation": "", "test": "", "samples": 0, "validation_samples": 0}
    task = {"seed": -1, "skip_broken": False, **files, **task}
    return objective.load_data({"seed": seed, "model": {"pretrained": ""}, "task": task})


def write_sets(folder, kind):
    """Files of the three sets by name; ``kind`` is "tagging" or "classification"."""
    write, ending = {"tagging": (tagged, "tsv"), "classification": (labelled, "csv")}[kind]
    paths = {}
    for seed, (name, count) in enumerate(SETS.items()):
        paths[name] = str(folder / f"{name}.{ending}")
        (folder / f"{name}.{ending}").write_text(write(count, seed), encoding="utf-8")
    return paths
