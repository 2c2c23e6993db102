"""Makes a Request of a workload's arrival, by the rules of gateway/intake/accept.py, without the bytes.

Prompt tokens are estimated as the gateway estimates them, from bytes by a ratio that it learns; the usual output of
such requests is learned from those that end.
"""

from hashlib import blake2b

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.model.errors import StartupError
from headgate.model.lane import Lane
from headgate.model.request import Request
from headgate.policy.answers.output import UnknownTask
from headgate.policy.batching.estimate import Ratio
from headgate.policy.compose import capped, classifier, output_of
from headgate.workload.arrival import Arrival

BYTES_PER_TOKEN = 4
"""Bytes per token in English text, and in the prompts that Headgate's own bench sends."""
ENVELOPE_BYTES = 28
"""Bytes that JSON adds to one message: role and quotes."""
BATCH_LANE = "batch"


class SimIntake:
    def __init__(self, config: GatewayConfig) -> None:
        self._lanes = {lane.name: lane for lane in config.lanes}
        self._classify = classifier(config).lane_of
        self._output = output_of(config)
        self._tenants = {tenant.name: capped(tenant, config) for tenant in config.tenants}
        self._anonymous = capped(config.anonymous, config)
        self.tokens_per_byte = Ratio(0.25)
        self.tokens_per_answer = Ratio(128.0)

    def request(self, arrival: Arrival, number: int, now: float) -> tuple[Request, int]:
        """Returns the request, and the tokens that each of its choices will be given. Raises StartupError for a lane
        that the config lacks."""
        tenant = self._tenants.get(arrival.tenant or "", self._anonymous)
        model = arrival.model or ""
        size = arrival.prompt_tokens * BYTES_PER_TOKEN + ENVELOPE_BYTES
        prompt_tokens = max(1, int(size * self.tokens_per_byte.of(model)))
        name = self._lane(arrival, tenant, prompt_tokens)
        lane = self._lanes.get(name)
        if lane is None:
            raise StartupError(f"the workload asks for lane {name!r}; the config has {', '.join(self._lanes)}")
        output = self._allowed(max(1, arrival.output_tokens), tenant, lane, prompt_tokens)
        request = Request(
            id=str(number),
            arrived=now,
            model=model,
            lane=name,
            priority=lane.priority,
            tenant=arrival.tenant or tenant.name,
            weight=tenant.weight,
            tier=tenant.tier,
            prompt_tokens=prompt_tokens,
            max_output=arrival.choices * min(output, max(1, int(self.tokens_per_answer.of(name)))),
            wait_until=now + lane.wait_bound_s,
            first_token_by=now + lane.ttft_target_s,
            stream=arrival.stream,
            prefix=_links(arrival, number),
            session=arrival.session,
            choices=arrival.choices,
        )
        return request, output

    def _allowed(self, output: int, tenant: Tenant, lane: Lane, prompt_tokens: int) -> int:
        """Returns the output tokens that the limits allow. A workload's clients ask for exactly the tokens they get,
        name no task (so the request counts as a chat), and never run away."""
        found = self._output.allow(
            None, tenant.task, output, prompt_tokens, lane.max_tokens, tenant.max_tokens, tenant.caps, True
        )
        return output if isinstance(found, UnknownTask) or found.tokens is None else found.tokens

    def learn(self, request: Request, prompt_tokens: int, output_tokens: int) -> None:
        """Learns from the usage that the replica counted."""
        size = prompt_tokens * BYTES_PER_TOKEN + ENVELOPE_BYTES
        self.tokens_per_byte.learn(request.model, prompt_tokens / size)
        self.tokens_per_answer.learn(request.lane, output_tokens / request.choices)

    def _lane(self, arrival: Arrival, tenant: Tenant, prompt_tokens: int) -> str:
        """Returns the lane. A lane that the workload names is accepted, as the gateway accepts one from clients it
        trusts."""
        if arrival.lane is not None:
            return arrival.lane
        return tenant.default_lane or self._classify(prompt_tokens, arrival.stream, False)


def _links(arrival: Arrival, number: int) -> tuple[bytes, ...]:
    """Returns the hashes that the gateway knows a prompt by. The gateway hashes a conversation message by message, and
    a workload's prompt is one message: only an equal prompt as a whole is recognised."""
    if arrival.prefix and len(arrival.prefix) * 512 >= arrival.prompt_tokens:
        ids = f"{arrival.prompt_tokens}/{arrival.prefix}".encode()
        return (blake2b(ids, digest_size=16).digest(),)
    return (number.to_bytes(16, "big"),)
