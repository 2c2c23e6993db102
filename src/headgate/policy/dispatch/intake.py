"""Makes a Request of what a client asks for: its lane, its prompt tokens, its output limit.

The gateway gets an ask from a client's bytes (`gateway/intake/accept.py`), the simulator from a workload's arrival
(`sim/intake.py`). Both call the same methods in the same order: `prompt_tokens`, `classified`, `allow`, `request`, and
`learn` when the answer is over.
"""

from collections.abc import Callable

from headgate.config.gateway import PromisesConfig, Tenant
from headgate.model.errors import InvalidRequest
from headgate.model.lane import Lane
from headgate.model.request import NOBODY, Request
from headgate.policy.answers.output import Allowance, Output, UnknownTask
from headgate.policy.answers.sizes import PromptSizes, Ratio

LONG_ABOVE = 16_384
"""Uncached prompt tokens above which a request is in the long lane, whatever else it is."""
FAST_BELOW = 512
"""Uncached prompt tokens below which a streaming request that is neither long nor batch is in the fast lane."""
FIRST_ANSWER_TOKENS = 128.0
"""Output tokens that an answer of a lane is expected to have before any has ended."""


LATE_HEADER = "x-headgate-when-late"
"""The header by which a client says whether it would rather wait in a lower lane than be refused."""
CachedTokens = Callable[[tuple[bytes, ...], float, int, str, str | None], int]
"""Expected cached tokens of a prompt, from its hash chain, the tokens of a link, its tokens and its model, at the
replicas of a lane (None: at any)."""


class Classifier:
    """Chooses lanes with the token limits of a config."""

    __slots__ = ("_fast_below", "_long_above")

    def __init__(self, long_above: int, fast_below: int) -> None:
        self._long_above = long_above
        self._fast_below = fast_below

    def lane_of(self, uncached_tokens: int, streaming: bool, says_batch: bool) -> str:
        return classify(
            uncached_tokens=uncached_tokens,
            streaming=streaming,
            says_batch=says_batch,
            long_above=self._long_above,
            fast_below=self._fast_below,
        )

    def lanes_of(self, prompt_tokens: int, streaming: bool, says_batch: bool) -> list[str]:
        """The lanes of a prompt of this size, if 1 to all of its tokens are uncached. Empty: there is only one."""
        bounds = (1, self._fast_below, self._long_above + 1, prompt_tokens)
        some = [tokens for tokens in bounds if tokens <= prompt_tokens]
        lanes = dict.fromkeys(self.lane_of(tokens, streaming, says_batch) for tokens in some)
        return list(lanes) if len(lanes) > 1 else []


class RequestIntake:
    """Turns asks into Requests, and learns prompt and answer sizes from usage."""

    def __init__(
        self,
        lanes: dict[str, Lane],
        classifier: Classifier,
        output: Output,
        cached: CachedTokens | None = None,
        promises: PromisesConfig | None = None,
    ) -> None:
        """`cached`: how much of a prompt the replicas have in their caches; None: nothing is known of that.
        `promises`: the bounds of what a request may promise for itself; None: the defaults."""
        self.output = output
        self._lanes = lanes
        self._classifier = classifier
        self._cached = cached
        self._promises = promises or PromisesConfig()
        self._prompt_sizes = PromptSizes()
        self._tokens_per_answer = Ratio(FIRST_ANSWER_TOKENS)

    def reconfigure(
        self, classifier: Classifier, output: Output | None, promises: PromisesConfig | None = None
    ) -> None:
        """Applies a new config; what was learned stays. `output` None: the caps stay as they are. `promises` None: so
        do the bounds of promises."""
        self._classifier = classifier
        self.output = output or self.output
        self._promises = promises or self._promises

    def prompt_tokens(self, model: str, opened: bool, size: int) -> int:
        """Estimated tokens of a prompt of `size` bytes. `opened`: the conversation begins with a system message."""
        return self._prompt_sizes.of(model, opened, size)

    def classified(
        self,
        named: str | None,
        tenant: Tenant,
        prefix: tuple[bytes, ...],
        link_tokens: float,
        prompt_tokens: int,
        model: str,
        streaming: bool,
        says_batch: bool,
        cached: CachedTokens | None = None,
    ) -> tuple[Lane, int]:
        """The request's lane, and the prompt tokens that the best of that lane's replicas is expected to compute, at
        least 1. A prompt that only replicas of another lane have cached is no short one in its own. `cached`: how much
        of the prompt they have; None: as the intake was made with. Other arguments and exceptions as of `lane`."""
        cached = cached or self._cached
        most = 0 if cached is None or not prefix else cached(prefix, link_tokens, prompt_tokens, model, None)
        lane = self.lane(named, tenant, max(1, prompt_tokens - most), streaming, says_batch)
        if cached is None or not most:
            return lane, prompt_tokens
        there = cached(prefix, link_tokens, prompt_tokens, model, lane.name)
        if there < most:
            lane = self.lane(named, tenant, max(1, prompt_tokens - there), streaming, says_batch)
            there = cached(prefix, link_tokens, prompt_tokens, model, lane.name)
        return lane, max(1, prompt_tokens - there)

    def lanes_in_question(
        self, named: str | None, tenant: Tenant, prompt_tokens: int, streaming: bool, says_batch: bool
    ) -> list[str]:
        """The lanes that the request may be in, depending on how much of its prompt replicas have cached. Empty: it
        does not depend on that."""
        if named or tenant.default_lane is not None:
            return []
        return self._classifier.lanes_of(prompt_tokens, streaming, says_batch)

    def lane(self, named: str | None, tenant: Tenant, uncached_tokens: int, streaming: bool, says_batch: bool) -> Lane:
        """The request's lane. `named`: the lane that a trusted client names; None: none. Raises InvalidRequest for a
        lane that does not exist, or is not open to the tenant."""
        name = named or tenant.default_lane
        if name is None:
            name = self._classifier.lane_of(uncached_tokens, streaming, says_batch)
        lane = self._lanes.get(name)
        if lane is None:
            raise InvalidRequest(f"no lane {name[:64]!r}; there are {', '.join(self._lanes)}", param="lane")
        if tenant.lanes and name not in tenant.lanes:
            raise InvalidRequest(f"lane {name!r} is not open to tenant {tenant.name!r}", param="lane")
        return lane

    def allow(
        self, asked: int | None, task: str | None, tenant: Tenant, lane: Lane, prompt_tokens: int, chat: bool
    ) -> Allowance:
        """The limits of the answer. `asked`: output tokens that the client asks for; None: it does not say. `task`: the
        task that the client names; None: none. `chat`: the request is a chat. Raises InvalidRequest for an unknown
        task."""
        allowance = self.output.allow(
            task, tenant.task, asked, prompt_tokens, lane.max_tokens, tenant.max_tokens, tenant.caps, chat
        )
        if isinstance(allowance, UnknownTask):
            known = ", ".join(allowance.known)
            raise InvalidRequest(f"no task {allowance.task[:64]!r}; there are {known}", param="x-headgate-task")
        return allowance

    def request(
        self,
        *,
        id: str,
        arrived: float,
        model: str,
        lane: Lane,
        priority: int,
        tenant: Tenant,
        name: str,
        prompt_tokens: int,
        allowed: int | None,
        stream: bool,
        choices: int,
        prefix: tuple[bytes, ...],
        session: str | None,
        unfit: frozenset[str] = NOBODY,
        fallback: tuple[str, ...] = (),
        pinned: bool = False,
        link_tokens: float = 0.0,
        uncached_tokens: int | None = None,
        when_late: str | None = None,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
    ) -> Request:
        """The Request. `name`: what the tenant is counted as. `allowed`: output tokens that each choice may have; None:
        any number. `when_late`: what the client wishes to happen if it can't be in time; None: as its lane says.
        `ttft_s`, `tpot_s`: what the request promises itself, and gets as far as the config allows; None: it has its
        lane's promises. Raises InvalidRequest for another wish than to be refused or relegated."""
        if when_late not in (None, "refuse", "relegate"):
            raise InvalidRequest(f"{LATE_HEADER} is refuse or relegate, not {when_late[:64]!r}", param=LATE_HEADER)
        ttft_s = _within(ttft_s, self._promises.ttft_least_s, self._promises.ttft_most_s)
        usual = max(1, int(self._tokens_per_answer.of(lane.name)))
        return Request(
            id=id,
            arrived=arrived,
            model=model,
            lane=lane.name,
            priority=priority,
            tenant=name,
            weight=tenant.weight,
            tier=tenant.tier,
            prompt_tokens=prompt_tokens,
            max_output=choices * (usual if allowed is None else min(allowed, usual)),
            wait_until=arrived + (lane.wait_bound_s if ttft_s is None else lane.wait_bound_of(ttft_s)),
            first_token_by=arrived + (lane.ttft_target_s if ttft_s is None else ttft_s),
            stream=stream,
            prefix=prefix,
            session=session,
            unfit=unfit,
            fallback=fallback,
            choices=choices,
            pinned=pinned,
            link_tokens=link_tokens,
            uncached_tokens=uncached_tokens,
            when_late=when_late or "",
            ttft_s=ttft_s,
            tpot_s=_within(tpot_s, self._promises.tpot_least_s, self._promises.tpot_most_s),
        )

    def learn(
        self, request: Request, model: str, opened: bool, size: int, prompt_tokens: int, output_tokens: int
    ) -> None:
        """Learns from the usage that the replica counted. `model`: the name that the client asked for. `size`: bytes of
        the prompt's text; 0: the prompt says nothing about text."""
        if size:
            self._prompt_sizes.learn(model, opened, size, prompt_tokens)
        self._tokens_per_answer.learn(request.lane, output_tokens / request.choices)


def _within(promised_s: float | None, least_s: float, most_s: float) -> float | None:
    """The promise as far as it is allowed; None: nothing is promised."""
    return None if promised_s is None else max(least_s, min(most_s, promised_s))


def classify(
    *,
    uncached_tokens: int,
    streaming: bool,
    says_batch: bool,
    long_above: int = LONG_ABOVE,
    fast_below: int = FAST_BELOW,
) -> str:
    """The name of the first lane that matches, in this order."""
    if uncached_tokens > long_above:
        return "long"
    if says_batch:
        return "batch"
    if streaming and uncached_tokens < fast_below:
        return "fast"
    return "slow"
