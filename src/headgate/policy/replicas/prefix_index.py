"""Finds the replicas that have the beginning of a prompt in their cache, and how many of its tokens.

A request carries a hash chain over blocks of its whole prompt (`Request.prefix`). The index remembers which links each
replica was sent, so that the next turn of a conversation, or another question about the same document, is known to be
mostly computed there. What the engine has evicted since then the gateway is never told. The older a prefix, the
likelier it is gone, so `CacheOdds` learns the odds by age from what engines report. Age is counted in tokens that the
replica was given since: an engine evicts what was used least recently when new tokens need the room, however long that
takes.

A chain is remembered as a whole, its end first, so that a beginning is always used at least as recently as what follows
it. The least recently used link is therefore the end of some chain: what is forgotten never leaves a gap, and the
longest known beginning is found by bisection.
"""

from collections import OrderedDict
from typing import Final

from headgate.model.replica import ReplicaId
from headgate.model.request import Request

PER_REPLICA: Final = 8192
"""Maximum links remembered for a replica. A link is a block of the prompt, about 128 tokens: as much as an engine
with a million tokens of KV memory keeps."""
TOTAL: Final = 131_072
"""Maximum links remembered for all replicas, about 50 MB."""
KNOWN: Final = 8
"""Maximum replicas remembered by name for a link. Others that have it are found where they are compared."""
HOLDERS: Final = 3
"""Maximum replicas named in one answer. With 5 or 8 a hot prefix fared no better."""
NOBODY: Final[tuple[ReplicaId, ...]] = ()
NO_HOLDERS: Final[list[ReplicaId]] = []
LIKELY: Final = 0.5
"""Odds below which a shorter, more recently used beginning is looked for."""

AGES: Final = 12
"""Classes of age. The first is below YOUNGEST tokens, each further one twice as old."""
YOUNGEST_BITS: Final = 13
"""Ages below 2 to this power (8 192 tokens) are one class."""
TRUSTED: Final = 0.95
"""Share of a just remembered prefix that is expected to be there before the replica has answered any such request."""
PRIOR: Final = 1.0
"""Answers that the odds of the next younger class count for in a class, over all replicas."""
OTHERS: Final = 4.0
"""Answers that the odds over all replicas count for in those of one."""
KEEP: Final = 0.98
"""Factor by which each answer reduces the weight of those before it in its class."""


class CacheGuess:
    """What a replica is expected to have of a prompt in its cache."""

    __slots__ = ("age", "remembered", "tokens")

    def __init__(self, remembered: int, age: int, tokens: float) -> None:
        self.remembered: Final = remembered
        """Prompt tokens that the replica was sent before."""
        self.age: Final = age
        """Tokens that it was given since."""
        self.tokens: Final = tokens
        """Prompt tokens that it is expected to find in its cache."""


NOTHING_CACHED: Final = CacheGuess(0, 0, 0.0)


class CacheOdds:
    """The odds over all replicas, which are what is expected of a new one."""

    __slots__ = ("_asked", "_found", "chances")

    def __init__(self) -> None:
        self._asked = [0.0] * AGES
        self._found = [0.0] * AGES
        self.chances = [TRUSTED] * AGES
        """By class of age: the share of a prefix that is expected to be there, 0 to 1."""

    def learn(self, at: int, share: float) -> None:
        """Takes in that a replica had this share, 0 to 1, of a prefix of this class of age."""
        self._asked[at] = KEEP * self._asked[at] + 1.0
        self._found[at] = KEEP * self._found[at] + share
        # Where little is known of an age, what is known of the next younger one counts: older is not likelier.
        chance = TRUSTED
        for index in range(AGES):
            chance = (PRIOR * chance + self._found[index]) / (PRIOR + self._asked[index])
            self.chances[index] = chance


class ReplicaOdds:
    """The odds of one replica. Written out, not a dataclass, because every request calls it."""

    __slots__ = ("_asked", "_found")

    def __init__(self) -> None:
        self._asked = [0.0] * AGES
        self._found = [0.0] * AGES

    def chance(self, age: int, others: CacheOdds) -> float:
        """The share of a prefix of this age, in tokens, that the replica is expected to have, 0 to 1."""
        at = class_of(age)
        return (OTHERS * others.chances[at] + self._found[at]) / (OTHERS + self._asked[at])

    def learn(self, age: int, share: float, others: CacheOdds) -> None:
        """Takes in that the replica had this share, 0 to 1, of a prefix of this age."""
        at = class_of(age)
        self._asked[at] = KEEP * self._asked[at] + 1.0
        self._found[at] = KEEP * self._found[at] + share
        others.learn(at, share)


def class_of(age: int) -> int:
    """The class of an age in tokens."""
    return min(AGES - 1, (age >> YOUNGEST_BITS).bit_length())


class PrefixLinks:
    """The links that one replica was sent, least recently used first."""

    __slots__ = ("alone", "clock", "kept", "odds", "replica_id", "seen")

    def __init__(self, replica_id: ReplicaId) -> None:
        self.replica_id = replica_id
        self.alone: tuple[ReplicaId, ...] = (replica_id,)
        self.seen: OrderedDict[bytes, int] = OrderedDict()
        """Links, and the clock when each was last used."""
        self.clock = 0
        """Tokens that the replica was given so far, cached ones not counted."""
        self.odds = ReplicaOdds()
        self.kept = False
        """Whether a PrefixIndex remembers these links."""


class PrefixIndex:
    """Bounded: at most `per_replica` links for each replica, and at most `total` over all, of which every replica has
    the same share."""

    def __init__(self, per_replica: int = PER_REPLICA, total: int = TOTAL) -> None:
        self.per_replica = per_replica
        self.total = total
        self._kept: list[PrefixLinks] = []
        """Those of replicas that were sent a prefix; the replicas' entries own them."""
        self._holders: dict[bytes, tuple[ReplicaId, ...]] = {}
        self._odds = CacheOdds()

    def __len__(self) -> int:
        """Links remembered, over all replicas."""
        return sum(len(links.seen) for links in self._kept)

    def holders(self, prefix: tuple[bytes, ...]) -> list[ReplicaId]:
        """At most HOLDERS replicas that know a beginning of this prompt, those of the longest beginning first. May be
        called from another thread."""
        known = self._holders
        if not prefix or prefix[0] not in known:
            return NO_HOLDERS
        low, high = 1, len(prefix)  # the number of links known is at least `low`, and at most `high`
        while low < high:
            middle = (low + high + 1) // 2
            if prefix[middle - 1] in known:
                low = middle
            else:
                high = middle - 1
        found = list(known.get(prefix[low - 1], NOBODY)[:HOLDERS])
        # Few replicas know all this; more know how it begins. In halves: replicas that fork off between are found too.
        while low > 1 and len(found) < HOLDERS:
            low //= 2
            for replica_id in known.get(prefix[low - 1], NOBODY):
                if replica_id not in found and len(found) < HOLDERS:
                    found.append(replica_id)
        return found

    def guess(
        self, prefix: tuple[bytes, ...], link_tokens: float, prompt_tokens: int, links: PrefixLinks
    ) -> CacheGuess:
        """What the replica of these links is expected to have of this prompt. May be called from another thread, while
        links are remembered and forgotten."""
        seen = links.seen
        if not prefix or prefix[0] not in seen:
            return NOTHING_CACHED
        low, high = 1, len(prefix)
        while low < high:
            middle = (low + high + 1) // 2
            if prefix[middle - 1] in seen:
                low = middle
            else:
                high = middle - 1
        best = self._guessed(prefix, low, link_tokens, prompt_tokens, links)
        if best.tokens < LIKELY * best.remembered:
            low, high = 0, low
            while low < high:
                middle = (low + high + 1) // 2
                used_at = seen.get(prefix[middle - 1])
                if used_at is not None and links.odds.chance(links.clock - used_at, self._odds) >= LIKELY:
                    low = middle
                else:
                    high = middle - 1
            if low:
                short = self._guessed(prefix, low, link_tokens, prompt_tokens, links)
                return short if short.tokens > best.tokens else best
        return best

    def _guessed(
        self, prefix: tuple[bytes, ...], known: int, link_tokens: float, prompt_tokens: int, links: PrefixLinks
    ) -> CacheGuess:
        """The guess for a prompt of which the first `known` links are remembered."""
        used_at = links.seen.get(prefix[known - 1])
        if used_at is None:  # forgotten just now
            return NOTHING_CACHED
        tokens = min(prompt_tokens, int(known * link_tokens + 0.5))
        age = max(0, links.clock - used_at)
        return CacheGuess(tokens, age, links.odds.chance(age, self._odds) * tokens)

    def learn(self, guess: CacheGuess, share: float, links: PrefixLinks) -> None:
        """Takes in that the replica of these links had this share, 0 to 1, of what it was remembered to have."""
        if guess.remembered:
            links.odds.learn(guess.age, share, self._odds)

    def remember(self, request: Request, links: PrefixLinks, tokens: int) -> int:
        """Notes that the replica of these links is about to be sent this request, and to compute `tokens` for it.
        Returns its clock, for `unremember`."""
        prefix = request.prefix
        links.clock += tokens + 1  # no two requests at the same moment
        if not prefix:
            return links.clock
        if not links.kept:
            self._joined(links)
        seen, holders, replica_id, clock = links.seen, self._holders, links.replica_id, links.clock
        for at in range(len(prefix) - 1, -1, -1):
            link = prefix[at]
            if link in seen:
                seen.move_to_end(link)
                seen[link] = clock
                continue
            seen[link] = clock
            known = holders.get(link)
            if known is None:
                holders[link] = links.alone
            else:
                holders[link] = (replica_id, *known[: KNOWN - 1])
        self._trim(links)
        return clock

    def unremember(self, request: Request, links: PrefixLinks, clock: int) -> None:
        """Takes back what was remembered at this clock: the replica has failed the request. What other requests have
        used since stays."""
        for link in request.prefix:
            if links.seen.get(link) == clock:
                del links.seen[link]
                self._drop(link, links.replica_id)

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
        known = self._holders.get(link, NOBODY)
        if replica_id not in known:
            return
        if len(known) == 1:
            del self._holders[link]
        else:
            self._holders[link] = tuple([other for other in known if other != replica_id])
