"""The simulated clock: what a client's work takes, and how the seconds of a run add up.

All numbers follow from the table of devices and from what the ledger is charged; no wall time enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flsel.config.simulated_time import TimeConfig
from flsel.devices import Table
from flsel.errors import UserError
from flsel.local.completeness import ClientWork
from flsel.local.schedule import BatchSpec
from flsel.metrics import NOTHING, Cost
from flsel.rng import generator

SCALAR = 8  # Bytes of a number that is sent to the server.
_ROUNDS, _CLIENTS = 16, 64  # Rounds and clients whose jitter comes from one generator.
_BLOCKS = 256  # Most of these blocks that are kept, 16 KiB each.


@dataclass(frozen=True, eq=False)
class Clock:
    """Compute the simulated seconds of a client's requests on its device.

    Attributes:
        table: The clients' devices.
        rules: What a round waits for.
        seed: The run's seed.
        sizes: Training examples of each client, int64 ``[N]``.
        trained: Examples in the batches of one local training of each client, int64 ``[N]``.
        frozen: Models besides its own that a local step runs forward.
        messages: Model-sized messages that go each way at a training.
        model: Bytes of a model.
        beside: What else is sent at a training.
        batches: The batches of a training.
        work: How much of them a client does, if that changes from training to training.
        update: Bytes of a client's update; None stands for ``model``.
    """

    table: Table
    rules: TimeConfig
    seed: int
    sizes: np.ndarray
    trained: np.ndarray
    frozen: int
    messages: int
    model: int
    beside: Cost = NOTHING
    batches: BatchSpec | None = None
    work: ClientWork | None = None
    update: int | None = None
    _blocks: dict[tuple[int, int], _Block] = field(default_factory=dict, init=False, repr=False)

    def training(
        self, clients: Sequence[int] | np.ndarray, turns: int | Sequence[int] | None = None
    ) -> np.ndarray:
        """Return the forward passes of examples that a local training is worth, float64 ``[n]``.

        Args:
            clients: Ids of n clients.
            turns: What their work depends on besides, one for all or for each; None takes whole trainings.
        """
        examples = self.trained[_ids(clients)]
        if self.work is not None and turns is not None:
            who = _ids(clients)
            each = zip(
                who.tolist(), np.broadcast_to(turns, len(who)).tolist(), self.sizes[who].tolist(), strict=True
            )
            examples = np.array([self.work.trained(*training) for training in each])
        passes: np.ndarray = examples * (1.0 + self.rules.backward + self.frozen)
        return passes

    def forward(self, clients: Sequence[int] | np.ndarray, *, backward: bool = False) -> np.ndarray:
        """Return the forward passes of one pass over the clients' data, float64 ``[n]``.

        Args:
            clients: Ids of n clients.
            backward: Whether gradients are computed, too.
        """
        passes: np.ndarray = self.sizes[_ids(clients)] * (1.0 + (self.rules.backward if backward else 0.0))
        return passes

    def seconds(
        self,
        clients: Sequence[int] | np.ndarray,
        passes: np.ndarray,
        *,
        down: np.ndarray | float,
        up: np.ndarray | float,
        round: int | np.ndarray | None,
    ) -> np.ndarray:
        """Return what requests take: delay, download, computing and upload, float64 ``[n]``.

        Args:
            clients: Ids of n clients.
            passes: Forward passes of examples that each computes, ``[n]``.
            down: Bytes that each receives.
            up: Bytes that each sends.
            round: Communication round, for the jitter, or one for each client; None leaves it out.
        """
        received, computed, returned = self._parts(_ids(clients), passes, down=down, up=up, round=round)
        total: np.ndarray = received + computed + returned
        return total

    @property
    def result(self) -> float:
        """Bytes of the model-sized messages that a client sends after a training."""
        update = self.model if self.update is None else self.update
        return float(update + (self.messages - 1) * self.model)

    def steps_within(
        self, client: int, seconds: float, request: Mapping[str, Any], turn: int | None = None
    ) -> int:
        """Return the local steps of a training that fit into some seconds of its request.

        Args:
            client: Client id.
            seconds: From the request to the arrival of the client's message.
            request: ``passes`` and the other arguments of :meth:`seconds` for the training.
            turn: What the client's work depends on besides; None takes a whole training.
        """
        assert self.batches is not None
        who = np.array([client])
        received, computed, returned = (float(part[0]) for part in self._parts(who, **request))
        own = float(self.training(who, turn)[0])
        if own == 0:
            return 0
        # What the client computes besides comes first.
        training = computed * own / float(request["passes"][0])
        left = seconds - received - returned - (computed - training)
        examples = int(self.sizes[client])
        steps = self.batches.num_steps(examples)
        if self.work is not None and turn is not None:
            steps = self.work.steps(client, turn, examples)
        return self.batches.steps_within(max(left, 0.0) / training, steps, examples)

    def train(self, clients: Sequence[int], rounds: Iterable[int]) -> list[float]:
        """Return what local trainings take that receive and send whole models, one number each.

        Args:
            clients: Ids of n clients.
            rounds: Communication round of each training, for the jitter.
        """
        # The few clients of a round are looked up faster one by one than by an array of their ids.
        if self._still:
            return list(map(self._profiles.item, clients))
        blocks, took = self._blocks, []
        for client, round in zip(clients, rounds, strict=False):
            at = round // _ROUNDS, client // _CLIENTS
            block = blocks.get(at) or self._block(*at)
            took.append(block.trainings.item(round % _ROUNDS, client % _CLIENTS))
        return took

    @cached_property
    def _profiles(self) -> np.ndarray:
        return self.profile(np.arange(len(self.sizes)))

    @cached_property
    def _still(self) -> bool:
        return not any(np.asarray(jitter).any() for jitter in self._jitters)

    @property
    def _jitters(self) -> tuple[np.ndarray | float, ...]:
        return self.table.down_jitter, self.table.jitter, self.table.up_jitter

    def profile(self, clients: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return what a local training takes by the table, without jitter, float64 ``[n]``."""
        parts = self.parts(clients)
        total: np.ndarray = parts[:, 0] + parts[:, 1] + parts[:, 2]
        return total

    def parts(self, clients: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the parts of :meth:`profile`: delay and download, computing, upload, float64 ``[n, 3]``."""
        who = _ids(clients)
        return np.stack(self._parts(who, **self._request(who)), axis=1)

    def _request(self, clients: np.ndarray) -> dict[str, Any]:
        """Return local trainings as :meth:`seconds` takes them, without jitter."""
        down, up = self.messages * self.model + self.beside.bytes_down, self.result + sent(self.beside)
        return {"passes": self.training(clients), "down": down, "up": up, "round": None}

    def check_deadline(self) -> None:
        """Refuse a deadline that no client meets with a whole training.

        Raises:
            UserError: Naming the fastest client's seconds.
        """
        everyone = np.flatnonzero(self.sizes > 0)
        if self.rules.deadline is None or len(everyone) == 0 or self.work is not None:
            return
        seconds = self.profile(everyone)
        fastest = int(seconds.argmin())
        if seconds[fastest] > self.rules.deadline and not self._does_a_step(int(everyone[fastest])):
            raise UserError(
                "time.deadline must be met by at least one client, got "
                f"{self.rules.deadline:g}: the fastest, client {everyone[fastest]}, takes "
                f"{seconds[fastest]:.4g} simulated seconds."
            )

    def _does_a_step(self, client: int) -> bool:
        """Tell whether a client returns partial work by the deadline, without jitter."""
        if self.rules.late != "partial" or self.rules.deadline is None:
            return False
        return self.steps_within(client, self.rules.deadline, self._request(np.array([client]))) > 0

    def _parts(
        self,
        who: np.ndarray,
        passes: np.ndarray,
        *,
        down: np.ndarray | float,
        up: np.ndarray | float,
        round: int | np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        table = self.table
        factors = np.ones((3, len(who))) if round is None else self._factors(who, round)
        received = down / np.asarray(table.down)[who] * factors[0]
        computed = passes * np.asarray(table.seconds)[who] * factors[1]
        returned = up / np.asarray(table.up)[who] * factors[2]
        return np.asarray(table.delay)[who] + received, computed, returned

    def _factors(self, clients: np.ndarray, round: int | np.ndarray) -> np.ndarray:
        """Return the factors on download, computing and upload of requests, float64 ``[3, n]``."""
        if self._still:
            return np.ones((3, len(clients)))
        rounds = np.broadcast_to(round, clients.shape).tolist()
        draws = [divmod(each, _ROUNDS) for each in rounds]
        return np.array(
            [
                self._block(block, client // _CLIENTS).factors[:, row, client % _CLIENTS]
                for (block, row), client in zip(draws, clients.tolist(), strict=True)
            ]
        ).T

    def _block(self, rounds: int, clients: int) -> _Block:
        """Return what depends on the jitter of some rounds' visits to some clients.

        The jitter is a function of seed, round and client alone. A generator for each visit would take
        longer than a small round, so a block of rounds and clients shares one.
        """
        block = self._blocks.get((rounds, clients))
        if block is None:
            # Clients of an asynchronous run are in different rounds of their own.
            if len(self._blocks) == _BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            who = np.arange(clients * _CLIENTS, min((clients + 1) * _CLIENTS, len(self.sizes)))
            down, spread, up = (np.asarray(jitter)[who] for jitter in self._jitters)
            shape = (_ROUNDS, _CLIENTS)
            draws = generator(self.seed, "device", rounds, clients).standard_normal(shape)[:, : len(who)]
            links = generator(self.seed, "links", rounds, clients).standard_normal((2, *shape))
            received, returned = links[:, :, : len(who)]
            # Of a link the mean speed is kept, and time goes by its inverse.
            factors = np.exp(
                [down * (down / 2 - received), spread * (draws - spread / 2), up * (up / 2 - returned)]
            )
            delay, parts = np.asarray(self.table.delay)[who], self.parts(who)
            taken = parts[:, 0] + parts[:, 1] * factors[1] + parts[:, 2] * factors[2]
            block = _Block(factors, taken + (parts[:, 0] - delay) * (factors[0] - 1))
            self._blocks[rounds, clients] = block
        return block


class _Block(NamedTuple):
    """Visits of some rounds to some clients.

    Attributes:
        factors: Factors on the download, the computing and the upload, float64 ``[3, rounds, clients]``.
        trainings: Seconds of a local training that receives and sends whole models, ``[rounds, clients]``.
    """

    factors: np.ndarray
    trainings: np.ndarray


class RoundTime(NamedTuple):
    """Simulated seconds of a step.

    Attributes:
        seconds: All of it.
        questions: Waiting for answers to the selector's questions.
        client_seconds: Sum over clients, including clients that the server did not wait for.
        wasted: Of that what had no effect on the model: late clients, probe trainings, dropped updates.
        late: Clients that were asked and not aggregated, ascending.
    """

    seconds: float
    questions: float
    client_seconds: float
    wasted: float
    late: tuple[int, ...] = ()


class Elapsed:
    """The simulated time of a run so far; a part of the server's state."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.questions = 0.0
        self.wasted = 0.0
        self._measured = (0, 0.0, 0.0)  # Round, seconds and questions at the last evaluation.

    def add(self, time: RoundTime) -> None:
        """Let a step's time pass."""
        self.seconds += time.seconds
        self.questions += time.questions
        self.wasted += time.wasted

    def measure(self, round: int) -> dict[str, float]:
        """Return the columns ``clock/*``; those of a round are means since the last call.

        Args:
            round: Communication rounds completed.
        """
        before, seconds, questions = self._measured
        self._measured = (round, self.seconds, self.questions)
        passed, rounds = self.seconds - seconds, round - before
        return {
            "clock/seconds": self.seconds,
            "clock/round": passed / rounds if rounds else 0.0,
            "clock/questions": (self.questions - questions) / passed if passed else 0.0,
            "clock/wasted_client_seconds": self.wasted,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {
            "seconds": self.seconds,
            "questions": self.questions,
            "wasted": self.wasted,
            "measured": list(self._measured),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.seconds, self.questions, self.wasted = (
            float(state[name]) for name in ("seconds", "questions", "wasted")
        )
        round, seconds, questions = state["measured"]
        self._measured = int(round), float(seconds), float(questions)


def sent(each: Cost) -> float:
    """Return the bytes that one client sends at a request of this cost; numbers go along as float64."""
    return float(each.bytes_up + SCALAR * each.scalars_up)


def _ids(clients: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(clients, dtype=np.int64)
