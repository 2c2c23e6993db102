"""Turns the error of a failed attempt into the event that the dispatcher gets."""

from headgate.model.errors import ReplicaAnswered, ReplicaFailed, ReplicaUnreached, ServeError
from headgate.model.event import AttemptFailed
from headgate.model.replica import ReplicaId


def failure(request_id: str, replica_id: ReplicaId, error: ServeError, refused: bool) -> AttemptFailed:
    return AttemptFailed(
        request_id,
        replica_id,
        error.outcome,
        refused,
        error.message,
        unsent=isinstance(error, ReplicaUnreached),
        answered=isinstance(error, ReplicaAnswered),
        retry_after_s=error.room_in_s if isinstance(error, ReplicaAnswered) else None,
        twice=isinstance(error, ReplicaFailed) and error.twice,
    )
