"""Makes a Request of a workload's arrival, with the intake of the gateway (`policy/dispatch/intake.py`).

The arrival stands for the chat that Headgate's own bench would send: one message of words that are a token and four
bytes each, for exactly the output tokens that the arrival gets. So prompt size, lane and cap come out as in production,
without the bytes.
"""

from headgate.config.gateway import GatewayConfig
from headgate.model.errors import InvalidRequest, UsageError
from headgate.model.lane import Lane
from headgate.model.request import Request
from headgate.policy.compose import capped, intake_for
from headgate.policy.dispatch.intake import CachedTokens
from headgate.sim.chains import chain_of
from headgate.workload.arrival import BLOCK_TOKENS, Arrival

BYTES_PER_TOKEN = 4
"""Bytes per token in English text, and in the prompts that Headgate's own bench sends."""
LINK_TOKENS = 128
"""Tokens in a block of the gateway's hash chain, of 512 bytes (gateway/intake/prompt.py), at four bytes each."""
ENVELOPE_BYTES = 27
"""Bytes that JSON adds to the words of one message: role and quotes, less the space after the last word."""


class SimIntake:
    def __init__(
        self, config: GatewayConfig, lanes: dict[str, Lane] | None = None, cached: CachedTokens | None = None
    ) -> None:
        """`lanes`: the dispatcher's; None: the config's. `cached`: the dispatcher's knowledge of caches; None: every
        prompt is computed whole."""
        self._intake = intake_for(config, lanes or {lane.name: lane for lane in config.lanes}, cached)
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
        prefix, link_tokens = _prefix(arrival, number, prompt_tokens)
        try:
            lane, uncached = intake.classified(
                arrival.lane, tenant, prefix, link_tokens, prompt_tokens, model, arrival.stream, False
            )
            allowed = intake.allow(asked, None, tenant, lane, prompt_tokens, True).tokens
        except InvalidRequest as error:
            raise UsageError(f"the config does not serve this workload: {error.message}") from None
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
            prefix=prefix,
            session=arrival.session,
            link_tokens=link_tokens,
            uncached_tokens=uncached,
            ttft_s=arrival.ttft_s,
            tpot_s=arrival.tpot_s,
        )
        return request, asked if allowed is None else allowed

    def learn(self, request: Request, arrival: Arrival, prompt_tokens: int, output_tokens: int) -> None:
        """Learns from the usage that the replica counted."""
        size = _size(arrival.prompt_tokens)
        self._intake.learn(request, request.model, False, size, prompt_tokens, output_tokens)


def _size(prompt_tokens: int) -> int:
    return max(1, prompt_tokens) * BYTES_PER_TOKEN + ENVELOPE_BYTES


def _prefix(arrival: Arrival, number: int, prompt_tokens: int) -> tuple[tuple[bytes, ...], float]:
    """Returns the hash chain that the gateway knows the prompt by, and the estimated tokens of a link. The last link is
    of the whole prompt, as the gateway's is."""
    tokens = max(1, arrival.prompt_tokens)
    links = chain_of(arrival, number, LINK_TOKENS)
    if tokens % LINK_TOKENS:
        before = links[-1] if links else b""
        shared = len(arrival.prefix) * BLOCK_TOKENS >= tokens
        links.append(b"%b/%d/%d" % (before, tokens, arrival.prefix[(tokens - 1) // BLOCK_TOKENS] if shared else number))
    return tuple(links), LINK_TOKENS * BYTES_PER_TOKEN * prompt_tokens / _size(tokens)
