"""Gives a session the same few replicas in the same order, in every process.

Consistent hashing: few sessions move when the fleet changes. Which replica really has a conversation in its cache is
known to the prefix index (prefix_index.py); a session is a hint where that knows nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

from headgate.model.replica import ReplicaId


def _place(key: str) -> int:
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class Ring:
    """Consistent hashing: each replica owns `points` places on a circle, and a session belongs to the replica that
    comes next."""

    def __init__(self, points: int = 64) -> None:
        self.points = points
        self._places: list[int] = []
        self._owner: dict[int, ReplicaId] = {}

    def add(self, replica_id: ReplicaId) -> None:
        for place in self._places_of(replica_id):
            if place not in self._owner:
                self._owner[place] = replica_id
                insort(self._places, place)

    def remove(self, replica_id: ReplicaId) -> None:
        for place in self._places_of(replica_id):
            if self._owner.get(place) == replica_id:
                del self._owner[place]
                del self._places[bisect_left(self._places, place)]

    def walk(self, start: int, count: int) -> list[tuple[int, ReplicaId]]:
        """The first `count` different replicas from `start` on, each with the distance to it."""
        places, owner = self._places, self._owner
        at, total = bisect_left(places, start), len(places)
        found: list[tuple[int, ReplicaId]] = []
        seen: list[ReplicaId] = []
        for step in range(at, at + total):
            place = places[step % total]
            replica_id = owner[place]
            if replica_id not in seen:
                found.append(((place - start) % 2**64, replica_id))
                seen.append(replica_id)
                if len(found) == count:
                    break
        return found

    def _places_of(self, replica_id: ReplicaId) -> list[int]:
        """Eight places from each digest: joining is then cheap enough to be done while serving."""
        digests = b"".join(
            blake2b(f"{replica_id}#{part}".encode("utf-8", "surrogatepass")).digest()
            for part in range(-(-self.points // 8))
        )
        bounds = range(0, 8 * self.points + 1, 8)
        return [int.from_bytes(digests[start:end], "big") for start, end in pairwise(bounds)]


def session_order(session: str, rings: Sequence[Ring], count: int) -> list[ReplicaId]:
    """The replicas that this session prefers, best first. Several rings give what one ring of all their replicas
    would."""
    start = _place(session)
    if len(rings) == 1:
        return [replica_id for _, replica_id in rings[0].walk(start, count)]
    ways = sorted(way for ring in rings for way in ring.walk(start, count))
    return [replica_id for _, replica_id in ways[:count]]
