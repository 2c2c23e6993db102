"""Defines the errors of a request as one tree.

    ServeError
    ├── InvalidRequest          the client must change the request
    │   ├── ContextOverflow     prompt and output do not fit the context
    │   ├── UnknownModel        the gateway has no such model
    │   │   └── NotOffered      no replica of this model has what the request asks for
    │   └── Unauthorized        unknown API key
    ├── Refused                 over a limit, or the wait would be too long; says when to retry
    │   ├── QueueFull           the engine's own queue is full
    │   └── NotReady            the engine is warming up or draining
    ├── Gone                    the client left
    ├── SlowClient              the client does not read its answer
    ├── ReplicaFailed           the replica broke off or could not be reached
    │   ├── ReplicaUnreached    nothing was sent to the replica
    │   ├── ReplicaAnswered     the replica itself reported a failure, or that it is full
    │   └── ReplicaStalled      the replica fell silent
    ├── OutOfTime               an unstreamed answer took longer than its lane allows
    └── EngineFailed            a fault of the engine or the gateway

    StartupError                a process cannot start, and says why in one line
    └── UsageError              because its command line or its config has to be changed

Each ServeError owns one Outcome; `wire/errors.py` maps outcomes to HTTP, once.
"""

from headgate.model.outcome import Outcome


class ServeError(Exception):
    outcome: Outcome = Outcome.ENGINE_FAILED
    code: str | None = None
    """OpenAI's machine-readable error code; None: no code."""
    kind: str | None = None
    """OpenAI's `type`; None: derived from the HTTP status."""
    retry_after_s: float | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Further HTTP headers of the error answer."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(ServeError):
    outcome = Outcome.INVALID


class ContextOverflow(InvalidRequest):
    outcome = Outcome.TOO_LONG
    code = "context_length_exceeded"


class UnknownModel(InvalidRequest):
    outcome = Outcome.UNKNOWN_MODEL
    code = "model_not_found"


class NotOffered(UnknownModel):
    code = "not_offered"


class Unauthorized(InvalidRequest):
    outcome = Outcome.UNAUTHORIZED
    code = "invalid_api_key"


class Refused(ServeError):
    """A policy's refusal as an error, which is why the caller passes the outcome."""

    def __init__(self, message: str, outcome: Outcome, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.code = outcome.value
        self.retry_after_s = retry_after_s
        if outcome is Outcome.OVER_LIMIT:  # OpenAI's words, which clients look for
            self.code, self.kind = "rate_limit_exceeded", "requests"
        elif outcome is Outcome.UNKNOWN_MODEL:
            self.code = UnknownModel.code


class QueueFull(Refused):
    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.QUEUE_FULL, 1.0)


class NotReady(Refused):
    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.NOT_READY, 1.0)


class Gone(ServeError):
    """The client left, so no answer is sent."""

    outcome = Outcome.CANCELLED


class SlowClient(ServeError):
    outcome = Outcome.SLOW_CLIENT
    code = "slow_client"


class ReplicaFailed(ServeError):
    outcome = Outcome.REPLICA_FAILED
    code = "replica_failed"
    retry_after_s = 1.0
    twice: bool = False
    """The request was sent to the replica twice, because the first connection was lost at once."""


class ReplicaUnreached(ReplicaFailed):
    """Nothing was sent to the replica, so a retry elsewhere is safe."""


class ReplicaAnswered(ReplicaFailed):
    """The replica itself reported a failure. `full`: the replica has no room now. `room_in_s`: seconds until the
    replica expects room; None: it did not say."""

    def __init__(self, message: str, *, full: bool = False, room_in_s: float | None = None) -> None:
        super().__init__(message)
        self.full = full
        self.room_in_s = room_in_s


class ReplicaStalled(ReplicaFailed):
    outcome = Outcome.REPLICA_STALLED
    code = "replica_stalled"


class OutOfTime(ServeError):
    outcome = Outcome.OUT_OF_TIME
    code = "out_of_time"
    headers = (("x-should-retry", "false"),)
    """Tells OpenAI's clients not to retry: the same request would take as long again."""


class EngineFailed(ServeError):
    outcome = Outcome.ENGINE_FAILED
    code = "engine_failed"


class StartupError(Exception):
    """The process cannot start; the message says on one line what is wrong and what to do."""


class UsageError(StartupError):
    """The command line, a file that it names, or the config has to be changed. The exit status is 2, not 1."""
