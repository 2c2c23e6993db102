"""Policies that work on parts of a replica's entry, for tests that name replicas instead."""

from headgate.config.gateway import HealthConfig
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.replicas.health import Health, HealthEntry, HealthVerdict
from headgate.policy.replicas.index import RouteIndex
from headgate.policy.replicas.outlier import OutlierConfig
from headgate.policy.replicas.prefix_index import CacheGuess, PrefixIndex, PrefixLinks
from headgate.policy.replicas.signs import HealthState, Saw


class Watched:
    """Health, and the entries of replicas by their names."""

    def __init__(self, config: HealthConfig | None = None, outlier: OutlierConfig | None = None) -> None:
        self.health = Health(config, outlier)
        self.of: dict[str, HealthEntry] = {}

    @property
    def ejections(self) -> int:
        return self.health.ejections

    def add(self, replica: Replica, now: float, state: HealthState = HealthState.UP, parked: bool = False) -> None:
        self.remove(replica.id)
        self.of[replica.id] = self.health.add(replica, now, state, parked)

    def remove(self, name: str) -> None:
        if name in self.of:
            self.health.remove(self.of.pop(name))

    def park(self, name: str, parked: bool) -> None:
        self.health.park(self.of[name], parked)

    def served(
        self,
        name: str,
        ttft_s: float | None,
        prompt_tokens: int,
        tpot_s: float | None,
        now: float,
        token_s: float | None = None,
        in_flight: int = 1,
    ) -> None:
        self.health.served(self.of[name], ttft_s, prompt_tokens, tpot_s, now, token_s, in_flight)

    def success(
        self, name: str, ttft_s: float | None, prompt_tokens: int, tpot_s: float | None, now: float
    ) -> HealthVerdict | None:
        return self.health.success(self.of[name], ttft_s, prompt_tokens, tpot_s, now)

    def on(self, name: str, saw: Saw, now: float) -> HealthVerdict:
        return self.health.on(self.of[name], saw, now)

    def share(self, name: str, now: float) -> float:
        return self.health.share(self.of[name], now)

    def wake_at(self) -> float:
        return self.health.wake_at()

    def tick(self, now: float) -> list[HealthVerdict]:
        return self.health.tick(now)


class Remembered:
    """A prefix index, and the links of replicas by their names."""

    def __init__(self, per_replica: int = 4096, total: int = 131_072) -> None:
        self.index = PrefixIndex(per_replica, total)
        self.of: dict[str, PrefixLinks] = {}

    def __len__(self) -> int:
        return len(self.index)

    def links(self, name: str) -> PrefixLinks:
        return self.of.setdefault(name, PrefixLinks(name))

    def remember(self, request: Request, name: str, tokens: int = 0) -> None:
        self.index.remember(request, self.links(name), tokens)

    def forget(self, name: str) -> None:
        self.index.forget(self.links(name))

    def guess(self, request: Request, name: str) -> CacheGuess:
        return self.index.guess(request.prefix, request.link_tokens, request.prompt_tokens, self.links(name))

    def enter(self, fleet: RouteIndex) -> PrefixIndex:
        """Gives the replicas of this index their links. Returns the prefix index."""
        for name, links in self.of.items():
            if name in fleet.entries:
                fleet.entries[name].links = links
        return self.index
