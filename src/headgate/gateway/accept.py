"""From a client's bytes to a Request: who asks, for what, in which lane, and how much of it.

Nothing here waits. What is sent on to a replica is written anew from what was understood, never the client's own bytes:
two parsers that disagree are how gateways are bypassed.
"""

import re
from hashlib import blake2b
from typing import Any, Final

import msgspec

from headgate.gateway.abilities import CHAT, RESPONSES, Abilities
from headgate.gateway.identity import Identities
from headgate.gateway.models import Chosen, Models
from headgate.gateway.response_voice import Native, Translated
from headgate.gateway.responses import Untold, as_chat, cap, parts, read
from headgate.gateway.shape import Shape
from headgate.model.errors import InvalidRequest, NotOffered
from headgate.model.gateway_config import Tenant
from headgate.model.lane import Lane
from headgate.model.output_config import OutputConfig
from headgate.model.request import NOBODY, Request
from headgate.policy.estimate import Ratio
from headgate.policy.lanes import Classifier
from headgate.policy.output import Allowance, Output, UnknownTask, apply
from headgate.policy.prompt_size import PromptSizes
from headgate.wire import json
from headgate.wire.canonical import NOT_CANONICAL, canonical
from headgate.wire.exchange import Exchange
from headgate.wire.limits import Limits

MOST_MESSAGES_HASHED: Final = 128
"""Later messages of a longer conversation do not decide where it goes."""
LINK_BYTES: Final = 16
LONGEST_NAME: Final = 256
TRUSTED_ONLY: Final = ("priority", "lane", "ttft_target_ms", "tpot_target_ms", "longest_neighbour")
"""What an engine would heed, and only trusted clients may say."""

_encode = msgspec.json.Encoder().encode


class Accepted:
    """A request and what is needed to send it on."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = ("allowance", "body", "chosen", "encoded", "path", "prompt_bytes", "request", "tenant", "wants_usage")

    def __init__(
        self,
        request: Request,
        body: dict[str, Any],
        encoded: bytes,
        path: str,
        tenant: Tenant,
        wants_usage: bool,
        prompt_bytes: int,
        allowance: Allowance | None = None,
        chosen: Chosen | None = None,
    ) -> None:
        self.request = request
        self.body = body
        self.encoded = encoded
        """The body as we would write it, where it came like that; empty otherwise."""
        self.path = path
        self.tenant = tenant
        self.wants_usage = wants_usage
        """Whether the client itself asked for a usage chunk."""
        self.prompt_bytes = prompt_bytes
        self.allowance = allowance
        """What its answer may say; None: it has none, as embeddings."""
        self.chosen = chosen
        """What its model's name came to; None: it stands for itself."""

    def stand_in(self, model: str) -> None:
        """It is answered by another version than was drawn for it."""
        self.request = self.request.but(model=model, fallback=())
        self.body = {**self.body, "model": model}
        self.encoded = b""
        if self.chosen is not None:
            self.chosen = self.chosen.instead(model)

    def asking(self, body: dict[str, Any]) -> "Accepted":
        """The same, asked in other words."""
        return Accepted(
            self.request, body, b"", self.path, self.tenant, self.wants_usage, self.prompt_bytes, self.allowance,
            self.chosen,
        )  # fmt: skip


class Acceptor:
    def __init__(
        self,
        lanes: dict[str, Lane],
        classifier: Classifier,
        identities: Identities,
        limits: Limits,
        output: Output | None = None,
    ) -> None:
        self._output = output or Output(OutputConfig())
        self._lanes = lanes
        self._classifier = classifier
        self._identities = identities
        self._limits = limits
        self.models: Models | None = None
        """What names stand for; None: for themselves."""
        self.abilities = Abilities({})
        """Who has more than chats and text completions."""
        self.prompt_sizes = PromptSizes()
        self.tokens_per_answer = Ratio(128.0)

    def reconfigure(self, classifier: Classifier, identities: Identities, output: Output | None = None) -> None:
        self._output = output or self._output
        self._classifier = classifier
        self._identities = identities

    def known(self, headers: dict[str, str]) -> Tenant:
        """Who asks. Raises Unauthorized."""
        return self._identities.of(headers)

    def accept(self, exchange: Exchange) -> Accepted:
        """Raises InvalidRequest or Unauthorized."""
        headers = exchange.headers
        tenant = self._identities.of(headers)
        # Asked here and not by `json`, which is not compiled: it is the usual case.
        body = canonical(exchange.body, self._limits.json_depth)
        same = body is not NOT_CANONICAL
        if not same:
            body = json.parse_strictly(exchange.body, self._limits)
        path, responds = exchange.path, False
        if path == RESPONSES:
            path, body = self._respond(exchange, body)
            responds, same = path == RESPONSES, False
        try:
            shape = msgspec.convert(body, Shape)
        except msgspec.ValidationError:
            shape = json.convert(body, Shape)  # says what is wrong, and where
        assert isinstance(body, dict)
        alias = self._output.alias(shape.model)
        models = self.models
        if alias is not None and alias.model is not None and (models is None or not models.knows(shape.model)):
            shape.model = body["model"] = alias.model
            same = False
        prefix, prompt_bytes = self._prompt(shape, path, body)
        prompt_tokens = self.prompt_sizes.of(shape.model, _opened(body), prompt_bytes)
        lane = self._lane(shape, headers, tenant, prompt_tokens)
        embeds = path.endswith("/embeddings")
        stream = shape.stream and not embeds
        allowance = None
        if not embeds:
            if responds:
                shape.max_tokens = shape.max_output_tokens
            allowance = self._allow(shape, headers, tenant, lane, prompt_tokens, None if alias is None else alias.task)
            if responds:
                cap(allowance, body)
            else:
                same = not apply(allowance, body) and same
        session = headers.get("x-headgate-session") or shape.user
        model, chosen = shape.model, None
        if models is not None:
            task = headers.get("x-headgate-task") or (tenant.task if alias is None else alias.task) or ""
            chosen = models.choose(model, body, headers, tenant, task, prompt_tokens, exchange.request_id, session)
            if chosen is not None:
                model = body["model"] = chosen.model
                same = False
        request = Request(
            id=exchange.request_id,
            arrived=exchange.received_at,
            model=model,
            lane=lane.name,
            priority=self._priority(shape, headers, tenant, lane),
            tenant=tenant.name,
            weight=tenant.weight,
            tier=tenant.tier,
            prompt_tokens=prompt_tokens,
            max_output=self._max_output(allowance, lane),
            wait_until=exchange.received_at + lane.wait_bound_s,
            first_token_by=exchange.received_at + lane.ttft_target_s,
            stream=stream,
            prefix=prefix,
            session=session,
            unfit=self.abilities.unfit(path, model) if embeds or responds else NOBODY,
            fallback=() if chosen is None or embeds or responds else tuple([other for _, other in chosen.others]),
        )
        if not tenant.trusted:
            for name in TRUSTED_ONLY:
                if name in body:
                    del body[name]
                    same = False
        wants_usage = shape.stream_options is not None and shape.stream_options.include_usage
        if shape.stream and not stream:
            del body["stream"]
            same = False
        elif stream and not wants_usage and not responds:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
            same = False
        encoded = exchange.body if same else b""
        wants_usage = wants_usage or exchange.voice is not None
        return Accepted(request, body, encoded, path, tenant, wants_usage, prompt_bytes, allowance, chosen)

    def _respond(self, exchange: Exchange, given: object) -> tuple[str, dict[str, Any]]:
        """Where to ask for a response, and how: there, if all who may get it have it; otherwise as a chat, if that can
        say it; and if not, there again, at those who have it."""
        body = read(given)
        model = body.get("model", "")
        alias = self._output.alias(model)
        model = model if alias is None or alias.model is None else alias.model
        names = (model,) if self.models is None else self.models.reach(model)
        if not self.abilities.all_respond(names):
            try:
                chat = as_chat(body)
            except Untold as untold:
                self._must_respond(names, *untold.args)
            else:
                exchange.voice = Translated(body, exchange.request_id)
                return CHAT, chat
        exchange.voice = Native()
        return RESPONSES, body

    def _must_respond(self, names: tuple[str, ...], field: str, why: str) -> None:
        """Raises InvalidRequest if nobody can."""
        try:
            for name in names:
                self.abilities.unfit(RESPONSES, name)
        except NotOffered as error:
            raise InvalidRequest(f"{field}: {why}, and {error.message}", param=field) from None

    def learn(self, accepted: Accepted, prompt_tokens: int, output_tokens: int) -> None:
        """Usage as the replica counted it."""
        if accepted.prompt_bytes:
            model = accepted.request.model if accepted.chosen is None else accepted.chosen.name
            self.prompt_sizes.learn(model, _opened(accepted.body), accepted.prompt_bytes, prompt_tokens)
        self.tokens_per_answer.learn(accepted.request.lane, float(output_tokens))

    def _prompt(self, shape: Shape, path: str, body: dict[str, Any]) -> tuple[tuple[bytes, ...], int]:
        """The hash chain over the conversation, and how long it is."""
        if len(shape.model) > LONGEST_NAME:
            raise InvalidRequest(f"model is longer than {LONGEST_NAME} characters", param="model")
        if path.endswith("/chat/completions"):
            if not shape.messages:
                raise InvalidRequest("messages must be a list of at least one message", param="messages")
            messages: list[Any] = shape.messages
        elif path == RESPONSES:
            messages = parts(body)
        else:
            name = "input" if path.endswith("/embeddings") else "prompt"
            whole = shape.input if name == "input" else shape.prompt
            if whole is None or whole == []:
                raise InvalidRequest(f"{name} must not be empty", param=name)
            messages = [whole]
        chain: list[bytes] = []
        size, digest = 0, b""
        for part in messages:
            encoded = _encode(part)
            size += len(encoded)
            if len(chain) < MOST_MESSAGES_HASHED:
                digest = blake2b(digest + encoded).digest()[:LINK_BYTES]
                chain.append(digest)
        return tuple(chain), size

    def _lane(self, shape: Shape, headers: dict[str, str], tenant: Tenant, prompt_tokens: int) -> Lane:
        named = (headers.get("x-headgate-lane") or shape.lane) if tenant.trusted else None
        name = named or tenant.default_lane
        if name is None:
            name = self._classifier.lane_of(prompt_tokens, shape.stream, shape.service_tier == "flex")
        lane = self._lanes.get(name)
        if lane is None:
            raise InvalidRequest(f"no lane {name[:64]!r}; there are {', '.join(self._lanes)}", param="lane")
        if tenant.lanes and name not in tenant.lanes:
            raise InvalidRequest(f"lane {name!r} is not open to tenant {tenant.name!r}", param="lane")
        return lane

    def _priority(self, shape: Shape, headers: dict[str, str], tenant: Tenant, lane: Lane) -> int:
        """Said by the client only if it is trusted; whoever else could name it would name the best."""
        if tenant.trusted:
            if shape.priority is not None:
                return max(-100, min(100, shape.priority))
            named = headers.get("x-headgate-priority", "")
            if re.fullmatch(r"-?[0-9]{1,6}", named):
                return max(-100, min(100, int(named)))
        return lane.priority

    def _allow(
        self, shape: Shape, headers: dict[str, str], tenant: Tenant, lane: Lane, prompt_tokens: int, alias: str | None
    ) -> Allowance:
        asked = shape.max_completion_tokens if shape.max_completion_tokens is not None else shape.max_tokens
        if asked is not None and asked < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {asked}", param="max_tokens")
        named = headers.get("x-headgate-task") or alias
        allowance = self._output.allow(
            named, tenant.task, asked, prompt_tokens, lane.max_tokens, tenant.max_tokens, tenant.caps
        )
        if isinstance(allowance, UnknownTask):
            known = ", ".join(allowance.known)
            raise InvalidRequest(f"no task {allowance.task[:64]!r}; there are {known}", param="x-headgate-task")
        return allowance

    def _max_output(self, allowance: Allowance | None, lane: Lane) -> int:
        usual = max(1, int(self.tokens_per_answer.of(lane.name)))
        allowed = None if allowance is None else allowance.tokens
        return usual if allowed is None else min(allowed, usual)


def _opened(body: dict[str, Any]) -> bool:
    """Whether it begins with a system message."""
    messages = body.get("messages")
    if not messages:
        return "instructions" in body
    first: Any = messages[0]
    return bool(first.get("role") in ("system", "developer"))
