"""What can go wrong with a request, as one tree.

    ServeError
    ├── InvalidRequest          the client must change something
    │   ├── ContextOverflow     prompt and output do not fit the context
    │   └── UnknownModel        no such model here
    ├── QueueFull               come back later
    ├── NotReady                still warming up, or draining
    └── EngineFailed            our fault

    StartupError                a process that can't start says so in one line

Each ServeError owns one Outcome; `wire/errors.py` maps outcomes to HTTP, once.
"""

from headgate.model.outcome import Outcome


class ServeError(Exception):
    outcome: Outcome = Outcome.ENGINE_FAILED
    code: str | None = None
    """OpenAI's machine-readable error code."""
    retry_after_s: float | None = None

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


class QueueFull(ServeError):
    outcome = Outcome.QUEUE_FULL
    code = "queue_full"
    retry_after_s = 1.0


class NotReady(ServeError):
    outcome = Outcome.NOT_READY
    code = "not_ready"
    retry_after_s = 1.0


class EngineFailed(ServeError):
    outcome = Outcome.ENGINE_FAILED
    code = "engine_failed"


class StartupError(Exception):
    """The process can't start; the message says what is wrong and what to do, on one line."""
