"""What can go wrong with a request, as one tree.

    ServeError
    ├── InvalidRequest          the client must change something
    │   ├── ContextOverflow     prompt and output do not fit the context
    │   ├── UnknownModel        no such model here
    │   │   └── NotOffered      no replica of this model has what is asked for
    │   └── Unauthorized        no such key
    ├── Refused                 not now: over a limit, or it would wait too long; says when to come back
    │   ├── QueueFull           the engine's own queue
    │   └── NotReady            still warming up, or draining
    ├── SlowClient              the client does not read
    ├── ReplicaFailed           the replica broke off or could not be reached
    │   ├── ReplicaUnreached    nothing was sent to it
    │   ├── ReplicaAnswered     it said itself that it can't, or that it is full
    │   └── ReplicaStalled      the replica fell silent
    ├── OutOfTime               an answer in one piece took longer than its lane allows
    └── EngineFailed            our fault

    StartupError                a process that can't start says so in one line

Each ServeError owns one Outcome; `wire/errors.py` maps outcomes to HTTP, once.
"""

from headgate.model.outcome import Outcome


class ServeError(Exception):
    outcome: Outcome = Outcome.ENGINE_FAILED
    code: str | None = None
    """OpenAI's machine-readable error code."""
    kind: str | None = None
    """OpenAI's `type`; None: by the status."""
    retry_after_s: float | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """More to say in the answer's headers."""

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
    """Made from a policy's refusal, so the outcome is given."""

    def __init__(self, message: str, outcome: Outcome, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.code = outcome.value
        self.retry_after_s = retry_after_s
        if outcome is Outcome.OVER_LIMIT:  # in OpenAI's words: clients look for them
            self.code, self.kind = "rate_limit_exceeded", "requests"


class QueueFull(Refused):
    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.QUEUE_FULL, 1.0)


class NotReady(Refused):
    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.NOT_READY, 1.0)


class Gone(ServeError):
    """Nobody is left to be told."""

    outcome = Outcome.CANCELLED


class SlowClient(ServeError):
    outcome = Outcome.SLOW_CLIENT
    code = "slow_client"


class ReplicaFailed(ServeError):
    outcome = Outcome.REPLICA_FAILED
    code = "replica_failed"
    retry_after_s = 1.0
    twice: bool = False
    """It was sent there twice: the first connection was lost at once."""


class ReplicaUnreached(ReplicaFailed):
    """Nothing was sent to it."""


class ReplicaAnswered(ReplicaFailed):
    """`full`: it has no room now. `room_in_s`: when it said that it would; None: it did not say."""

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
    """To OpenAI's clients, which would ask for the same again, and wait as long."""


class EngineFailed(ServeError):
    outcome = Outcome.ENGINE_FAILED
    code = "engine_failed"


class StartupError(Exception):
    """The process can't start; the message says what is wrong and what to do, on one line."""
