"""Runs one entry of the league: a policy before simulated engines that step as Headgate's own engine does.

The engines, their noise and the arrivals are the same for every entry. Engines serve first come, first served unless a
gateway names a lane, as in benchmarks/tail.py; Headgate names it, the rivals do not.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.league_rivals import RIVALS

from headgate.config.gateway import GatewayConfig
from headgate.engine.intake import IN_ORDER
from headgate.machine.profile import PROFILES, Noise
from headgate.machine.step_features import StepFeatures
from headgate.model.event import FirstToken
from headgate.model.outcome import Outcome
from headgate.model.replica import ReplicaId
from headgate.model.request import Request
from headgate.model.sequence import Sequence as EngineSequence
from headgate.policy.compose import dispatch_settings
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.retry import RetryBudget
from headgate.policy.replicas.health import Health
from headgate.policy.replicas.prefix_index import HOLDERS, CacheGuess, PrefixIndex, PrefixLinks
from headgate.sim.chains import chain_of
from headgate.sim.fleet import SimFleet, fleet_of
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.replica import SteppedReplica
from headgate.sim.watch import SimProber
from headgate.sim.world import World
from headgate.workload.arrival import Arrival

PROFILE = PROFILES["h100-llama3-8b"]
OURS, PLAIN, ORACLE = "headgate", "headgate, plain engines", "oracle"
"""`PLAIN`: Headgate before engines that do not heed lanes. `ORACLE`: Headgate, told what engines have in their caches
and how long each answer will be."""
ENTRIES = (OURS, PLAIN, *RIVALS)


@dataclass(slots=True)
class Answered:
    """What became of one request."""

    arrival: Arrival
    outcome: Outcome | None
    """None: it was not over when the run was."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    cached: int = 0
    computed: int = 0
    """Prompt tokens found in the replica's cache, and those that were not."""
    replica: ReplicaId | None = None
    lane: str = ""
    queue_s: float = 0.0


@dataclass(slots=True)
class Played:
    answers: list[Answered] = field(default_factory=list)
    span_s: float = 0.0
    busy_s: list[float] = field(default_factory=list)


class LeagueReplica(SteppedReplica):
    """An engine that a router may also ask what it publishes of itself."""

    in_order = False
    chains: dict[str, list[bytes]]

    @property
    def waiting(self) -> int:
        return len(self.batcher.waiting) + len(self._inbox)

    @property
    def kv_share(self) -> float:
        return self.gauges["kv_ratio"]

    @property
    def kv_tokens(self) -> int:
        return self._profile.kv_tokens

    @property
    def step_tokens(self) -> int:
        return self._profile.step_tokens

    @property
    def prefill_tokens_per_s(self) -> float:
        chunk = self._profile.chunk_limit
        shape = StepFeatures(prefill=chunk, pairs=chunk * chunk)
        return chunk / self._profile.step_s(shape)

    def cached(self, request: Request) -> int:
        ledger = self.batcher.ledger
        found = ledger.match(self.chains[request.id]) * ledger.block_tokens
        return min(found, request.prompt_tokens - 1)

    def _sequence(self, ticket: SimTicket) -> EngineSequence:
        if not self.in_order:
            return super()._sequence(ticket)
        self._ids += 1
        arrival, now = ticket.arrival, self._world.now
        prompt = max(1, arrival.prompt_tokens)
        return EngineSequence(
            id=self._ids,
            tokens=[ticket.number] * prompt,
            prompt_len=prompt,
            max_output=ticket.output,
            arrived=now,
            lane="slow",
            priority=IN_ORDER.priority,
            first_token_by=now + IN_ORDER.ttft_target_s,
            gap_target_s=IN_ORDER.gap_target_s,
            chain=list(self.chains[ticket.request.id]),
        )


class LeagueGateway(SimGateway):
    hears_all = False

    def first(self, ticket: SimTicket, way_s: float = 0.0) -> None:
        super().first(ticket, way_s)
        if self.hears_all and not ticket.request.stream:
            self.hear(FirstToken(ticket.request.id))


class LeagueIntake(SimIntake):
    """Remembers the engine's hash chain of each request under way."""

    def __init__(self, config: GatewayConfig, dispatcher: Dispatcher | None, told: bool) -> None:
        """`told`: each answer's length is known in advance."""
        if dispatcher is None:
            super().__init__(config)
        else:
            super().__init__(config, dispatcher.lanes, dispatcher.cached_tokens)
        self.chains: dict[str, list[bytes]] = {}
        self.index: TrueIndex | None = None
        self._told = told

    def request(self, arrival: Arrival, number: int, now: float) -> tuple[Request, int]:
        chain = chain_of(arrival, number, PROFILE.block_tokens, max(1, arrival.output_tokens))
        self.chains[str(number)] = chain
        if self.index is not None:
            self.index.chain = chain
        request, output = super().request(arrival, number, now)
        if self.index is not None:
            self.index.came(request)
        if self._told:
            request = request.but(max_output=request.choices * output)
        return request, output


class TrueIndex(PrefixIndex):
    """Knows what each engine has in its cache, and what it is about to compute. Everything else is the dispatcher's."""

    def __init__(self) -> None:
        super().__init__()
        self.engines: dict[ReplicaId, LeagueReplica] = {}
        self._coming: dict[ReplicaId, Counter[bytes]] = {}
        """The links of requests at each engine."""
        self._at: dict[str, ReplicaId] = {}
        self.chain: list[bytes] = []
        """The engines' hash chain of the request that is arriving."""
        self._chains: dict[tuple[bytes, ...], tuple[list[bytes], int]] = {}
        """By the gateway's chain: the engines', and how many requests under way have it."""

    def came(self, request: Request) -> None:
        chain, many = self._chains.get(request.prefix, (self.chain, 0))
        self._chains[request.prefix] = (chain, many + 1)

    def over(self, request: Request) -> None:
        """A request is over."""
        self._let_go(request)
        chain, many = self._chains.pop(request.prefix)
        if many > 1:
            self._chains[request.prefix] = (chain, many - 1)

    def _let_go(self, request: Request) -> None:
        there = self._at.pop(request.id, None)
        if there is not None:
            coming = self._coming[there]
            coming.subtract(request.prefix)
            for link in request.prefix:
                if coming[link] <= 0:
                    del coming[link]

    def tokens(self, prefix: tuple[bytes, ...], link_tokens: float, prompt_tokens: int, replica_id: ReplicaId) -> int:
        known = self._chains.get(prefix)
        chain = self.chain if known is None else known[0]
        ledger = self.engines[replica_id].batcher.ledger
        there = ledger.match(chain) * ledger.block_tokens
        coming, links = self._coming.get(replica_id), 0
        if coming:
            while links < len(prefix) and prefix[links] in coming:
                links += 1
        return min(prompt_tokens, max(there, int(links * link_tokens)))

    def holders(self, prefix: tuple[bytes, ...]) -> list[ReplicaId]:
        have = {one: self.tokens(prefix, 128.0, 1 << 30, one) for one in self.engines}
        return sorted((one for one in have if have[one]), key=lambda one: -have[one])[:HOLDERS]

    def guess(
        self, prefix: tuple[bytes, ...], link_tokens: float, prompt_tokens: int, links: PrefixLinks
    ) -> CacheGuess:
        found = self.tokens(prefix, link_tokens, prompt_tokens, links.replica_id)
        return CacheGuess(found, 0, float(found))

    def learn(self, guess: CacheGuess, share: float, links: PrefixLinks) -> None:
        pass

    def remember(self, request: Request, links: PrefixLinks, tokens: int) -> int:
        self._let_go(request)
        self._at[request.id] = links.replica_id
        self._coming.setdefault(links.replica_id, Counter()).update(request.prefix)
        return 0

    def unremember(self, request: Request, links: PrefixLinks, clock: int) -> None:
        self._let_go(request)


def play(
    entry: str,
    arrivals: Sequence[Arrival],
    replicas: int,
    seed: int,
    grace_s: float,
    *,
    config: GatewayConfig | None = None,
    slots: int | None = None,
    made: Callable[[GatewayConfig, random.Random], Dispatcher] | None = None,
) -> Played:
    """Plays arrivals. What is not over `grace_s` after the last of them is cut off."""
    config = config or GatewayConfig()
    world, fleet, played = World(), fleet_of(PROFILE, replicas, slots), Played()
    rng, rival, index = random.Random(seed), RIVALS.get(entry), TrueIndex() if entry == ORACLE else None
    dispatcher = None if rival is not None else (made or _dispatcher)(config, rng)
    if dispatcher is not None and index is not None:
        dispatcher = _dispatcher(config, rng, index)
    intake = LeagueIntake(config, dispatcher, told=entry == ORACLE)
    intake.index = index

    def close(ticket: SimTicket, outcome: Outcome, now: float) -> None:
        played.answers.append(_answered(ticket, outcome, now))
        intake.chains.pop(ticket.request.id, None)
        if index is not None:
            index.over(ticket.request)

    gateway = LeagueGateway(world, dispatcher, intake, fleet.delays, close)  # type: ignore[arg-type]
    engines = _engines(world, gateway, fleet, seed, intake, in_order=entry not in (OURS, ORACLE))
    if rival is not None:
        gateway.dispatcher = policy = rival(engines, rng)  # type: ignore[assignment]
        gateway.hears_all = policy.hears_all
        for engine in engines:
            gateway.replicas[engine.id] = engine
            engine.start()
    else:
        if index is not None:
            index.engines = {engine.id: engine for engine in engines}
        for seat, engine in zip(fleet.seats, engines, strict=True):
            engine.start()
            SimProber(
                world, gateway, seat.replica, engine, config.health.probe_interval_s, config.health.deep_interval_s
            )
    gateway.play(iter(arrivals))
    world.at(arrivals[-1].at_s + grace_s, lambda _: world.stop())
    world.run()
    played.answers += [Answered(ticket.arrival, None) for ticket in gateway.tickets.values()]
    played.span_s = arrivals[-1].at_s
    played.busy_s = [engine.busy_s for engine in engines]
    return played


def _dispatcher(config: GatewayConfig, rng: random.Random, index: PrefixIndex | None = None) -> Dispatcher:
    return Dispatcher(
        dispatch_settings(config),
        Health(config.health),
        rng,
        retries=RetryBudget(config.retry),
        no_replica_wait_s=config.timeouts.no_replica_wait_s,
        prefixes=index,
    )


def _engines(
    world: World, gateway: SimGateway, fleet: SimFleet, seed: int, intake: LeagueIntake, in_order: bool
) -> list[LeagueReplica]:
    made = []
    for seat in fleet.seats:
        chance = Noise(random.Random(f"{seed}/{seat.replica.id}"))
        engine = LeagueReplica(world, gateway, seat.replica.id, seat.member, fleet.delays, chance)
        engine.in_order, engine.chains = in_order, intake.chains
        made.append(engine)
    return made


def _answered(ticket: SimTicket, outcome: Outcome, now: float) -> Answered:
    arrival, first = ticket.arrival, ticket.first_at
    found = Answered(arrival, outcome, lane=ticket.request.lane, queue_s=ticket.queue_s)
    if ticket.replica is not None:
        found.replica = ticket.replica.id
    if outcome is Outcome.COMPLETED and first is not None:
        at, each = arrival.at_s, ticket.said // arrival.choices
        found.e2e_s = now - at
        found.cached, found.computed = ticket.cached, max(0, arrival.prompt_tokens - ticket.cached)
        if arrival.stream:
            found.ttft_s = first - at
            found.tpot_s = (now - first) / (each - 1) if each > 1 else None
    return found
