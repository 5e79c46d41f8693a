"""The interface of a way of learning, the round that all ways share, and where it runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from collapipe_jax.learning.federated.aggregation import (
    Participation,
    aggregate,
    participant_shares,
)
from collapipe_jax.learning.federated.embedding_rows import (
    UNKNOWN,
    row_factors,
    row_shares,
    rows_held,
    scale_rows,
)
from collapipe_jax.learning.federated.optimizers import (
    Rules,
    Transformations,
    averaged_moments,
    proximal_gradient,
    updated_average,
)
from collapipe_jax.learning.federated.quantisation import (
    Residuals,
    empty_residuals,
    quantised_mean,
)
from collapipe_jax.learning.federated.secure_aggregation import SecureReport, secure_mean
from collapipe_jax.learning.models.adapters import join
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch, ServerParams, SplitModel, join_model
from collapipe_jax.learning.pipeline.mesh import CLUSTER, STAGE, largest_shape

# Where arrays of training lie on several devices, by the names of their leading axes.
#
# Copies of the model and their optimisers lie by cluster or client. Where there are more
# devices, several share the examples of each (data parallelism) and the blocks of its copy.
# Stacked blocks of the one global model lie on all devices (fully sharded data parallelism);
# the rest is on every device. On the mesh of a pipeline the copies' blocks lie by stage as
# well, and so do the examples of a cluster outside of its encoder. An axis that the devices do
# not divide is on all of them.

_DEVICE, _DATA = "device", "data"
"""Axes of the mesh without a pipeline."""
COPY, _BLOCK, EXAMPLE = "copy", "block", "example"
"""Axes of arrays: clusters or clients, stacked encoder blocks, and examples of a copy."""
_RULES: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {COPY: (_DEVICE,), _BLOCK: (_DEVICE, _DATA), EXAMPLE: (_DATA,)},
    {COPY: (CLUSTER,), _BLOCK: (STAGE,), EXAMPLE: (STAGE,)},
)
"""Axes of a mesh by those of arrays, without a pipeline and with one."""
_BY_COPY = {"client_optimizer", "client_variates", "residuals"}
"""Parts of a state with a leading axis of clusters or clients."""
_BY_BLOCK = "encoder"
"""Part of a model with an axis of blocks, after that of the copies."""


def device_mesh(devices: Sequence[Any], copies: int, examples: int) -> Mesh:
    """The largest mesh that the devices fill, of axes ``device`` and ``data``.

    Rows divide the clusters or clients, which hold a copy each, and columns their examples. Of
    equal meshes that with more rows is taken, which has fewer messages.
    """
    shape = largest_shape(copies, examples, len(devices))
    chosen = np.asarray(devices[: math.prod(shape)]).reshape(shape)
    return Mesh(chosen, (_DEVICE, _DATA), axis_types=(AxisType.Auto,) * 2)


def is_on_mesh() -> bool:
    """Whether there is a mesh in use."""
    return not jax.sharding.get_abstract_mesh().empty


def spread(tree: Any, axes: Sequence[str | None] = (COPY,)) -> Any:
    """Lay leaves with these leading axes over the mesh in use, if there is one.

    Blocks of an encoder follow on the last of the axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return tree

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        return _spec(leaf, (*axes, *([_BLOCK] if _BY_BLOCK in _names(path) else [])), mesh.shape)

    return jax.lax.with_sharding_constraint(tree, jax.tree.map_with_path(spec, tree))


def spread_state(state: Any) -> Any:
    """Lay a learner's state over the mesh in use, if there is one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return state
    return jax.lax.with_sharding_constraint(state, _state_specs(state, mesh.shape))


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """The places in which :func:`spread_state` leaves a state."""
    specs = _state_specs(state, mesh.shape)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def _state_specs(state: Any, sizes: Mapping[str, int]) -> Any:
    def spec(path: Any, leaf: Any) -> PartitionSpec:
        names = _names(path)
        return _spec(leaf, [COPY] * bool(_BY_COPY & names) + [_BLOCK] * (_BY_BLOCK in names), sizes)

    return jax.tree.map_with_path(spec, state)


def _names(path: Any) -> set[str]:
    return {str(getattr(step, "name", getattr(step, "key", ""))) for step in path}


def _spec(leaf: Any, axes: Sequence[str | None], sizes: Mapping[str, int]) -> PartitionSpec:
    """Axes of a mesh of these sizes on a leaf's axes, each once and where it divides the leaf."""
    (rule,) = (rule for rule in _RULES if rule[COPY][0] in sizes)
    used: list[str] = []
    names: list[tuple[str, ...] | None] = []
    for length, axis in zip(leaf.shape, axes, strict=False):
        chosen: tuple[str, ...] = ()
        for name in rule.get(axis, ()) if axis else ():
            part = math.prod(sizes[one] for one in (*chosen, name))
            if name not in used and length % part == 0:
                chosen = (*chosen, name)
        used += chosen
        names.append(chosen or None)
    return PartitionSpec(*names)


class ControlVariates(NamedTuple):
    """Control variates; a client that sits out keeps its own."""

    client_variates: Params  # ``c_n``, leaves ``[N, ...]``
    server_variate: Params  # ``c``


def _initial_variates(params: Params, clients: int) -> ControlVariates:
    """Zeros: the first round is that of federated averaging."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    copies = jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params)
    return ControlVariates(copies, zeros)


def _corrected_gradient(gradients: PyTree, variates: ControlVariates | None) -> PyTree:
    """Gradients ``[N, ...]`` of all clients with their corrections."""
    if variates is None:
        return gradients
    return jax.tree.map(lambda g, own, common: g - own + common[None], gradients, *variates)


def _updated_variates(
    variates: ControlVariates | None,
    mean_gradients: PyTree,
    shares: Float[Array, " N"],
    presence: Float[Array, ""],
) -> ControlVariates | None:
    """Control variates after a round.

    ``c`` moves by the weighted mean of the participants' changes times their share of all
    weight: ``|S| / N`` in the paper, whose weights are equal.

    Args:
      variates: before the round.
      mean_gradients: of the local steps, uncorrected, leaves ``[N, ...]``.
      shares: as in ``federated``.
      presence: share of the weight of all clients that participates.
    """
    if variates is None:
        return None

    def updated(new: Array, own: Array) -> Array:
        return jnp.where((shares > 0.0).reshape(-1, *[1] * (new.ndim - 1)), new, own)

    clients = jax.tree.map(updated, mean_gradients, variates.client_variates)
    change = aggregate(jax.tree.map(jnp.subtract, clients, variates.client_variates), shares)
    server = jax.tree.map(lambda c, mean: c + presence * mean, variates.server_variate, change)
    return ControlVariates(clients, server)


class LearningReport(NamedTuple):
    """Report of a round of learning, all ``[]``; NaN without participants."""

    # Training loss in nats a prediction, over all examples of the participants and all local steps,
    # erased or not
    loss: Array
    erased_fraction: Array  # share of these examples that were erased
    # Norm of the gradient over all parameters, the weighted mean over the participants, averaged
    # over the local steps
    gradient_norm: Array
    secure: SecureReport | None = None  # of secure aggregation

    @classmethod
    def filled(cls, rules: Rules, number: Array) -> "LearningReport":
        """A report of these rules whose entries are all the same."""
        secure = None if rules.secure_aggregation is None else SecureReport(*[number] * 3)
        return cls(number, number, number, secure)


class Learner(Protocol):
    """A way of learning: pure functions of a state, an outcome of the network, and a key.

    ``params`` of a state are those of the whole model, ``{"embedding", "encoder", "decoder"}``, and
    ``scored_params`` those that stand for it in scores and on file.
    """

    @property
    def model(self) -> SplitModel:
        """The model that is trained."""
        ...

    @property
    def rules(self) -> Rules:
        """What a federated method adds."""
        ...

    @property
    def copies(self) -> int:
        """Number of clients, each of which trains a copy of its own."""
        ...

    def init(self, params: Params) -> Any:
        """State before the first round, with fresh optimisers."""

    def outcome(self, decision: Any, cost: Any) -> Any:
        """Effect on learning of a round's decision and of its cost."""

    def round(
        self, state: Any, batches: Batch, outcome: Any, key: Array, index: Array | int
    ) -> tuple[Any, LearningReport]:
        """H local steps, aggregation, and the server's step.

        Args:
          state: before the round.
          batches: leaves ``[H, N, B, ...]``.
          outcome: array values; new ones cost no compilation.
          key: random key of the round (dropout and erasures).
          index: number of the round in the run, from 0, an array value. Schedules go by it.
        """
        ...


class LearningState(NamedTuple):
    """State from round to round.

    Parameters are those that are trained (``adapters.split``), but for the base's, which stand
    here once and which no client has a copy of.
    """

    client: Params  # global parameters of which every client trains a copy
    client_optimizer: optax.OptState  # state of every client's own optimiser, leaves ``[N, ...]``
    # That of the edge server, with blocks where it holds some; None where every client has its own
    decoder: ServerParams | None
    decoder_optimizer: optax.OptState | None  # state of the decoder's optimiser
    server_optimizer: optax.OptState  # state of the server's optimiser
    base: Params  # frozen parameters of embedding and encoder; without leaves where there are none
    variates: ControlVariates | None = None  # of SCAFFOLD
    average: Params | None = None  # of ``trained`` over the rounds, see ``Rules.server_average``
    residuals: Residuals | None = None  # of quantised updates

    @property
    def trained(self) -> Params:
        """Parameters that are trained, those of the edge server included."""
        return self.client if self.decoder is None else join_model(self.client, self.decoder)

    @property
    def params(self) -> Params:
        """Parameters of the whole model."""
        return join(self.trained, self.base)

    @property
    def scored_params(self) -> Params:
        """Parameters to score and to export: the average, where there is one."""
        return self.params if self.average is None else join(self.average, self.base)


class Method(NamedTuple):
    """How a round is computed."""

    optimizers: Transformations  # of every copy, of the one decoder, and of the server
    rules: Rules  # what else clients and server do


class StepGradients(NamedTuple):
    """Gradients of a local step."""

    clients: Params  # of every client's copy, leaves ``[N, ...]``
    # Of the one decoder, weighted mean over the participants; of every cluster, ``[N, ...]``, where
    # ``Rules.cluster_privacy`` clips them; None without it
    decoder: ServerParams | None
    loss_sum: Array  # ``[N]``, without erasure weights
    token_count: Array  # ``[N]``, of erased examples too
    erased_fraction: Array  # share of the participants' examples that were erased


def initial_state(
    client: Params,
    decoder: ServerParams | None,
    base: Params,
    method: Method,
    clients: int,
) -> LearningState:
    """State before the first round, with fresh optimisers."""
    optimizers, rules = method.optimizers, method.rules
    state = LearningState(
        client=client,
        client_optimizer=_fresh_moments(optimizers, client, clients),
        decoder=decoder,
        decoder_optimizer=None if decoder is None else optimizers.decoder.init(decoder),
        server_optimizer=optimizers.server.init(client),
        base=base,
        variates=_initial_variates(client, clients) if rules.control_variates else None,
        residuals=empty_residuals(rules.update_quantiser, client, clients),
    )
    if rules.server_average is None:
        return state
    # Arrays of its own: a round may give up those of the parameters.
    return state._replace(average=jax.tree.map(jnp.copy, state.trained))


def _fresh_moments(optimizers: Transformations, client: Params, clients: int) -> optax.OptState:
    return jax.vmap(optimizers.client.init, None, axis_size=clients)(client)


_GradientsOf = Callable[[Params, Any, Params, Batch, Array], StepGradients]
"""Gradients of a step from the clients' copies, the decoder, the base, a batch, and a key."""


def learn_round(
    gradients_of: _GradientsOf,
    state: LearningState,
    participation: Participation,
    method: Method,
    batches: Batch,
    key: Key[Array, ""],
    index: Int[Array, ""] | int,
) -> tuple[LearningState, LearningReport]:
    """One round; without a share, a client contributes nothing and keeps its own state.

    A round whose secure aggregation fails changes nothing but the average over rounds. With
    ``Rules.cluster_privacy`` the server steps in every round, even without participants: a missing
    step would tell.

    The server's step is on the pseudo-gradient "before less mean" (Reddi et al. 2003.00295);
    ``optax.sgd(1.0)`` is plain averaging.

    Args:
      gradients_of: of all clients.
      state: before the round.
      participation: who takes part.
      method: how.
      batches: as in ``federated``.
      key, index: as in ``Learner``.
    """
    optimizers, rules = method
    shares, privacy = participation.shares, rules.cluster_privacy
    anyone = (shares > 0.0).any()
    local, gradient_sum, report = _local_steps(
        gradients_of, state, participation, method, batches, key, index
    )
    (copies, moments), (decoder, decoder_optimizer) = local
    steps = jax.tree.leaves(batches)[0].shape[0]
    # Numbers up to that of the steps make the keys of steps and of the round's erasures.
    server_key = jax.random.fold_in(key, steps + 1)
    step, residuals, secure = _server_step(rules, state, copies, participation, server_key)
    before = state.client, state.server_optimizer
    counts = anyone if privacy is None else True  # a noisy step does not tell who was there
    client, server_optimizer = apply_gradient(optimizers.server, step, before, index, counts)
    if rules.client_moments == "average":
        moments = averaged_moments(moments, shares, anyone)
    elif rules.client_moments == "reset":
        moments = _fresh_moments(optimizers, state.client, shares.size)
    after = LearningState(client, moments, decoder, decoder_optimizer, server_optimizer, state.base)
    mean = jax.tree.map(lambda leaf: leaf / steps, gradient_sum)
    after = after._replace(
        variates=_updated_variates(state.variates, mean, shares, participation.presence),
        average=state.average,
        residuals=residuals,
    )
    if secure is not None:
        after = optax.tree.where(secure.failed > 0.0, state, after)
        secure = jax.tree.map(lambda number: jnp.where(anyone, number, jnp.nan), secure)
        report = report._replace(secure=secure)
    average = updated_average(state.average, after.trained, rules.server_average, index)
    return after._replace(average=average), report


def _local_steps(
    gradients_of: _GradientsOf,
    state: LearningState,
    participation: Participation,
    method: Method,
    batches: Batch,
    key: Array,
    index: Array | int,
) -> tuple[tuple, Params | None, LearningReport]:
    """The local steps of a round.

    Returns:
      ``((copies, their optimisers' states), (decoder, its optimiser's state))``; the sum of every
      copy's gradients, None without control variates; and the report.
    """
    optimizers, rules = method
    shares, privacy = participation.shares, rules.cluster_privacy
    participates = shares > 0.0
    anyone, count = participates.any(), shares.size

    def step(carry: tuple, inputs: tuple[Batch, Array, Array]) -> tuple[tuple, tuple]:
        (client, server), gradient_sum = carry
        (copies, _), (decoder, _), (batch, step_key, number) = client, server, inputs
        found = gradients_of(copies, decoder, state.base, batch, step_key)
        found = found._replace(clients=spread(found.clients))
        # Clients: the gradient with its corrections, each by its optimiser.
        descended = proximal_gradient(found.clients, copies, state.client, rules.proximal_weight)
        descended = _corrected_gradient(descended, state.variates)
        descended = rows_held(rules, descended, participation.met, 0.0)
        client_step = partial(apply_gradient, optimizers.client)
        client = jax.vmap(client_step, in_axes=(0, 0, None, 0))(
            descended, client, number, participates
        )
        # The server steps its decoder, on the gradient of all clusters.
        if found.decoder is not None:
            counts = anyone
            if privacy is not None:
                released = found.decoder, participation.fixed_shares, step_key
                found, counts = found._replace(decoder=privacy.decoder_gradient(*released)), True
            server = apply_gradient(optimizers.decoder, found.decoder, server, number, counts)
        if gradient_sum is not None:
            gradient_sum = jax.tree.map(jnp.add, gradient_sum, found.clients)
        # Sums for the report.
        gradient = aggregate(found.clients, shares), found.decoder
        sums = (
            jnp.where(participates, found.loss_sum, 0.0).sum(),
            jnp.where(participates, found.token_count, 0.0).sum(),
            found.erased_fraction,
            jnp.sqrt(optax.tree.vdot(gradient, gradient)),
        )
        return ((client, server), gradient_sum), sums

    # All clients start from the global parameters.
    copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), state.client)
    copies = spread(rows_held(rules, copies, participation.met, UNKNOWN))
    local = (copies, state.client_optimizer), (state.decoder, state.decoder_optimizer)
    gradient_sum = None if state.variates is None else jax.tree.map(jnp.zeros_like, copies)
    steps = jax.tree.leaves(batches)[0].shape[0]
    inputs = batches, jax.random.split(key, steps), index * steps + jnp.arange(steps)
    (local, gradient_sum), sums = jax.lax.scan(step, (local, gradient_sum), inputs)
    loss_sum, token_count, erased, norm = sums
    report = LearningReport(loss_sum.sum() / token_count.sum(), erased.mean(), norm.mean())
    report = jax.tree.map(lambda number: jnp.where(anyone, number, jnp.nan), report)
    (copies, moments), server = local
    copies = rows_held(rules, copies, participation.met, state.client)
    return ((copies, moments), server), gradient_sum, report


def apply_gradient(
    optimizer: optax.GradientTransformation,
    gradient: PyTree[Float[Array, "..."]],
    held: tuple[PyTree[Float[Array, "..."]], optax.OptState],
    number: Int[Array, ""] | int,
    counts: Bool[Array, ""] | bool = True,
) -> tuple[PyTree[Float[Array, "..."]], optax.OptState]:
    """Parameters and optimiser's state after step ``number``, or as held if it does not count."""
    params, state = held
    update = optax.with_extra_args_support(optimizer).update
    updates, stepped = update(gradient, state, params, step=number)
    return optax.tree.where(counts, (optax.apply_updates(params, updates), stepped), held)


def _server_step(
    rules: Rules, state: LearningState, copies: Params, clients: Participation, key: Key[Array, ""]
) -> tuple[Params, Residuals | None, SecureReport | None]:
    """The server's gradient, residuals of quantised updates, and what secure aggregation did.

    Rows of tables are averaged over the clients that read them. Parameters that clients of split
    models do not send are the server's own, which averages them in the clear.

    Args:
      rules: of the clients.
      state: before the round.
      copies: of the clients after it, leaves ``[N, ...]``.
      clients: who takes part.
      key: of secure aggregation, of rounding, or of noise.
    """
    before, residuals = state.client, state.residuals
    shares, met, sent = clients.shares, clients.met, clients.sent
    # The mean of the copies, in the clear, rounded, or from masked updates.
    by_reader = {} if rules.embedding_rate_factor is None else met
    report, by_row = None, {table: row_shares(rows, shares) for table, rows in by_reader.items()}
    if (quantiser := rules.update_quantiser) is not None:
        updates = jax.tree.map(lambda own, start: own - start[None], copies, before)
        update, residuals = quantised_mean(quantiser, residuals, updates, clients, key)
        step = jax.tree.map(jnp.negative, update)
    elif rules.secure_aggregation is None:
        if rules.cluster_privacy is None:
            step = jax.tree.map(jnp.subtract, before, aggregate(copies, shares))
        else:
            step = rules.cluster_privacy.step(before, copies, clients.fixed_shares, key)
    else:
        updates = jax.tree.map(lambda own, start: own - start[None], copies, before)
        masked = updates
        if sent is not None:
            masked = jax.tree.map(
                lambda is_sent, own: jnp.where(is_sent[None], own, 0.0), sent, updates
            )
        found = secure_mean(rules.secure_aggregation, masked, shares, met, key)
        update, by_row, report = found.update, found.row_shares, found.report
        shares = participant_shares(shares, found.arrived)
        if sent is not None:
            update = jax.tree.map(jnp.where, sent, update, aggregate(updates, shares))
        step = jax.tree.map(jnp.negative, update)
    # Rows of rare tokens are averaged over their readers alone.
    for table, share in by_row.items():
        factors = row_factors(share, (shares > 0.0).sum(), rules.embedding_rate_factor)
        step = scale_rows(step, table, factors)
    return step, residuals, report
