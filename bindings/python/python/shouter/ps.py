"""A parameter server: actors by name, servers that own shards of parameters, clients that push gradients and pull parameters.

    import numpy, shouter
    from shouter import ps
    group = shouter.init()
    actors = ps.Actors(group, ["server", "trainer"][group.rank])
    plan = ps.Plan(servers=["server"], trainers=["trainer"])
    if actors.name == "server":
        ps.serve(actors, plan)
    else:
        with ps.Client(actors, plan) as client:
            client.set("weights", numpy.zeros((10, 4), numpy.float32), ps.SGD(rate=0.1))
            client.push("weights", numpy.ones((10, 4), numpy.float32))
            weights = client.pull("weights")
    shouter.close()

docs/ps.md says what is promised.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import ArgumentError, ShouterError

if TYPE_CHECKING:
    import numpy

    from ._group import Group

__all__ = [
    "SGD",
    "Actors",
    "Adagrad",
    "Adam",
    "CheckpointError",
    "Client",
    "Message",
    "Momentum",
    "NoMemory",
    "NoMessage",
    "NotSet",
    "Plan",
    "PlanError",
    "ProtocolError",
    "PsError",
    "Receiving",
    "Served",
    "ServerLost",
    "ShutDown",
    "Stale",
    "TrainerLost",
    "UnknownActor",
    "WrongRows",
    "WrongShape",
    "WrongType",
    "serve",
]


class PsError(ShouterError):
    """The base class of the parameter server's errors. A field is None if it does not apply."""

    actor: str | None
    """The actor that it names."""
    parameter: str | None
    """The parameter that it is about."""

    def __init__(
        self,
        text: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        actor: str | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(text, rank=rank, step=step)
        self.actor = actor
        self.parameter = parameter


class PlanError(PsError, ValueError):
    """Names or a plan that cannot be used, or that ranks differ in."""


class UnknownActor(PsError, LookupError):
    """No rank has this name."""


class NotSet(PsError, LookupError):
    """The parameter was never set, or was reset."""


class WrongShape(PsError, ValueError):
    """A tensor of another shape than the parameter's."""


class WrongType(PsError, TypeError):
    """Elements of another type than the parameter's, or of one that parameters cannot have."""


class WrongRows(PsError, IndexError):
    """Row indices that are out of range, or in descending order."""


class Stale(PsError, TimeoutError):
    """Other trainers are too far behind, and did not come before the deadline."""


class NoMemory(PsError, MemoryError):
    """A server finds no memory for what it is given."""


class ServerLost(PsError, ConnectionError):
    """A server is gone, or did not answer."""


class TrainerLost(PsError, ConnectionError):
    """A trainer is gone, and the plan says that the job ends then."""


class CheckpointError(PsError, OSError):
    """A checkpoint that cannot be read or written, or does not fit."""


class ShutDown(PsError):
    """The servers were shut down."""


class NoMessage(PsError, TimeoutError):
    """No message came in time."""


class ProtocolError(PsError, ConnectionError):
    """A message without meaning."""


@dataclasses.dataclass(frozen=True)
class SGD:
    """p -= rate * g"""

    rate: float


@dataclasses.dataclass(frozen=True)
class Momentum:
    """v = momentum * v + g; p -= rate * v"""

    rate: float
    momentum: float = 0.9


@dataclasses.dataclass(frozen=True)
class Adagrad:
    """s += g * g; p -= rate * g / (sqrt(s) + epsilon)"""

    rate: float
    epsilon: float = 1e-10


@dataclasses.dataclass(frozen=True)
class Adam:
    """Kingma and Ba, ICLR 2015."""

    rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


Optimizer = SGD | Momentum | Adagrad | Adam


@dataclasses.dataclass(frozen=True)
class Plan:
    """Who serves, who trains, and how: the same on all actors."""

    servers: Sequence[str]
    trainers: Sequence[str]
    mode: str | int = "synchronous"
    """synchronous, asynchronous, or the number of pushes that a trainer may be ahead of the slowest one."""
    sharding: str = "contiguous"
    """Which server has which rows: contiguous or hashed."""
    average: bool = True
    """Whether a synchronous update takes the average of the gradients rather than their sum."""
    lost: str = "end"
    """Whether the job ends with a trainer that dies, or it is dropped: end or drop."""
    deadline: float = 60.0
    """How long a call may wait, in seconds."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A message of an actor."""

    source: str
    name: str
    step: int
    array: numpy.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Served:
    """How a server has ended."""

    shut_down_by: str | None
    dropped: list[str]


def _shape(array: Any) -> list[int]:
    shape = getattr(array, "shape", None)
    return list(memoryview(array).shape if shape is None else shape)


def _indices(rows: Any) -> list[int]:
    """Row indices, which are whole numbers: neither parts of one are dropped, nor is a mask read as rows 0 and 1."""
    given = rows.tolist() if hasattr(rows, "tolist") else list(rows)
    for at, row in enumerate(given):
        if isinstance(row, bool) or not hasattr(row, "__index__"):
            raise ArgumentError(f"rows[{at}] is {row!r}, which is no index; give whole numbers, of a mask those of numpy.flatnonzero")
    return [operator.index(row) for row in given]


class Actors:
    """The ranks of a group under names. Every rank makes one: with its own `name`, or with the `names` of all, by rank."""

    def __init__(self, group: Group, name: str | None = None, *, names: Sequence[str] | None = None) -> None:
        self._core = _core.PsActors(group._core, name, None if names is None else list(names))

    @property
    def name(self) -> str:
        """This rank's name."""
        return self._core.name

    @property
    def names(self) -> list[str]:
        """All names, by rank."""
        return self._core.names

    def rank(self, name: str) -> int:
        """The rank that has this name."""
        return self._core.rank(name)

    def isend(self, to: str, array: Any, *, name: str = "", step: int = 0) -> _core.PsSending:
        """Starts to send an array with its name, type, shape and step, in one message; it may be changed at once. The handle has `done()`
        and `wait(timeout=None)`."""
        return self._core.isend(to, name, step, array, _shape(array))

    def irecv(self, source: str | None = None) -> Receiving:
        """Prepares to receive the next message of an actor, or of any."""
        if source is not None:
            self.rank(source)
        return Receiving(self._core, source)


class Receiving:
    """A message that is expected."""

    def __init__(self, core: _core.PsActors, source: str | None) -> None:
        self._core, self._source = core, source

    def done(self) -> bool:
        """Whether it has come."""
        return self._core.is_there(self._source)

    def wait(self, timeout: float = 60.0) -> Message:
        """The message; waits for `timeout` seconds at most."""
        import numpy

        source, name, dtype, shape, step, data = self._core.recv(self._source, timeout)
        return Message(source, name, step, numpy.frombuffer(data, dtype).reshape(shape))


def _plan(plan: Plan) -> Any:
    return dataclasses.replace(plan, servers=list(plan.servers), trainers=list(plan.trainers))


def serve(actors: Actors, plan: Plan) -> Served:
    """Serves parameters as one of the plan's servers, until all clients have left."""
    return Served(*_core.ps_serve(actors._core, _plan(plan)))


class Client:
    """Sets, pushes and pulls parameters. At the end of a `with` block it leaves the servers."""

    def __init__(self, actors: Actors, plan: Plan) -> None:
        self._core = _core.PsClient(actors._core, _plan(plan))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.leave()

    def set_step(self, step: int) -> None:
        """Sets the step that messages and errors name."""
        self._core.set_step(step)

    def set(self, name: str, value: Any, optimizer: Optimizer) -> None:
        """Sets a parameter of float32 or float64, and how the servers update it."""
        given = (type(optimizer).__name__, [float(number) for number in dataclasses.astuple(optimizer)])
        self._core.set(name, value, _shape(value), given)

    def push(self, name: str, gradient: Any) -> None:
        """Pushes a gradient of the whole parameter."""
        self._core.push(name, gradient, _shape(gradient))

    def push_rows(self, name: str, rows: Sequence[int], values: Any) -> None:
        """Pushes rows of a gradient; their indices are whole numbers in ascending order, and rows with equal ones are summed."""
        self._core.push_rows(name, _indices(rows), values, _shape(values))

    def pull(self, name: str, out: Any = None) -> Any:
        """The parameter, in `out`, an array of its type and shape, if that is given, else in a new array."""
        if out is None:
            import numpy

            dtype, shape = self._core.describe(name)
            out = numpy.empty(shape, dtype)
        self._core.pull(name, out, _shape(out))
        return out

    def wait_for_all(self) -> None:
        """Waits until all trainers that take part have called it."""
        self._core.wait_for_all()

    def reset(self) -> None:
        """Makes the servers forget all parameters."""
        self._core.reset()

    def save(self, folder: str) -> None:
        """Makes each server write its shards to a file in `folder` on its host."""
        self._core.save(folder)

    def restore(self, folder: str) -> None:
        """Makes each server take its file in `folder`: either all do, or none."""
        self._core.restore(folder)

    def members(self) -> list[str]:
        """The trainers that take part."""
        return self._core.members()

    def shut_down(self) -> None:
        """Ends the service for all clients; those leave as ever."""
        self._core.shut_down()

    def leave(self) -> None:
        """Leaves the servers, which end when all clients have."""
        self._core.leave()
