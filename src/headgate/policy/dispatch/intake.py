"""Makes a Request of what a client asks for: its lane, its prompt tokens, its output limit.

The gateway gets an ask from a client's bytes (`gateway/intake/accept.py`), the simulator from a workload's arrival
(`sim/intake.py`). Both call the same methods in the same order: `prompt_tokens`, `lane`, `allow`, `request`, and
`learn` when the answer is over.
"""

from headgate.config.gateway import Tenant
from headgate.model.errors import InvalidRequest
from headgate.model.lane import Lane
from headgate.model.request import NOBODY, Request
from headgate.policy.answers.output import Allowance, Output, UnknownTask
from headgate.policy.answers.prompt_size import PromptSizes
from headgate.policy.batching.estimate import Ratio

LONG_ABOVE = 16_384
"""Prompt tokens above which a request is in the long lane, whatever else it is."""
FAST_BELOW = 512
"""Prompt tokens below which a streaming request that is neither long nor batch is in the fast lane."""
FIRST_ANSWER_TOKENS = 128.0
"""Output tokens that an answer of a lane is expected to have before any has ended."""


class Classifier:
    """Chooses lanes with the token limits of a config."""

    __slots__ = ("_fast_below", "_long_above")

    def __init__(self, long_above: int, fast_below: int) -> None:
        self._long_above = long_above
        self._fast_below = fast_below

    def lane_of(self, prompt_tokens: int, streaming: bool, says_batch: bool) -> str:
        return classify(
            prompt_tokens=prompt_tokens,
            streaming=streaming,
            says_batch=says_batch,
            long_above=self._long_above,
            fast_below=self._fast_below,
        )


class RequestIntake:
    """Turns asks into Requests, and learns prompt and answer sizes from usage."""

    def __init__(self, lanes: dict[str, Lane], classifier: Classifier, output: Output) -> None:
        self.output = output
        self._lanes = lanes
        self._classifier = classifier
        self._prompt_sizes = PromptSizes()
        self._tokens_per_answer = Ratio(FIRST_ANSWER_TOKENS)

    def reconfigure(self, classifier: Classifier, output: Output | None) -> None:
        """Applies a new config; what was learned stays. `output` None: the caps stay as they are."""
        self._classifier = classifier
        self.output = output or self.output

    def prompt_tokens(self, model: str, opened: bool, size: int) -> int:
        """Estimated tokens of a prompt of `size` bytes. `opened`: the conversation begins with a system message."""
        return self._prompt_sizes.of(model, opened, size)

    def lane(self, named: str | None, tenant: Tenant, prompt_tokens: int, streaming: bool, says_batch: bool) -> Lane:
        """The request's lane. `named`: the lane that a trusted client names; None: none. Raises InvalidRequest for a
        lane that does not exist, or is not open to the tenant."""
        name = named or tenant.default_lane
        if name is None:
            name = self._classifier.lane_of(prompt_tokens, streaming, says_batch)
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
    ) -> Request:
        """The Request. `name`: what the tenant is counted as. `allowed`: output tokens that each choice may have; None:
        any number."""
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
            wait_until=arrived + lane.wait_bound_s,
            first_token_by=arrived + lane.ttft_target_s,
            stream=stream,
            prefix=prefix,
            session=session,
            unfit=unfit,
            fallback=fallback,
            choices=choices,
            pinned=pinned,
        )

    def learn(
        self, request: Request, model: str, opened: bool, size: int, prompt_tokens: int, output_tokens: int
    ) -> None:
        """Learns from the usage that the replica counted. `model`: the name that the client asked for. `size`: bytes of
        the prompt's text; 0: the prompt says nothing about text."""
        if size:
            self._prompt_sizes.learn(model, opened, size, prompt_tokens)
        self._tokens_per_answer.learn(request.lane, output_tokens / request.choices)


def classify(
    *,
    prompt_tokens: int,
    streaming: bool,
    says_batch: bool,
    long_above: int = LONG_ABOVE,
    fast_below: int = FAST_BELOW,
) -> str:
    """The name of the first lane that matches, in this order."""
    if prompt_tokens > long_above:
        return "long"
    if says_batch:
        return "batch"
    if streaming and prompt_tokens < fast_below:
        return "fast"
    return "slow"
