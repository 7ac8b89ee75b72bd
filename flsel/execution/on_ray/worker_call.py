"""One call to the workers of a run: parts go out, answers come back, and workers that die are replaced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from flsel.errors import UserError, short
from flsel.execution.on_ray.shared_tensors import as_tensors
from flsel.execution.on_ray.visit_parts import Part
from flsel.execution.on_ray.worker import Answer
from flsel.params import Params

# Workers that may die over the same visits before it is the visits' fault.
_ATTEMPTS = 3
# Seconds without any worker, after which is said what is waited for.
_PATIENCE = 60.0


class ActorPool(Protocol):
    """The actors that calls share.

    Attributes:
        ready: Those that have started.
        starting: Those on their way, by the answer that tells when they are there.
    """

    ready: list[Any]
    starting: dict[Any, Any]

    def start(self) -> None:
        """Begin to start one more."""

    def say(self, said: Sequence[tuple[int, str, bool]]) -> None:
        """Log what an actor would have said."""

    def say_waiting(self) -> None:
        """Say that there is no room for any actor yet."""


class Call:
    """Parts on their way to actors and back.

    Args:
        workers: The actors.
        most: Most of them at work.
        ask: Asks an actor for a part.
    """

    def __init__(self, workers: ActorPool, most: int, ask: Callable[[Any, Part], Any]) -> None:
        self._workers, self._most, self._ask = workers, most, ask
        self._free = deque(workers.ready)
        self._alive = set[Any]()  # those that answered within this call
        self._running: dict[Any, tuple[Any, Part, int]] = {}
        self._failed_starts = 0

    def run(self, parts: Sequence[Part]) -> Iterator[tuple[Part, Params]]:
        """Yield answers to all parts, as they come."""
        import ray

        waiting = deque((part, 0) for part in parts)
        while waiting or self._running:
            while waiting and self._free and len(self._running) < self._most:
                (part, deaths), actor = waiting.popleft(), self._free.popleft()
                self._running[self._ask(actor, part)] = (actor, part, deaths)
            # A worker of the cluster may have no room for long; those that are there go on meanwhile.
            starting = self._workers.starting if waiting else {}
            patience = None if self._running else _PATIENCE
            done, _ = ray.wait([*self._running, *starting], timeout=patience)
            if not done:
                self._workers.say_waiting()
            elif done[0] in self._running:
                actor, part, deaths = self._running.pop(done[0])
                answered = _result(done[0])
                if answered is None:
                    # One that died before this call did not die of the part.
                    deaths += actor in self._alive
                    _check_attempts(part, deaths)
                    self._workers.ready.remove(actor)
                    self._workers.start()
                    waiting.appendleft((part, deaths))
                    continue
                self._there(actor)
                self._workers.say(answered.said)
                if answered.error is not None:
                    raise answered.error
                yield part, as_tensors(answered.values)
            else:
                self._begun(self._workers.starting.pop(done[0]), done[0])

    def _begun(self, actor: Any, ping: Any) -> None:
        """Take an actor that has started, or start another if it died over that."""
        import ray

        try:
            ray.get(ping)
        except ray.exceptions.RayActorError as error:
            self._failed_starts += 1
            if self._failed_starts >= _ATTEMPTS:
                said = short(error).rstrip(".")
                raise UserError(
                    f"local.workers: {_ATTEMPTS} processes ended as they started: {said}."
                ) from None
            self._workers.start()
            return
        self._workers.ready.append(actor)
        self._there(actor)

    def _there(self, actor: Any) -> None:
        self._alive.add(actor)
        self._free.append(actor)


def _result(done: Any) -> Answer | None:
    """Return an answer; None if the worker died."""
    import ray

    try:
        answered: Answer = ray.get(done)
        return answered
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
        return None
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise UserError(f"Ray failed between local.workers: {short(error).rstrip('.')}.") from error


def _check_attempts(part: Part, deaths: int) -> None:
    if deaths >= _ATTEMPTS:
        clients = ", ".join(str(client) for client, *_ in part.asked)
        raise UserError(
            f"{_ATTEMPTS} workers ended over clients {clients}; if memory ran out, lower local.workers or "
            "local.batch_size."
        )
