"""Finds the replicas that have a prompt's prefix in their cache, and those that a session belongs to.

`Affinity` remembers which conversations each replica has seen, so that the next turn finds its KV cache warm. This is a
guess about the engines' own caches, so it may only ever be a preference. `Ring` gives a session the same few replicas
in the same order, in every process, and moves few sessions when the fleet changes.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from headgate.model.replica import ReplicaId
from headgate.model.request import Request

HEAD: Final = 2
TAIL: Final = 8
"""Numbers of links of a chain that are remembered: the first few, which many conversations share, and the last ones,
among which the end of the previous turn is. The links between would cost time on every turn of a long conversation."""
KNOWN: Final = 8
"""Maximum holders remembered per link, latest first. A prefix that more replicas hold needs no finding."""
HOLDERS: Final = 3
"""Maximum holders named in one answer."""
NOBODY: tuple[ReplicaId, ...] = ()
ONLY: Final = [0]
"""The links of a chain that has one: most requests' chains are that short."""


def _links(length: int) -> list[int]:
    """Positions in a chain of this length that are remembered and looked up, the deepest first."""
    if length <= HEAD + TAIL:
        return list(range(length - 1, -1, -1))
    return [*range(length - 1, length - TAIL - 1, -1), *range(HEAD - 1, -1, -1)]


class PrefixLinks:
    """The links of prefixes that one replica has seen, least recently used first."""

    __slots__ = ("kept", "replica_id", "seen")

    def __init__(self, replica_id: ReplicaId) -> None:
        self.replica_id = replica_id
        self.seen: OrderedDict[bytes, None] = OrderedDict()
        self.kept = False
        """Whether an Affinity remembers these links."""


class Affinity:
    """Bounded: at most `per_replica` links for each replica, least recently used out first, and at most `total` over
    all, of which every replica has the same share."""

    def __init__(self, per_replica: int = 4096, total: int = 131_072) -> None:
        self.per_replica = per_replica
        self.total = total
        self._kept: list[PrefixLinks] = []
        """Those of replicas that have seen a prefix; the replicas' entries own them."""
        self._holders: dict[bytes, tuple[ReplicaId, ...]] = {}

    def __len__(self) -> int:
        """Links remembered, over all replicas."""
        return sum(len(links.seen) for links in self._kept)

    def holders(self, prefix: tuple[bytes, ...]) -> dict[ReplicaId, int]:
        """At most three replicas that have seen this prefix, and how many links of it each: longest first, then the
        latest to have seen it."""
        known = self._holders
        for at in ONLY if len(prefix) == 1 else _links(len(prefix)):
            if prefix[at] in known:
                break
        else:
            return {}
        found = dict.fromkeys(known[prefix[at]][:HOLDERS], at + 1)
        # Few replicas have seen all this; more have seen how it begins. The links between are not worth a search.
        for head in (min(HEAD, at) - 1, 0) if at else ():
            for replica_id in known.get(prefix[head], NOBODY):
                if len(found) >= HOLDERS:
                    return found
                if replica_id not in found:
                    found[replica_id] = head + 1
        return found

    def remember(self, request: Request, links: PrefixLinks) -> None:
        """Notes that the replica of these links is about to see this request: requests that start like it should
        follow."""
        prefix = request.prefix
        if not prefix:
            return
        if not links.kept:
            self._joined(links)
        seen, replica_id = links.seen, links.replica_id
        # The deepest first: beginnings are then the last to be forgotten.
        for at in ONLY if len(prefix) == 1 else _links(len(prefix)):
            link = prefix[at]
            if link in seen:
                seen.move_to_end(link)
            else:
                seen[link] = None
            known = self._holders.get(link, NOBODY)
            if not known or known[0] != replica_id:
                self._holders[link] = (replica_id, *(other for other in known if other != replica_id))[:KNOWN]
        self._trim(links)

    def forget(self, links: PrefixLinks) -> None:
        """Forgets a replica that has left, or whose process has died and its cache with it."""
        if links.kept:
            links.kept = False
            self._kept.remove(links)
            for link in links.seen:
                self._drop(link, links.replica_id)
            links.seen.clear()

    def _joined(self, links: PrefixLinks) -> None:
        links.kept = True
        self._kept.append(links)
        for other in self._kept:  # each replica's share of the total has shrunk
            self._trim(other)

    def _trim(self, links: PrefixLinks) -> None:
        most = min(self.per_replica, self.total // len(self._kept))
        while len(links.seen) > most:
            self._drop(links.seen.popitem(last=False)[0], links.replica_id)

    def _drop(self, link: bytes, replica_id: ReplicaId) -> None:
        left = tuple(other for other in self._holders.get(link, NOBODY) if other != replica_id)
        if left:
            self._holders[link] = left
        else:
            self._holders.pop(link, None)


# -- sessions -------------------------------------------------------------------------------------------------


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
