"""How did a request end? One word for counting; the error carries the detail."""

from enum import Enum


class Outcome(Enum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    INVALID = "invalid"
    TOO_LONG = "too_long"
    UNKNOWN_MODEL = "unknown_model"
    QUEUE_FULL = "queue_full"
    NOT_READY = "not_ready"
    ENGINE_FAILED = "engine_failed"
