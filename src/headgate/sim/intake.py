"""Makes a Request of a workload's arrival, with the intake of the gateway (`policy/dispatch/intake.py`).

The arrival stands for the chat that Headgate's own bench would send: one message of words that are a token and four
bytes each, for exactly the output tokens that the arrival gets. So prompt size, lane and cap come out as in production,
without the bytes.
"""

from hashlib import blake2b

from headgate.config.gateway import GatewayConfig
from headgate.model.errors import InvalidRequest, StartupError
from headgate.model.lane import Lane
from headgate.model.request import Request
from headgate.policy.compose import capped, intake_for
from headgate.workload.arrival import Arrival

BYTES_PER_TOKEN = 4
"""Bytes per token in English text, and in the prompts that Headgate's own bench sends."""
ENVELOPE_BYTES = 27
"""Bytes that JSON adds to the words of one message: role and quotes, less the space after the last word."""


class SimIntake:
    def __init__(self, config: GatewayConfig, lanes: dict[str, Lane] | None = None) -> None:
        """`lanes`: the dispatcher's; None: the config's."""
        self._intake = intake_for(config, lanes or {lane.name: lane for lane in config.lanes})
        self._tenants = {tenant.name: capped(tenant, config) for tenant in config.tenants}
        self._anonymous = capped(config.anonymous, config)

    def request(self, arrival: Arrival, number: int, now: float) -> tuple[Request, int]:
        """Returns the request, and the tokens that each of its choices will be given. The workload's word for tenant
        and lane is taken, as the gateway takes a trusted client's. Raises StartupError for what the gateway would
        refuse: the workload does not go with the config."""
        tenant = self._tenants.get(arrival.tenant or "", self._anonymous)
        intake, model = self._intake, arrival.model or ""
        prompt_tokens = intake.prompt_tokens(model, False, _size(arrival.prompt_tokens))
        asked = max(1, arrival.output_tokens)
        try:
            lane = intake.lane(arrival.lane, tenant, prompt_tokens, arrival.stream, False)
            allowed = intake.allow(asked, None, tenant, lane, prompt_tokens, True).tokens
        except InvalidRequest as error:
            raise StartupError(f"the config does not serve this workload: {error.message}") from None
        request = intake.request(
            id=str(number),
            arrived=now,
            model=model,
            lane=lane,
            priority=lane.priority,
            tenant=tenant,
            name=arrival.tenant or tenant.name,
            prompt_tokens=prompt_tokens,
            allowed=allowed,
            stream=arrival.stream,
            choices=arrival.choices,
            prefix=_links(arrival, number),
            session=arrival.session,
        )
        return request, asked if allowed is None else allowed

    def learn(self, request: Request, arrival: Arrival, prompt_tokens: int, output_tokens: int) -> None:
        """Learns from the usage that the replica counted."""
        size = _size(arrival.prompt_tokens)
        self._intake.learn(request, request.model, False, size, prompt_tokens, output_tokens)


def _size(prompt_tokens: int) -> int:
    return max(1, prompt_tokens) * BYTES_PER_TOKEN + ENVELOPE_BYTES


def _links(arrival: Arrival, number: int) -> tuple[bytes, ...]:
    """Returns the hashes that the gateway knows a prompt by. The gateway hashes a conversation message by message, and
    a workload's prompt is one message: only an equal prompt as a whole is recognised."""
    if arrival.prefix and len(arrival.prefix) * 512 >= arrival.prompt_tokens:
        ids = f"{arrival.prompt_tokens}/{arrival.prefix}".encode()
        return (blake2b(ids, digest_size=16).digest(),)
    return (number.to_bytes(16, "big"),)
