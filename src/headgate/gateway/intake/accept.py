"""Turns a client's bytes into a Request: its tenant, model, lane, prompt size and output limit.

Nothing here waits. The body for the replica is written anew from the parsed values, or is the client's body where that
is byte for byte what we would write: two parsers that disagree are how gateways are bypassed.
"""

import re
from typing import Any, Final, Protocol

import msgspec

from headgate.config.gateway import Tenant
from headgate.config.output import CHAT as CHAT_TASK
from headgate.gateway.answer.response_voice import Native, Translated
from headgate.gateway.intake.abilities import CHAT, RESPONSES, Abilities
from headgate.gateway.intake.asks import Extra, choices_of, keep_bounds, looked_into, made_whole, sift
from headgate.gateway.intake.fields import ChatFields, UsualFields
from headgate.gateway.intake.identity import Identities
from headgate.gateway.intake.models import Chosen, Models
from headgate.gateway.intake.naming import Naming
from headgate.gateway.intake.prompt import MEDIA_TOKENS, found_in
from headgate.gateway.intake.responses import Untold, as_chat, cap, read
from headgate.model.errors import InvalidRequest, NotOffered
from headgate.model.lane import Lane
from headgate.model.request import NOBODY, Request
from headgate.policy.answers.asked import times_asked
from headgate.policy.answers.output import Allowance, Output, apply
from headgate.policy.dispatch.intake import Classifier, RequestIntake
from headgate.replica.dialects import can_continue
from headgate.wire.body import json
from headgate.wire.body.canonical import NOT_CANONICAL, canonical
from headgate.wire.body.long_json import LONG_BYTES, lightened, parse_long, whole
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits

LONGEST_NAME: Final = 256
LONGEST_SESSION: Final = 1024
"""Characters of a session key that are used; the rest is cut off."""

_encode = msgspec.json.Encoder().encode


class Names(Protocol):
    """The catalog of model names, as the Acceptor uses it."""

    def refuse_unknown(self, model: str) -> None:
        """Raises UnknownModel for a name that no replica has."""

    def meant_by_default(self) -> str:
        """The name that `default` stands for; empty: `default` is passed on as it is."""


class Accepted:
    """A request with all that is needed to send it to a replica."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = (
        "allowance",
        "body",
        "chosen",
        "encoded",
        "goes_on",
        "opened",
        "path",
        "prompt_bytes",
        "request",
        "tenant",
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
        prompt_bytes: int,
        opened: bool,
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
        self.prompt_bytes = prompt_bytes
        """Bytes of the prompt's text; 0: the prompt has token ids or media, so its tokens say nothing about text."""
        self.allowance = allowance
        """Limits on the answer; None: the request is for embeddings."""
        self.chosen = chosen
        """The model and version chosen for a public name; None: the name stands for itself."""
        self.goes_on: bool | None = None
        """Whether some replica could continue the stream of this long body; None: the body is short,
        `can_continue` tells."""
        self.opened = opened
        """Whether the conversation begins with a system message."""

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

    def asking(self, body: dict[str, Any]) -> "Accepted":
        """The same request with another body."""
        made = Accepted(
            self.request, body, b"", self.path, self.tenant, self.wants_usage, self.prompt_bytes, self.opened,
            self.allowance, self.chosen,
        )  # fmt: skip
        made.goes_on = self.goes_on
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
        self._intake = intake
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

    def reconfigure(self, classifier: Classifier, identities: Identities, output: Output | None = None) -> None:
        self._intake.reconfigure(classifier, output)
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

    def accept(self, exchange: Exchange) -> Accepted:
        """Reads, checks and classifies a request. Raises InvalidRequest, Unauthorized and other ServeErrors."""
        headers = exchange.headers
        tenant = self._identities.of(headers)
        long = len(exchange.body) > LONG_BYTES
        if long:
            body, same = parse_long(exchange.body, self._limits), False
        else:
            # Called here and not by `json`, which is not compiled: it is the usual case.
            body = canonical(exchange.body, self._limits.json_depth)
            same = body is not NOT_CANONICAL
            if not same:
                body = json.parse_strictly(exchange.body, self._limits)
        path, responds = exchange.path, False
        if path == RESPONSES:
            path, body = self._respond(exchange, body)
            responds, same = path == RESPONSES, False
        shape, whole = self._understood(body)
        assert isinstance(body, dict)
        extra = sift(body, tenant.trusted, self._open_fields)
        same = same and whole and (extra is None or not extra.changed)
        model = shape.model or ""
        alias = self._intake.output.alias(model)
        models = self.models
        if alias is not None and alias.model is not None and (models is None or not models.knows(model)):
            model = body["model"] = alias.model
            same = False
            exchange.renames = Naming(alias.name)
        if (model == "default" or not model) and self.names is not None and (meant := self.names.meant_by_default()):
            model = body["model"] = meant
            same = False
        if len(model) > LONGEST_NAME:
            raise InvalidRequest(f"model is longer than {LONGEST_NAME} characters", param="model")
        if shape.messages:
            self._bound("messages", len(shape.messages))
        found = found_in(shape, path, body)
        opened = _opened(body)
        prompt_tokens = found.tokens or self._intake.prompt_tokens(model, opened, found.size)
        prompt_tokens += MEDIA_TOKENS * found.media
        lane = self._lane(shape, headers, tenant, prompt_tokens)
        embeds = path.endswith("/embeddings")
        choices = choices_of(shape, extra, found, lane, embeds)
        if extra is not None:
            keep_bounds(shape, extra, lane)
        streams = shape.stream is True
        stream = streams and not embeds
        allowance = None
        if not embeds:
            asked = _asked(shape, extra, body, responds)
            same = same and shape.max_output_tokens is None
            chat = responds or path == CHAT
            task = headers.get("x-headgate-task") or (None if alias is None else alias.task)
            allowance = self._intake.allow(asked, task, tenant, lane, prompt_tokens, chat)
            if responds:
                cap(allowance, body)
            else:
                same = not apply(allowance, body, choices) and same
            if extra is not None and allowance.tokens is not None:
                for name in extra.least:
                    body[name] = min(body[name], allowance.tokens)
                    same = False
        session = headers.get("x-headgate-session") or shape.user
        if session is not None and len(session) > LONGEST_SESSION:
            session = session[:LONGEST_SESSION]
        chosen = None
        if models is not None:
            task = headers.get("x-headgate-task") or (tenant.task if alias is None else alias.task)
            task = task or (CHAT_TASK if responds or path == CHAT else "")
            chosen = models.choose(model, body, headers, tenant, task, prompt_tokens, exchange.request_id, session)
            if chosen is not None:
                exchange.renames = exchange.renames or Naming(model)
                model = body["model"] = chosen.model
                same = False
        if chosen is None and self.names is not None:
            self.names.refuse_unknown(model)
        request = self._intake.request(
            id=exchange.request_id,
            arrived=exchange.received_at,
            model=model,
            lane=lane,
            priority=self._priority(shape, headers, tenant, lane),
            tenant=tenant,
            name=tenant.name,
            prompt_tokens=prompt_tokens,
            allowed=None if allowance is None else allowance.tokens,
            stream=stream,
            choices=choices,
            prefix=found.chain,
            session=session,
            unfit=self.abilities.unfit(path, model) if embeds or responds else NOBODY,
            fallback=() if chosen is None or embeds or responds else tuple([other for _, other in chosen.others]),
            pinned=chosen is not None and chosen.pinned,
        )
        wants_usage = shape.stream_options is not None and shape.stream_options.include_usage is True
        if streams and not stream:
            del body["stream"]
            same = False
        elif stream and not wants_usage and not responds:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
            same = False
        encoded = exchange.body if same else b""
        wants_usage = wants_usage or exchange.voice is not None
        prompt_bytes = 0 if found.tokens or found.media else found.size
        accepted = Accepted(request, body, encoded, path, tenant, wants_usage, prompt_bytes, opened, allowance, chosen)
        if long:
            accepted.lighten()
        return accepted

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
        alias = self._intake.output.alias(name)
        if alias is not None and alias.model is not None and (models is None or not models.knows(name)):
            name = alias.model
        return (name,) if models is None else models.reach(name)

    def _respond(self, exchange: Exchange, given: object) -> tuple[str, dict[str, Any]]:
        """Path and body to send for a /v1/responses request: /v1/responses, if all replicas of its models have it;
        otherwise a chat, if a chat can express the request; if not, /v1/responses at the replicas that have it."""
        if isinstance(given, dict):
            made_whole(given)
        body = read(given)
        if isinstance(body["input"], list):
            self._bound("input", len(body["input"]))
        names = self._reached(body.get("model", ""))
        if not self.abilities.all_respond(names):
            try:
                chat = as_chat(body)
            except Untold as untold:
                self._must_respond(names, *untold.args)
            else:
                # The input is in the chat.
                echoed = {name: value for name, value in body.items() if name != "input"}
                if len(exchange.body) > LONG_BYTES:
                    echoed = lightened(echoed)
                exchange.voice = Translated(echoed, exchange.request_id)
                return CHAT, chat
        exchange.voice = Native()
        return RESPONSES, body

    def _must_respond(self, names: tuple[str, ...], field: str, why: str) -> None:
        """Raises InvalidRequest if one of these models has no replica with /v1/responses."""
        try:
            for name in names:
                self.abilities.unfit(RESPONSES, name)
        except NotOffered as error:
            raise InvalidRequest(f"{field}: {why}, and {error.message}", param=field) from None

    def learn(self, accepted: Accepted, prompt_tokens: int, output_tokens: int) -> None:
        """Learns prompt and answer sizes from the usage that the replica counted."""
        request, chosen = accepted.request, accepted.chosen
        model = request.model if chosen is None else chosen.name
        self._intake.learn(request, model, accepted.opened, accepted.prompt_bytes, prompt_tokens, output_tokens)

    def _bound(self, field: str, count: int) -> None:
        """Raises InvalidRequest if a conversation has more items than limits.messages."""
        most = self._limits.messages
        if count > most:
            raise InvalidRequest(f"{field} has {count} items, at most {most} are taken", param=field)

    def _lane(self, shape: ChatFields, headers: dict[str, str], tenant: Tenant, prompt_tokens: int) -> Lane:
        named = (headers.get("x-headgate-lane") or shape.lane) if tenant.trusted else None
        return self._intake.lane(named, tenant, prompt_tokens, shape.stream is True, shape.service_tier == "flex")

    def _priority(self, shape: ChatFields, headers: dict[str, str], tenant: Tenant, lane: Lane) -> int:
        """The priority that a trusted client names, from -100 to 100; the lane's for all others, which would name the
        best."""
        if tenant.trusted:
            if shape.priority is not None:
                return max(-100, min(100, shape.priority))
            named = headers.get("x-headgate-priority", "")
            if re.fullmatch(r"-?[0-9]{1,6}", named):
                return max(-100, min(100, int(named)))
        return lane.priority


def _asked(shape: ChatFields, extra: Extra | None, body: dict[str, Any], responds: bool) -> int | None:
    """Output tokens that the client asks for, the least if it uses several field names; None: it does not say. Field
    names of other APIs are removed from the body."""
    asked = shape.max_completion_tokens if shape.max_completion_tokens is not None else shape.max_tokens
    other = shape.max_output_tokens
    if other is None and extra is None and not responds:
        return asked
    if responds and asked is not None:
        for name in ("max_tokens", "max_completion_tokens"):
            body.pop(name, None)
    elif not responds and other is not None:
        del body["max_output_tokens"]
    for more in (other, None if extra is None else extra.asked):
        if more is not None and (asked is None or more < asked):
            asked = more
    return asked


def _opened(body: dict[str, Any]) -> bool:
    """Whether the conversation begins with a system message."""
    messages = body.get("messages")
    if not messages:
        return "instructions" in body
    first: Any = messages[0]
    return bool(first.get("role") in ("system", "developer"))
