"""A Flower strategy for a user's Flower app: a selector chooses clients and weighs their updates."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from flsel.arguments import Checked, Range, shown
from flsel.errors import UserError, users_code
from flsel.flower.adapter import (
    ArrayRecord,
    ConfigRecord,
    FedAvg,
    Grid,
    GridChannel,
    Message,
    MetricRecord,
    PatientGrid,
    RecordDict,
    Result,
    Strategy,
    from_array_record,
    message,
    reply,
    to_array_record,
)
from flsel.flower.aggregation import MakeOptimizer
from flsel.flower.decoder import Malformed
from flsel.flower.evaluations import well_formed
from flsel.flower.members import Members
from flsel.flower.records import CONFIG, MODEL
from flsel.flower.remote_model import Holdout
from flsel.flower.round_parts import RoundSummary, Rules
from flsel.flower.selection import Selection
from flsel.flower.wire import Reply, Request
from flsel.rng import generator
from flsel.selector import Need, Selector

_LOG = logging.getLogger("flsel")
Measured = Callable[[ArrayRecord], float]
Outputs = Callable[[ArrayRecord], Sequence[float]]
Aggregation = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(eq=False)
class SelectorStrategy(Checked, Strategy):
    """Let a selector choose the clients of a Flower app, and weigh their updates.

    The ClientApp keeps its own training, which gets what Flower's FedAvg sends: a model ``arrays`` and a
    ``config`` with ``server-round``. :func:`flsel.flower.answer` lets it answer the selector's questions.
    One round of Flower is one communication round; a plan that chains H clients takes H of them, and the
    global model changes with the last.

    Attributes:
        selector: The selector.
        clients: Clients of the federation (N).
        clients_per_round: Most clients per round that are aggregated (K).
        min_clients: Clients that must have come before the first round; others may come later, up to
            ``clients`` of them. None waits for all, as selectors that need label counts must.
        seed: Seed of the selector's draws.
        timeout: Seconds that a client has for an answer; then its update is lost.
        wait: Seconds to wait for the clients before the first round, and for any client later.
        fraction_evaluate: Share of the available clients that evaluate the model after each round.
        num_classes: Classes (C); None takes the rows of the output layer.
        output_layer: Names of the output layer's weight ``[C, L]`` and bias, None without one; by default
            the last array with several dimensions, and the one after it.
        server_loss: Returns a model's loss on examples that the server holds, for selectors that ask.
        noise_outputs: Returns a model's mean outputs on noise, C numbers, for selectors that ask.
        optimizer: Makes a torch optimizer of the global model, which sees minus the weighted update as its
            gradient; by default the update is added.
        weighted_by_key: Metric that has a client's number of examples: weighs evaluations, and sizes clients
            whose app does not call :func:`flsel.flower.answer`.
        arrayrecord_key: Name of the model in the messages of trainings and evaluations.
        configrecord_key: Name of the settings in these messages.
        train_metrics_aggr_fn: Makes the metrics of a round of the aggregated clients' answers, as for
            Flower's FedAvg; by default they are averaged by the selector's weights.
        evaluate_metrics_aggr_fn: The same of the evaluations; by default FedAvg's mean.
        rounds: Communication rounds of the whole run, where something else than :meth:`start` runs them.
        history: What each round did, without its model.

    Raises:
        UserError: If an argument is out of range, or the selector asks a question that no client can answer.
    """

    selector: Selector
    _: KW_ONLY
    clients: Annotated[int, Range(1)]
    clients_per_round: Annotated[int, Range(1)]
    min_clients: Annotated[int | None, Range(1)] = None
    seed: Annotated[int, Range(0)] = 0
    timeout: Annotated[float, Range(above=0)] = 600.0
    wait: Annotated[float, Range(0)] = 300.0
    fraction_evaluate: Annotated[float, Range(0, 1)] = 1.0
    num_classes: Annotated[int | None, Range(1)] = None
    output_layer: tuple[str, str | None] | None = None
    server_loss: Measured | None = None
    noise_outputs: Outputs | None = None
    optimizer: MakeOptimizer | None = None
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = MODEL
    configrecord_key: str = CONFIG
    train_metrics_aggr_fn: Aggregation | None = None
    evaluate_metrics_aggr_fn: Aggregation | None = None
    rounds: Annotated[int | None, Range(1)] = None
    history: list[RoundSummary] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.selector, Selector):
            raise UserError(f"selector must be a selector, such as PowD(), got {shown(self.selector)}.")
        if self.clients_per_round > self.clients:
            raise UserError(
                f"clients_per_round must be at most clients ({self.clients}), got {self.clients_per_round}."
            )
        least = self.clients if self.min_clients is None else self.min_clients
        if least > self.clients:
            raise UserError(f"min_clients must be at most clients ({self.clients}), got {least}.")
        labels = Need.LABELS in self.selector.needs
        if labels and least < self.clients:
            raise UserError(
                f"min_clients must be clients ({self.clients}) for {type(self.selector).__name__}, which "
                f"reads the label counts of all clients from the first round on, got {least}."
            )
        members = Members(self.clients, labels=labels, timeout=self.timeout, wait=self.wait, least=least)
        holdout = Holdout(_on_arrays(self.server_loss), _on_arrays(self.noise_outputs))
        rules = Rules(
            self.clients_per_round, self.seed, self.timeout, self.num_classes, self.output_layer, holdout,
            self.optimizer, self.weighted_by_key,
        )  # fmt: skip
        self._selection = Selection(self.selector, members, rules)
        self._names = (self.arrayrecord_key, self.configrecord_key)
        self._sent: list[tuple[int, Message]] = []
        self._evaluated: dict[str, Message] = {}
        self._grid: PatientGrid | None = None
        self._evaluation = FedAvg(
            weighted_by_key=self.weighted_by_key, evaluate_metrics_aggr_fn=self.evaluate_metrics_aggr_fn
        )

    @property
    def round(self) -> int:
        """Communication rounds that are over, without those of a chain that is on its way."""
        return self._selection.completed

    @property
    def ledger(self) -> Mapping[str, float]:
        """What the run cost so far (:class:`flsel.metrics.Cost`)."""
        return self._selection.ledger

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds, as Flower's own strategies do.

        Args:
            grid: The grid of the ServerApp.
            initial_arrays: The model to begin with; after :meth:`load_state_dict` the one that was saved.
            num_rounds: Communication rounds to run.
            timeout: Most seconds to wait for the replies of a round; ``self.timeout`` if that is less.
            train_config: Settings that trainings get.
            evaluate_config: Settings that evaluations get.
            evaluate_fn: Measures the model at the server, before the first round and after each.

        Raises:
            UserError: If the clients cannot take part, or the selector breaks its contract.
            LostError: If no client is connected for ``wait`` seconds.
        """
        self.rounds = self.round + num_rounds
        self._grid = PatientGrid(grid, self.timeout)
        return super().start(
            self._grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the selector, and return the messages of the clients that train."""
        if self.rounds is None:
            raise UserError("rounds must be given to SelectorStrategy, unless its start runs the rounds.")
        selection = self._selection
        settings = {**config, "server-round": selection.round + 1}
        if selection.chained:
            trainings = selection.trainings()
        else:
            try:
                model = from_array_record(arrays)
            except Malformed as error:
                raise UserError(f"initial_arrays must be a model: {error}") from None
            trainings = selection.open(GridChannel(grid, self._names), model, self.rounds, settings)
        nodes = selection.members.nodes
        self._sent = [
            (t.client, self._message(Request(nodes[t.client], "train", {MODEL: t.arrays}, settings)))
            for t in trainings
        ]
        return [sent for _, sent in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weigh and aggregate what came back, and let the selector learn; no arrays if no client answered."""
        got = {found.metadata.reply_to_message_id: found for found in replies}
        outcome = self._selection.returned([self._read(message, got) for _, message in self._sent])
        sent, self._sent = self._sent, []
        if outcome is None:
            return None, None
        self.history.append(replace(outcome, arrays=None))  # A model for each round would fill the memory.
        if outcome.arrays is None:
            _LOG.warning(
                "round %d: none of %d clients returned a usable model within %g s, and the model stays",
                server_round, len(outcome.lost) + len(outcome.dropped), self.timeout,
            )  # fmt: skip
        arrays = None if outcome.arrays is None else to_array_record(outcome.arrays)
        own = self._aggregated({c: got.get(m.metadata.message_id) for c, m in sent if c in outcome.clients})
        return arrays, MetricRecord(self._row(outcome, own))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the clients that evaluate: a share of those that are available."""
        if self.fraction_evaluate == 0:
            return []
        members = self._selection.members
        settings, models = {**config, "server-round": server_round}, {MODEL: from_array_record(arrays)}
        free = np.flatnonzero(members.gather(GridChannel(grid), self._selection.round, config).numpy())
        count = max(1, round(self.fraction_evaluate * len(free)))
        asked = generator(self.seed, "evaluate", server_round).permutation(free)[:count]
        self._evaluated = {
            members.names[client]: self._message(Request(members.nodes[client], "evaluate", models, settings))
            for client in sorted(asked.tolist())
        }
        return list(self._evaluated.values())

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics by ``num-examples``, as FedAvg does, without malformed answers."""
        asked = {sent.metadata.message_id: name for name, sent in self._evaluated.items()}
        got = {
            asked[r.metadata.reply_to_message_id]: r
            for r in replies
            if r.metadata.reply_to_message_id in asked
        }
        found = well_formed(got, self._evaluation.weighted_by_key)
        return self._evaluation.aggregate_evaluate(server_round, found)

    def summary(self) -> None:
        """Log which selector chooses."""
        _LOG.info("%r chooses %d of %d clients", self.selector, self.clients_per_round, self.clients)

    def state_dict(self) -> dict[str, Any]:
        """Return what survives a round: tensors and plain values, for ``torch.save``.

        Save it with the arrays, in ``evaluate_fn`` for example. In the middle of a chain it is the state
        before the chain, which a resumed run begins again.
        """
        return self._selection.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, before :meth:`start`."""
        self._selection.load_state_dict(state)

    def _read(self, sent: Message, got: Mapping[str, Message]) -> Reply:
        """Return the answer to a message, with the seconds that it took."""
        name = sent.metadata.message_id
        found: Message | Exception | None = got.get(name)
        if self._grid is not None and name in self._grid.unread:
            found = self._grid.unread[name]
        if self._grid is not None and name in self._grid.seconds:
            seconds = self._grid.seconds[name]
        elif isinstance(found, Message):
            # Another loop than start ran the round: the clocks of server and node tell, as far as they agree.
            took = found.metadata.created_at - sent.metadata.created_at
            seconds = min(max(took, 0.0), self.timeout) if math.isfinite(took) else self.timeout
        else:
            seconds = self.timeout
        return reply(found, seconds, self.timeout)

    def _message(self, request: Request) -> Message:
        return message(request, self.timeout, self._names)

    def _aggregated(self, replies: Mapping[int, Message | None]) -> Mapping[str, Any] | None:
        """Return what the user's function makes of a round's answers; None without one."""
        if self.train_metrics_aggr_fn is None:
            return None
        names = self._selection.members.names
        found = well_formed({names[c]: r for c, r in replies.items() if r is not None}, self.weighted_by_key)
        with users_code("train_metrics_aggr_fn failed"):
            return dict(self.train_metrics_aggr_fn([one.content for one in found], self.weighted_by_key))

    def _row(self, outcome: RoundSummary, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the log entry of a round: clients aggregated, clients lost, and its cost."""
        return {
            **(outcome.metrics if own is None else own),
            "clients": sorted(outcome.clients),
            "weights": [outcome.clients[client] for client in sorted(outcome.clients)],
            "lost": outcome.lost,
            "dropped": outcome.dropped,
            "seconds": outcome.seconds,
            **{f"ledger/{name}": value for name, value in self.ledger.items()},
        }


def _on_arrays(
    measure: Callable[[ArrayRecord], Any] | None,
) -> Callable[[Mapping[str, np.ndarray]], Any] | None:
    """Return a user's function of Flower's arrays as one of arrays by name."""
    return None if measure is None else lambda arrays: measure(to_array_record(arrays))
