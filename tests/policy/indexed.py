"""A route index by itself, without the book that it follows."""

from headgate.model.replica import Load
from headgate.policy.replicas.entry import new_entry
from headgate.policy.replicas.index import RouteIndex


def enter(fleet: RouteIndex, load: Load) -> None:
    entry = fleet.entries.pop(load.id, None) or new_entry(load.id)
    fleet.entries[load.id] = entry
    fleet.add(entry, load)


def remove(fleet: RouteIndex, replica_id: str) -> None:
    entry = fleet.entries.pop(replica_id, None)
    if entry is not None:
        fleet.remove(entry)
