"""Plan for machines with wired links: ``collapipe plan --cluster``."""

import argparse

import numpy as np
from rich.console import RenderableType

from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import (
    InputError,
    ValidValues,
    collect,
    rename_error_keys,
    require_positive,
)
from collapipe_jax.edge.wired import (
    Machines,
    PipelineWork,
    Placement,
    best_placement,
    data_parallel_step_s,
)
from collapipe_jax.learning.models.config import BertConfig, CausalConfig
from collapipe_jax.learning.models.published import read_published_sizes
from collapipe_jax.runs.machines import inference_work, read_machines, training_work

_WIDTH = 100


def plan_machines(options: argparse.Namespace) -> None:
    """Place a published model on machines with wired links, and print the plan."""
    machines, sizes = _read_options(options)
    if options.inference:
        assert isinstance(sizes, CausalConfig)
        work = inference_work(sizes, options.tokens, options.batch)
    else:
        work = training_work(sizes, options.tokens, options.batch, options.lora)
    placement = best_placement(machines, work)
    if placement is None:
        problem = "no pipeline of its machines and links has room for the model"
        remedy = "Lower --batch or --tokens, train adapters by --lora=8, or add memory or links"
        raise InputError("--cluster", options.cluster, problem, remedy)
    console = console_for_tables(_WIDTH)
    tokens = options.batch * (options.tokens if work.trains else 1)
    console.print(
        *_describe_placement(machines, work, placement, tokens), sep="\n", highlight=False
    )


def _read_options(options: argparse.Namespace) -> tuple[Machines, BertConfig | CausalConfig]:
    """Machines, and sizes of the model.

    Raises:
      InputError: naming all that is wrong.
    """
    right, readers = ValidValues(), {"cluster": read_machines, "model": read_published_sizes}
    with collect() as step:
        for (name, read), other in zip(readers.items(), ("model", "cluster"), strict=True):
            with step(), rename_error_keys({"file": f"--{name}"}):
                if not getattr(options, name):
                    raise InputError(
                        f"--{name}", "", f"is missing beside --{other}", "Give it, too"
                    )
                right[name] = read(getattr(options, name))
        for name in ("batch", "tokens"):
            with step():
                require_positive(**{name: getattr(options, name)})
        with step():
            if options.lora < 0:
                raise InputError("--lora", options.lora, "no rank", "Give 0 or more")
            if options.lora and options.inference:
                problem, remedy = "--inference trains nothing", "Leave one of them out"
                raise InputError("--lora", options.lora, problem, remedy)
        with step():
            if options.inference and not isinstance(right["model"], CausalConfig):
                remedy = "Leave it out, or take a Llama or a Qwen"
                raise InputError("--inference", True, "this model writes no texts", remedy)
        with step():
            if options.tokens > (most := right["model"].positions):
                problem = f"the model reads at most {most} tokens"
                raise InputError("--tokens", options.tokens, problem, f"Give {most} or less")
    return right["cluster"], right["model"]


def _describe_placement(
    machines: Machines, work: PipelineWork, placement: Placement, tokens: float
) -> tuple[RenderableType, ...]:
    """Who runs which blocks, and what the step of so many ``tokens`` takes and waits for."""
    rows, first, names = [], 0, machines.names
    stages = zip(placement.machines, placement.blocks, strict=True)
    for place, (machine, blocks) in enumerate(stages):
        end = ("embedding, " if place == 0 else "") + f"blocks {first} to {first + blocks - 1}"
        end += ", head" if place == len(placement.machines) - 1 else ""
        link_s = placement.link_s[place] if place < len(placement.link_s) else None
        rows.append(
            (
                names[machine],
                end,
                f"{1e3 * placement.stage_s[place]:.3g}",
                "-" if link_s is None else f"{1e3 * link_s:.3g}",
                f"{placement.stage_bytes[place] / 1e9:.2f}",
                f"{machines.memory_bytes[machine] / 1e9:.3g}",
            )
        )
        first += blocks
    headings = ("machine", "runs", "ms", "ms to the next", "GB", "of GB")
    size = work.batch // placement.micro_batches
    title = f"micro-batches: {placement.micro_batches}, of {size} texts"
    slowest = max((*placement.stage_s, *placement.link_s))
    if slowest in placement.stage_s:
        limit = f"machine {names[placement.machines[placement.stage_s.index(slowest)]]}"
    else:
        place = placement.link_s.index(slowest)
        limit = "the link " + " - ".join(names[m] for m in placement.machines[place : place + 2])
    share = placement.micro_batches * slowest / placement.step_s
    what = "step" if work.trains else "token of every request"
    lines = [
        make_table(headings, rows, left=2, title=title),
        f"{what}: {placement.step_s:.4g} s, {tokens / placement.step_s:.4g} tokens/s",
        f"slowest: {limit}, at work {100 * min(share, 1.0):.0f} % of the time",
    ]
    idle = [name for m, name in enumerate(names) if m not in placement.machines]
    if idle:
        lines.append(f"not used: {', '.join(idle)}")
    if not work.trains and np.isinf(machines.read_bytes_per_s).any():
        lines.append("without memory_gb_s of each machine the time to read weights is left out")
    if work.trains:
        whole_s = data_parallel_step_s(machines, work)
        words = "no machine holds the whole model, or no ring of links joins some"
        if whole_s is not None:
            words = f"step {whole_s:.4g} s, {tokens / whole_s:.4g} tokens/s"
        lines.append(f"data parallelism instead: {words}")
    return tuple(lines)
