"""Rivals' published routing rules, as recipes for the simulated gateway.

Each is written anew from what the rival publishes of its rule and its settings, in at most 100 lines. A recipe answers
the events of `SimGateway` as Headgate's dispatcher does. None of them has lanes: they pass requests on as they come,
and the engines serve them first come, first served. What was simplified is said with each.
"""

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Refuse,
)
from headgate.model.replica import ReplicaId
from headgate.model.request import Request


class Engine(Protocol):
    """What a router may know of one engine."""

    @property
    def id(self) -> ReplicaId: ...
    @property
    def waiting(self) -> int:
        """Requests that wait in the engine's own queue."""

    @property
    def kv_share(self) -> float:
        """Share of KV memory that running sequences hold, 0 to 1."""

    @property
    def kv_tokens(self) -> int: ...
    @property
    def step_tokens(self) -> int:
        """Maximum tokens in one step."""

    @property
    def prefill_tokens_per_s(self) -> float:
        """Speed of an idle engine with a long prompt."""

    def cached(self, request: Request) -> int:
        """Tokens of this prompt that the engine has in its cache now."""


class Seat:
    """An engine, and what the router itself has counted of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests = 0
        """Requests sent and not ended."""
        self.prefill = 0
        """Uncached prompt tokens sent, of requests that have not had their first token."""


class Rival:
    """Sends every request at once, to the engine that `choose` names."""

    hears_all = False
    """Whether it hears the first token of an unstreamed answer, as a router does that always streams from engines."""

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        self.seats = [Seat(engine) for engine in engines]
        self.rng = rng
        self.wake_at = inf
        self._at: dict[str, tuple[Seat, Request, int]] = {}

    def on(self, event: Event, now: float) -> list[Command]:
        commands: list[Command] = []
        if isinstance(event, Arrived):
            self.arrived(event.request, now, commands)
        elif isinstance(event, FirstToken):
            self._prefilled(event.request_id)
            self.freed(now, commands)
        elif isinstance(event, Ended):
            self._prefilled(event.request_id)
            self._left(event.request_id)
            self.freed(now, commands)
        elif isinstance(event, AttemptFailed):
            self._prefilled(event.request_id)
            self._left(event.request_id)
            commands.append(Refuse(event.request_id, event.outcome, event.message))
        return commands

    def arrived(self, request: Request, now: float, commands: list[Command]) -> None:
        self.send(request, now, commands)

    def freed(self, now: float, commands: list[Command]) -> None:
        """An engine has done something: a router with a queue looks at it."""

    def send(self, request: Request, now: float, commands: list[Command]) -> None:
        seat, uncached = self.choose(request, now)
        seat.requests += 1
        seat.prefill += uncached
        self._at[request.id] = (seat, request, uncached)
        commands.append(Dispatch(request.id, seat.engine.id, 1, type(self).__name__))

    def choose(self, request: Request, now: float) -> tuple[Seat, int]:
        """The engine, and the prompt tokens that it is expected to compute."""
        raise NotImplementedError

    def left(self, seat: Seat, request: Request) -> None:
        """The request is no longer at the engine."""

    def least(self, seats: Sequence[Seat]) -> Seat:
        """The seat with fewest requests; one of equals at random."""
        fewest = min(seat.requests for seat in seats)
        return self.rng.choice([seat for seat in seats if seat.requests == fewest])

    def _prefilled(self, request_id: str) -> None:
        seat, request, uncached = self._at[request_id]
        seat.prefill -= uncached
        self._at[request_id] = (seat, request, 0)

    def _left(self, request_id: str) -> None:
        seat, request, _ = self._at.pop(request_id)
        seat.requests -= 1
        self.left(seat, request)


class LeastRequest(Rival):
    """Fewest requests under way, as nginx `least_conn`, Envoy with a full look, and LiteLLM's least busy."""

    def choose(self, request: Request, now: float) -> tuple[Seat, int]:
        return self.least(self.seats), request.prompt_tokens


class PowerOfTwo(Rival):
    """Two engines at random, of which the one with fewer requests: Envoy, vllm-router, sglang-router, Dynamo."""

    def choose(self, request: Request, now: float) -> tuple[Seat, int]:
        return self.least(self.rng.sample(self.seats, min(2, len(self.seats)))), request.prompt_tokens


class CacheAware(Rival):
    """The rule of sglang-router, smg and vllm-router: if loads are out of balance, fewest requests; else, if more than
    `threshold` of the prompt matches what an engine was sent, that engine; else fewest requests (vllm-router) or least
    remembered (sglang-router).

    Simplified: matched in blocks of 128 tokens instead of characters; nothing is forgotten, as they forget only beyond
    10 000 nodes or 2^26 characters, every 30 or 120 s."""

    threshold, apart, times, by_size = 0.3, 64, 1.5, True

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        super().__init__(engines, rng)
        self._known: dict[bytes, Seat] = {}
        """Who was sent each block last."""
        self._sizes: Counter[ReplicaId] = Counter()

    def choose(self, request: Request, now: float) -> tuple[Seat, int]:
        loads = [seat.requests for seat in self.seats]
        most, fewest = max(loads), min(loads)
        matched, seat = 0, None
        for link in request.prefix:
            holder = self._known.get(link)
            if holder is None:
                break
            matched, seat = matched + 1, holder
        if most - fewest > self.apart and most > self.times * fewest:
            seat = self.least(self.seats)
        elif seat is None or matched <= self.threshold * len(request.prefix):
            if self.by_size:
                seat = min(self.seats, key=lambda one: (self._sizes[one.engine.id], one.requests))
            else:
                seat = self.least(self.seats)
        self._sizes[seat.engine.id] += len(request.prefix) - matched
        for link in request.prefix:
            self._known[link] = seat
        return seat, request.prompt_tokens


class VllmCacheAware(CacheAware):
    """The same with vllm-router's settings."""

    threshold, apart, times, by_size = 0.5, 32, 1.1, False


class _Blocks:
    """llm-d's approximate index: for each engine the blocks that it was sent last, as many as its KV memory holds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def matched(self, prefix: Sequence[bytes]) -> int:
        for count, link in enumerate(prefix):
            if link not in self._seen:
                return count
        return len(prefix)

    def add(self, prefix: Sequence[bytes]) -> None:
        for link in prefix:
            self._seen[link] = None
            self._seen.move_to_end(link)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)


class LlmdScorers(Rival):
    """llm-d's default profile: queue scorer 2, KV utilisation scorer 2, prefix scorer 3, highest sum, ties at random.
    Queue and KV gauges are scraped every 50 ms.

    Simplified: blocks of 128 tokens, not 64; every engine's scrape is at the same moment; no flow control, which is
    off by default."""

    scrape_s = 0.05

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        super().__init__(engines, rng)
        self._blocks = [_Blocks(engine.kv_tokens // 128) for engine in engines]
        self._scraped_at = -inf
        self._gauges: list[tuple[int, float]] = []

    def choose(self, request: Request, now: float) -> tuple[Seat, int]:
        if now - self._scraped_at >= self.scrape_s:
            self._scraped_at = now
            self._gauges = [(seat.engine.waiting, seat.engine.kv_share) for seat in self.seats]
        longest, shortest = max(self._gauges)[0], min(self._gauges)[0]
        scores = []
        for (waiting, kv_share), blocks in zip(self._gauges, self._blocks, strict=True):
            queue = 1.0 if longest == shortest else (longest - waiting) / (longest - shortest)
            match = blocks.matched(request.prefix) / max(1, len(request.prefix))
            scores.append(2.0 * queue + 2.0 * (1.0 - kv_share) + 3.0 * match)
        best = max(scores)
        at = self.rng.choice([index for index, score in enumerate(scores) if score == best])
        self._blocks[at].add(request.prefix)
        return self.seats[at], request.prompt_tokens


class LlmdSticky(Rival):
    """llm-d's sticky-until-saturated rule (its optimized baseline): engines that have at least 0.8 of the prompt,
    unless the best of them has `penalty_s` more of prefill to do than the best other; among those left, fewest uncached
    tokens in flight, this request's included (token-load scorer).

    Simplified: blocks of 128 tokens, not 64. The prefill speed is calibrated for the engine, as its guide says."""

    penalty_s = 18.0
    """Its default."""

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        super().__init__(engines, rng)
        self._blocks = [_Blocks(engine.kv_tokens // 128) for engine in engines]

    def choose(self, request: Request, now: float) -> tuple[Seat, int]:
        shares = [blocks.matched(request.prefix) / max(1, len(request.prefix)) for blocks in self._blocks]
        every = range(len(self.seats))
        sticky = [at for at in every if shares[at] >= 0.8]
        others = [at for at in every if shares[at] < 0.8]
        if not sticky or (others and self._best_s(sticky) - self._best_s(others) > self.penalty_s):
            sticky = list(every)
        uncached = [int(request.prompt_tokens * (1.0 - share)) for share in shares]
        loads = {at: self.seats[at].prefill + uncached[at] for at in sticky}
        least = min(loads.values())
        at = self.rng.choice([at for at, load in loads.items() if load == least])
        self._blocks[at].add(request.prefix)
        return self.seats[at], uncached[at]

    def _best_s(self, which: Sequence[int]) -> float:
        return min(self.seats[at].prefill / self.seats[at].engine.prefill_tokens_per_s for at in which)


class Dynamo(Rival):
    """Dynamo's KV router: cost = prompt tokens to prefill there, this request's uncached ones included, and tokens of
    KV in use there; lowest cost, ties at random. Requests wait in the router while all engines have more than 16 steps'
    worth to prefill, in two classes by uncached tokens (below 3 072 the shortest first, quantum 2 048; others in order,
    quantum 512), which take turns by deficit round robin in uncached tokens, as in its sample policy.

    Simplified: it knows the engines' caches exactly and at once (its KV events come a little later); the uncached class
    waits until all engines are busy, not 95 %; KV in use counts prompts only, each prefix once."""

    hears_all = True
    quanta = (2048, 512)

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        super().__init__(engines, rng)
        self._used: list[Counter[bytes]] = [Counter() for _ in engines]
        self._order = {id(seat): at for at, seat in enumerate(self.seats)}
        self._short: list[tuple[int, int, Request]] = []
        self._long: deque[tuple[int, Request]] = deque()
        self._deficits = [0, 0]
        self._turn = self._number = 0

    def arrived(self, request: Request, now: float, commands: list[Command]) -> None:
        best = max(seat.engine.cached(request) for seat in self.seats)
        uncached = max(1, request.prompt_tokens - best)
        self._number += 1
        if uncached < 3072:
            heappush(self._short, (uncached, self._number, request))
        else:
            self._long.append((uncached, request))
        self.freed(now, commands)

    def freed(self, now: float, commands: list[Command]) -> None:
        while not all(seat.prefill > 16 * seat.engine.step_tokens for seat in self.seats):
            request = self._next()
            if request is None:
                return
            self.send(request, now, commands)

    def _next(self) -> Request | None:
        costs = [self._short[0][0] if self._short else None, self._long[0][0] if self._long else None]
        self._deficits = [0 if cost is None else owed for cost, owed in zip(costs, self._deficits, strict=True)]
        if costs == [None, None]:
            return None
        while True:
            cost = costs[self._turn]
            if cost is not None and cost <= self._deficits[self._turn]:
                self._deficits[self._turn] -= cost
                return heappop(self._short)[2] if self._turn == 0 else self._long.popleft()[1]
            self._turn = 1 - self._turn
            if costs[self._turn] is not None:
                self._deficits[self._turn] += self.quanta[self._turn]

    def choose(self, request: Request, now: float) -> tuple[Seat, int]:
        costs, uncached = [], []
        for seat, used in zip(self.seats, self._used, strict=True):
            uncached.append(max(1, request.prompt_tokens - seat.engine.cached(request)))
            kv = len(used) + sum(link not in used for link in request.prefix)
            costs.append(seat.prefill + uncached[-1] + 128 * kv)
        least = min(costs)
        at = self.rng.choice([index for index, cost in enumerate(costs) if cost == least])
        self._used[at].update(request.prefix)
        return self.seats[at], uncached[at]

    def left(self, seat: Seat, request: Request) -> None:
        used = self._used[self._order[id(seat)]]
        used.subtract(request.prefix)
        for link in request.prefix:
            if used[link] <= 0:
                del used[link]


RIVALS: dict[str, type[Rival]] = {
    "least request": LeastRequest,
    "power of two": PowerOfTwo,
    "sglang cache-aware": CacheAware,
    "vllm cache-aware": VllmCacheAware,
    "llm-d scorers": LlmdScorers,
    "llm-d sticky": LlmdSticky,
    "dynamo": Dynamo,
}
