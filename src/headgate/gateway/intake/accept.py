"""Turns a client's bytes into a Request: its tenant, model, lane, prompt size and output limit.

Nothing here waits. The body for the replica is written anew from the parsed values, or is the client's body where that
is byte for byte what we would write: two parsers that disagree are how gateways are bypassed.
"""

import re
from typing import Any, Final

import msgspec

from headgate.config.gateway import PromisesConfig, Tenant
from headgate.config.output import CHAT as CHAT_TASK
from headgate.gateway.intake.abilities import CHAT, COMPLETIONS, COUNT, QUOTE, RESPONSES, Abilities
from headgate.gateway.intake.asks import (
    Ask,
    AskOpened,
    Identities,
    ask_usage,
    asked_in,
    bound,
    choices_of,
    keep_bounds,
    looked_into,
    made_whole,
    sift,
)
from headgate.gateway.intake.fields import ChatFields, UsualFields
from headgate.gateway.intake.messages import converse
from headgate.gateway.intake.models import Chosen, Models
from headgate.gateway.intake.naming import Names, Naming
from headgate.gateway.intake.promised import TPOT, TPOT_FIELD, TTFT, TTFT_FIELD, promised_s
from headgate.gateway.intake.prompt import MEDIA_TOKENS, PromptFound, found_in
from headgate.gateway.intake.responses import cap, respond
from headgate.model.errors import InvalidRequest
from headgate.model.event import Dispatch
from headgate.model.lane import Lane
from headgate.model.request import NOBODY, Request
from headgate.policy.answers.asked import times_asked
from headgate.policy.answers.output import Allowance, Output, apply
from headgate.policy.dispatch.intake import LATE_HEADER, CachedTokens, Classifier, RequestIntake
from headgate.replica.dialects import can_continue
from headgate.wire.body import json
from headgate.wire.body.canonical import NOT_CANONICAL, canonical
from headgate.wire.body.long_json import LONG_BYTES, lightened, parse_long, whole
from headgate.wire.errors import MESSAGES
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits

LONGEST_NAME: Final = 256
LONGEST_SESSION: Final = 1024
"""Characters of a session key that are used; the rest is cut off."""

_encode = msgspec.json.Encoder().encode


class Accepted:
    """A request with all that is needed to send it to a replica."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = (
        "allowance",
        "body",
        "chosen",
        "encoded",
        "goes_on",
        "own_ttft_s",
        "path",
        "prompt",
        "relegated_from",
        "request",
        "tenant",
        "uncached_tokens",
        "wants_usage",
    )

    def __init__(
        self,
        request: Request,
        body: dict[str, Any],
        encoded: bytes,
        path: str,
        tenant: Tenant,
        wants_usage: bool,
        prompt: PromptFound,
        allowance: Allowance | None = None,
        chosen: Chosen | None = None,
    ) -> None:
        self.request = request
        self.body = body
        self.encoded = encoded
        """The client's body, if it is byte for byte what we would write; empty otherwise."""
        self.path = path
        self.tenant = tenant
        self.wants_usage = wants_usage
        """Whether the client itself asked for a usage chunk."""
        self.prompt = prompt
        self.allowance = allowance
        """Limits on the answer; None: the request is for embeddings."""
        self.chosen = chosen
        """The model and version chosen for a public name; None: the name stands for itself."""
        self.goes_on: bool | None = None
        """Whether some replica could continue the stream of this long body; None: the body is short,
        `can_continue` tells."""
        self.own_ttft_s = request.ttft_s
        """Time to first token that the request promised, also after it was relegated; None: it promised none."""
        self.relegated_from = ""
        """The lane in which the request could not be in time; empty: it is in its own."""
        self.uncached_tokens = 0
        """Prompt tokens that the replica which has the request is expected to compute; 0: it was not sent yet."""

    @property
    def can_go_on(self) -> bool:
        return can_continue(self.path, self.body) if self.goes_on is None else self.goes_on

    def times_asked(self) -> int:
        """How often the prompt asks for something to be said; 0: it does not say. Seldom called: see Detector."""
        return times_asked(self.whole())

    def lighten(self) -> None:
        """Keeps the long fields of the body in encoded form only."""
        self.goes_on = can_continue(self.path, self.body)
        self.body = lightened(self.body)

    def whole(self) -> dict[str, Any]:
        """The body with its long fields decoded."""
        return self.body if self.goes_on is None else whole(self.body)

    def stand_in(self, model: str) -> None:
        """Switches the request to the model of another version than the one that was drawn."""
        self.request = self.request.but(model=model, fallback=())
        self.body = {**self.body, "model": model}
        self.encoded = b""
        if self.chosen is not None:
            self.chosen = self.chosen.instead(model)

    def sent_as(self, command: Dispatch, lanes: dict[str, Lane]) -> None:
        """Notes what the dispatcher expects its replica to compute, and the lower lane in which the request waited
        rather than be refused."""
        self.uncached_tokens = command.uncached
        if command.lane and command.lane != self.request.lane:
            lane = lanes[command.lane]
            self.relegated_from = self.relegated_from or self.request.lane
            priority = max(self.request.priority, lane.priority)
            self.request = self.request.but(lane=lane.name, priority=priority, ttft_s=None)

    def asking(self, body: dict[str, Any]) -> "Accepted":
        """The same request with another body."""
        made = Accepted(
            self.request, body, b"", self.path, self.tenant, self.wants_usage, self.prompt, self.allowance, self.chosen
        )
        made.goes_on = self.goes_on
        made.uncached_tokens = self.uncached_tokens
        made.relegated_from = self.relegated_from
        return made


class Acceptor:
    def __init__(
        self,
        intake: RequestIntake,
        identities: Identities,
        limits: WireLimits,
        open_fields: frozenset[str] = frozenset(),
        abilities: Abilities | None = None,
    ) -> None:
        """`open_fields`: fields that steer the engine, but that every client may send. `abilities`: which replicas have
        embeddings and responses; None: there are no replicas."""
        self.intake = intake
        self._open_fields = open_fields
        self._identities = identities
        self._limits = limits
        self.models: Models | None = None
        """Public names and the models they stand for; None: each name stands for itself."""
        self.names: Names | None = None
        """The catalog of served names; None: any name is accepted."""
        self.abilities = abilities or Abilities(tuple)

    def serve_names(self, names: Names) -> None:
        """Accepts only names in this catalog from now on."""
        self.names = names

    def serve_models(self, models: Models | None) -> None:
        """Takes other public names from now on."""
        self.models = models

    def reconfigure(
        self,
        classifier: Classifier,
        identities: Identities,
        output: Output | None = None,
        promises: PromisesConfig | None = None,
    ) -> None:
        self.intake.reconfigure(classifier, output, promises)
        self._identities = identities

    def known(self, headers: dict[str, str]) -> Tenant:
        """The tenant of a request with these headers. Raises Unauthorized."""
        return self._identities.of(headers)

    @property
    def keyed(self) -> bool:
        """Whether a key is needed for every request."""
        return self._identities.keyed

    @property
    def several(self) -> bool:
        """Whether any tenant has keys."""
        return self._identities.several

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name. None: there is none any more, or it is not served."""
        return self._identities.named(name)

    def accept(self, exchange: Exchange, tenant: Tenant | None = None) -> Accepted:
        """Reads, checks and classifies a request. `tenant`: whose it is; None: its headers tell. Raises InvalidRequest,
        Unauthorized and other ServeErrors."""
        opened = self.open(exchange, tenant)
        lane, uncached = self.classified(opened)
        return self.close(opened, lane, uncached)

    def open(self, exchange: Exchange, tenant: Tenant | None = None) -> AskOpened:
        """The first half of `accept`, which ends where it must be known what replicas have in their caches."""
        ask = self._read(exchange, tenant or self._identities.of(exchange.headers))
        shape, body, path = ask.shape, ask.body, ask.path
        model = self._named(ask)
        if shape.messages:
            bound("messages", len(shape.messages), self._limits.messages)
        found = found_in(shape, path, body)
        prompt_tokens = found.tokens or self.intake.prompt_tokens(model, found.opened, found.size)
        prompt_tokens += MEDIA_TOKENS * found.media
        session = exchange.headers.get("x-headgate-session") or shape.user
        if session is not None and len(session) > LONGEST_SESSION:
            session = session[:LONGEST_SESSION]
        chosen = None if self.models is None else self._choose(ask, self.models, model, prompt_tokens, session)
        if chosen is not None:
            model = chosen.model
        elif self.names is not None:
            self.names.refuse_unknown(model)
        prefix, link_tokens = found.chain(model, body.get("cache_salt"), prompt_tokens)
        return AskOpened(ask, model, found, prompt_tokens, session, chosen, prefix, link_tokens)

    def close(self, opened: AskOpened, lane: Lane, uncached: int) -> Accepted:
        """The second half of `accept`, in this lane, with the prompt tokens that a replica has to compute."""
        ask, model, found, chosen = opened.ask, opened.model, opened.found, opened.chosen
        prompt_tokens, exchange = opened.prompt_tokens, ask.exchange
        shape, extra, body, path, tenant = ask.shape, ask.extra, ask.body, ask.path, ask.tenant
        embeds = path.endswith("/embeddings")
        choices = choices_of(shape, extra, found, lane, embeds)
        if extra is not None:
            keep_bounds(shape, extra, lane)
        allowance = None if embeds else self._allow(ask, lane, prompt_tokens, choices)
        ttft_s = tpot_s = None
        if tenant.trusted:
            ttft_s = promised_s(exchange.headers, TTFT, body, TTFT_FIELD)
            tpot_s = promised_s(exchange.headers, TPOT, body, TPOT_FIELD)
        request = self.intake.request(
            id=exchange.request_id,
            arrived=exchange.received_at,
            model=model,
            lane=lane,
            priority=self._priority(ask, lane),
            tenant=tenant,
            name=tenant.name,
            prompt_tokens=prompt_tokens,
            allowed=None if allowance is None else allowance.tokens,
            stream=shape.stream is True and not embeds,
            choices=choices,
            prefix=opened.prefix,
            link_tokens=opened.link_tokens,
            uncached_tokens=uncached,
            when_late=exchange.headers.get(LATE_HEADER) or None,
            session=opened.session,
            unfit=self.abilities.unfit(path, model) if embeds or ask.responds else NOBODY,
            fallback=() if chosen is None or embeds or ask.responds else tuple([other for _, other in chosen.others]),
            pinned=chosen is not None and chosen.pinned,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
        )
        wants_usage = ask_usage(ask, embeds) or exchange.voice is not None
        encoded = exchange.body if ask.same else b""
        accepted = Accepted(request, body, encoded, path, tenant, wants_usage, found, allowance, chosen)
        if len(exchange.body) > LONG_BYTES:
            accepted.lighten()
        return accepted

    def _read(self, exchange: Exchange, tenant: Tenant) -> Ask:
        """The parsed body, with its fields checked one by one."""
        if len(exchange.body) > LONG_BYTES:
            body, same = parse_long(exchange.body, self._limits), False
        else:
            # Called here and not by `json`, which is not compiled: it is the usual case.
            body = canonical(exchange.body, self._limits.json_depth)
            same = body is not NOT_CANONICAL
            if not same:
                body = json.parse_strictly(exchange.body, self._limits)
        path = exchange.path
        if path == QUOTE:
            path = COMPLETIONS if isinstance(body, dict) and "messages" not in body and "prompt" in body else CHAT
        elif path == RESPONSES:
            path, body = respond(exchange, body, self.abilities, self._reached, self._limits.messages)
            same = False
        elif path in (MESSAGES, COUNT):
            path, body = converse(exchange, body, self.abilities, self._reached, self._limits.messages)
            same = False
        shape, whole = self._understood(body)
        assert isinstance(body, dict)
        extra = sift(body, tenant.trusted, self._open_fields)
        same = same and whole and (extra is None or not extra.changed)
        return Ask(exchange, tenant, path, body, same, shape, extra)

    def _named(self, ask: Ask) -> str:
        """The model that is asked for: what an alias or `default` stands for, or the name itself."""
        model = ask.shape.model or ""
        ask.alias = alias = self.intake.output.alias(model)
        if alias is not None and alias.model is not None and (self.models is None or not self.models.knows(model)):
            model = ask.rename(alias.model)
            ask.exchange.renames = Naming(alias.name)
        if (model == "default" or not model) and self.names is not None and (meant := self.names.meant_by_default()):
            model = ask.rename(meant)
        if len(model) > LONGEST_NAME:
            raise InvalidRequest(f"model is longer than {LONGEST_NAME} characters", param="model")
        return model

    def _allow(self, ask: Ask, lane: Lane, prompt_tokens: int, choices: int) -> Allowance:
        """The limits of the answer, which are written into the body."""
        shape, extra, body = ask.shape, ask.extra, ask.body
        asked = asked_in(shape, extra, body, ask.responds)
        task = ask.exchange.headers.get("x-headgate-task") or (None if ask.alias is None else ask.alias.task)
        allowance = self.intake.allow(asked, task, ask.tenant, lane, prompt_tokens, ask.chats)
        changed = shape.max_output_tokens is not None
        if ask.responds:
            cap(allowance, body)
        else:
            changed = apply(allowance, body, choices) or changed
        if extra is not None and allowance.tokens is not None:
            for name in extra.least:
                body[name] = min(body[name], allowance.tokens)
                changed = True
        ask.same = ask.same and not changed
        return allowance

    def _choose(self, ask: Ask, models: Models, model: str, prompt_tokens: int, session: str | None) -> Chosen | None:
        """The model and version for a public name. None: the name stands for itself."""
        exchange, tenant = ask.exchange, ask.tenant
        task = exchange.headers.get("x-headgate-task") or (tenant.task if ask.alias is None else ask.alias.task)
        task = task or (CHAT_TASK if ask.chats else "")
        chosen = models.choose(
            model, ask.body, exchange.headers, tenant, task, prompt_tokens, exchange.request_id, session
        )
        if chosen is not None:
            exchange.renames = exchange.renames or Naming(model)
            ask.rename(chosen.model)
        return chosen

    def _understood(self, body: object) -> tuple[ChatFields, bool]:
        """The fields of a body, and whether the body is unchanged. Raises InvalidRequest."""
        try:
            return msgspec.convert(body, UsualFields), True
        except msgspec.ValidationError:
            changed = isinstance(body, dict) and made_whole(body)
        name = body.get("model") if isinstance(body, dict) else None
        ranges = self.abilities.ranges(self._reached(name if isinstance(name, str) else ""))
        return looked_into(body, ranges), not changed

    def _reached(self, name: str) -> tuple[str, ...]:
        """Models that a request for this name may go to: a public name goes before an alias of the same name."""
        models = self.models
        alias = self.intake.output.alias(name)
        if alias is not None and alias.model is not None and (models is None or not models.knows(name)):
            name = alias.model
        return (name,) if models is None else models.reach(name)

    def learn(self, accepted: Accepted, prompt_tokens: int, output_tokens: int) -> None:
        """Learns prompt and answer sizes from the usage that the replica counted."""
        request, chosen = accepted.request, accepted.chosen
        model = request.model if chosen is None else chosen.name
        self.intake.learn(
            request, model, accepted.prompt.opened, accepted.prompt.text_bytes, prompt_tokens, output_tokens
        )

    def classified(self, opened: AskOpened, cached: CachedTokens | None = None) -> tuple[Lane, int]:
        """The request's lane, and the prompt tokens that its replicas are expected to compute. `cached`: what they have
        in their caches; None: the intake's own way to know."""
        shape, tenant = opened.ask.shape, opened.ask.tenant
        return self.intake.classified(
            opened.lane_named, tenant, opened.prefix, opened.link_tokens, opened.prompt_tokens, opened.model,
            shape.stream is True, shape.service_tier == "flex", cached,
        )  # fmt: skip

    def _priority(self, ask: Ask, lane: Lane) -> int:
        """The priority that a trusted client names, from -100 to 100; the lane's for all others, which would name the
        best."""
        if ask.tenant.trusted:
            if ask.shape.priority is not None:
                return max(-100, min(100, ask.shape.priority))
            named = ask.exchange.headers.get("x-headgate-priority", "")
            if re.fullmatch(r"-?[0-9]{1,6}", named):
                return max(-100, min(100, int(named)))
        return lane.priority
