"""Finds who asks, by its API key, and checks what may be asked: the fields of a request against OpenAI's documented
ranges, the lane's limits, and the fields that only trusted keys may send, because they steer the engine itself.

Only the SHA-256 of a key is stored.

A guarded field from an untrusted key is refused by name, not dropped: a client that sends `lora_path` and gets the
model without it would believe the wrong thing. The gateway's own fields (lane, priority and targets) are dropped:
clients of vLLM send a priority, and are served without it. All other unknown fields pass through.
"""

import hashlib
from math import inf
from typing import Any, Final

from headgate.config.gateway import Tenant
from headgate.config.output import AliasConfig
from headgate.gateway.intake.abilities import CHAT, RESPONSES
from headgate.gateway.intake.fields import INTEGERS, LONGEST_STOP, ChatFields
from headgate.gateway.intake.models import Chosen
from headgate.gateway.intake.prompt import PromptFound
from headgate.model.dialect import Ranges
from headgate.model.errors import InvalidRequest, Unauthorized
from headgate.model.labels import plain
from headgate.model.lane import Lane
from headgate.replica.fields import CHOICES, DROPPED, ENTRIES, GUARDED, GUARDS, LEAST, LENGTH, LOGPROBS, SPECIAL
from headgate.wire.body import json
from headgate.wire.exchange import Exchange
from headgate.wire.origin import key_in

MOST_BEST_OF: Final = 20
"""OpenAI's maximum for best_of."""
LARGEST: Final = float(1 << 62)
"""Absolute value above which a float is not accepted as a whole number."""


class Identities:
    def __init__(self, tenants: tuple[Tenant, ...], anonymous: Tenant) -> None:
        self._by_digest = {bytes.fromhex(key): tenant for tenant in tenants for key in tenant.key_sha256}
        self._anonymous = anonymous

    @property
    def keyed(self) -> bool:
        """Whether a key is needed for every request."""
        return not self._anonymous.allowed

    @property
    def several(self) -> bool:
        """Whether any tenant has keys."""
        return bool(self._by_digest)

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name; None: there is none that is served."""
        return next((t for t in (self._anonymous, *self._by_digest.values()) if t.name == name and t.allowed), None)

    def of(self, headers: dict[str, str]) -> Tenant:
        """The tenant of a request. Raises Unauthorized if a needed key is missing, and for an unknown key wherever
        tenants have keys, even if none is needed: its client expects to be served as a tenant."""
        key = key_in(headers)
        if key and self._by_digest:
            # Looked up by digest: the time depends on the digest only, which does not reveal the key.
            tenant = self._by_digest.get(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest())
            if tenant is None or not tenant.allowed:
                raise Unauthorized("this API key is not known here")
            return tenant
        if not self._anonymous.allowed:
            raise Unauthorized("an API key is needed: send it as 'Authorization: Bearer KEY'")
        return self._anonymous


class Extra:
    """Values of the fields outside OpenAI's API, and of those that a lane limits."""

    __slots__ = ("asked", "changed", "choices", "entries", "least", "logprobs")

    def __init__(self) -> None:
        self.asked: int | None = None
        """Output tokens that an engine's own fields ask for, the least of them; None: they do not say."""
        self.choices = 0
        self.least: list[str] = []
        """Fields that ask for a minimum number of output tokens."""
        self.logprobs: tuple[str, int] | None = None
        """The field with the largest number of logprobs, and the number; None: no such field."""
        self.entries: tuple[str, int] | None = None
        """The field with the most entries, and their number; None: no such field."""
        self.changed = False
        """Whether the body has been changed."""


def sift(body: dict[str, Any], trusted: bool, open_fields: frozenset[str]) -> Extra | None:
    """Looks at each field once and removes those that are null, which means not given. None: no field is null or
    special. Raises InvalidRequest."""
    found: list[str] | None = None
    for name, value in body.items():
        if value is None or name in SPECIAL:
            if found is None:
                found = []
            found.append(name)
    if found is None:
        return None
    extra = Extra()
    for name in found:
        value = body[name]
        if value is None:
            del body[name]
            extra.changed = True
            continue
        kind = SPECIAL[name]
        if kind == DROPPED:
            if not trusted:
                del body[name]
                extra.changed = True
        elif kind == GUARDED:
            if not trusted and name not in open_fields:
                _refuse_guarded(name)
        elif kind == LENGTH:
            number = whole(name, value)
            del body[name]
            extra.changed = True
            if number > 0:  # 0 or less means unlimited, the same as not given
                extra.asked = number if extra.asked is None else min(extra.asked, number)
        elif kind == LEAST:
            body[name] = whole(name, value)
            extra.least.append(name)
            extra.changed = True
        elif kind == CHOICES:
            body[name] = number = whole(name, value)
            if name == "best_of":
                _within(name, number, 0, MOST_BEST_OF)
            else:
                _at_least(name, number, 1)
            extra.choices = max(extra.choices, number)
            extra.changed = True
        elif kind == LOGPROBS:
            body[name] = number = _at_least(name, whole(name, value), 0)
            extra.changed = True
            if extra.logprobs is None or number > extra.logprobs[1]:
                extra.logprobs = (name, number)
        elif kind == ENTRIES and isinstance(value, list | dict):
            entries = _entries(value)
            if extra.entries is None or entries > extra.entries[1]:
                extra.entries = (name, entries)
    return extra


def _entries(value: Any) -> int:
    """Number of scalars at any depth; an empty list or object counts as one."""
    found = 0
    waiting: list[Any] = [value]
    while waiting:
        node = waiting.pop()
        within = [one for one in (node.values() if isinstance(node, dict) else node) if isinstance(one, list | dict)]
        found += (len(node) - len(within)) or not within
        waiting += within
    return found


def _refuse_guarded(name: str) -> None:
    raise InvalidRequest(
        f"{name}: only trusted keys may send it, since it steers the engine itself ({GUARDS[name]}); leave it out, or "
        "have the operator trust this key (tenants.NAME.trusted) or open it to all (limits.open_fields)",
        param=name,
    )


def whole(name: str, value: object) -> int:
    """A whole number, which may be written as 100.0. Raises InvalidRequest."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be a whole number", param=name)
    return value


def asked_in(shape: ChatFields, extra: Extra | None, body: dict[str, Any], responds: bool) -> int | None:
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


def bound(field: str, count: int, most: int) -> None:
    """Raises InvalidRequest if a conversation has more items than `most` (limits.messages)."""
    if count > most:
        raise InvalidRequest(f"{field} has {count} items, at most {most} are taken", param=field)


def _at_least(name: str, number: int, least: int) -> int:
    if number < least:
        raise InvalidRequest(f"{name} must be at least {least}, got {number}", param=name)
    return number


# -- what a lane allows -----------------------------------------------------------------------------------------


def choices_of(shape: ChatFields, extra: Extra | None, found: PromptFound, lane: Lane, embeds: bool) -> int:
    """Number of answers that the request asks for; each is a sequence in the engine. Raises InvalidRequest above the
    lane's limit."""
    if embeds:
        if found.prompts > lane.inputs_limit:
            _refuse("input", f"{found.prompts} texts", lane, "inputs_limit", lane.inputs_limit)
        return 1
    each = shape.n or 1
    if extra is not None and extra.choices > each:
        each = extra.choices
    choices = each * found.prompts
    if choices > lane.choices_limit:
        what = f"{choices} answers" if found.prompts == 1 else f"{found.prompts} prompts × {each} answers"
        _refuse("n" if found.prompts == 1 else "prompt", what, lane, "choices_limit", lane.choices_limit)
    return choices


def keep_bounds(shape: ChatFields, extra: Extra, lane: Lane) -> None:
    """Raises InvalidRequest if the request exceeds one of the lane's limits."""
    stop, bias = shape.stop, shape.logit_bias
    if isinstance(stop, list) and len(stop) > lane.stops_limit:
        _refuse("stop", f"{len(stop)} stop sequences", lane, "stops_limit", lane.stops_limit)
    if bias is not None and len(bias) > lane.entries_limit:
        _refuse("logit_bias", f"{len(bias)} entries", lane, "entries_limit", lane.entries_limit)
    top, own = shape.top_logprobs, shape.logprobs
    if top is not None and top > lane.logprobs_limit:
        _refuse("top_logprobs", str(top), lane, "logprobs_limit", lane.logprobs_limit)
    if own is not None and own > lane.logprobs_limit:  # true, in a chat, counts as 1: the token's own
        _refuse("logprobs", str(int(own)), lane, "logprobs_limit", lane.logprobs_limit)
    if extra.entries is not None and extra.entries[1] > lane.entries_limit:
        _refuse(extra.entries[0], f"{extra.entries[1]} entries", lane, "entries_limit", lane.entries_limit)
    if extra.logprobs is not None and extra.logprobs[1] > lane.logprobs_limit:
        _refuse(extra.logprobs[0], str(extra.logprobs[1]), lane, "logprobs_limit", lane.logprobs_limit)


def _refuse(field: str, what: str, lane: Lane, setting: str, most: int) -> None:
    raise InvalidRequest(
        f"{field}: {what}, and lane {lane.name!r} allows {most} (lanes.{lane.name}.{setting})", param=field
    )


# -- what OpenAI documents --------------------------------------------------------------------------------------


def made_whole(body: dict[str, Any]) -> bool:
    """Writes 100.0 as 100 in the fields that are whole numbers. Returns whether any was changed."""
    changed = False
    for name in INTEGERS:
        value = body.get(name)
        if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
            body[name] = int(value)
            changed = True
    return changed


def looked_into(body: object, ranges: Ranges) -> ChatFields:
    """The fields of a body that is outside OpenAI's ranges, checked against the engine's. Raises InvalidRequest."""
    shape = json.convert(body, ChatFields)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "dimensions"):
        _within(name, getattr(shape, name), 1, inf)
    _within("n", shape.n, 1, ranges.n)
    _within("temperature", shape.temperature, 0, ranges.temperature)
    _within("top_p", shape.top_p, 0, 1)
    _within("presence_penalty", shape.presence_penalty, -2, 2)
    _within("frequency_penalty", shape.frequency_penalty, -2, 2)
    _within("top_logprobs", shape.top_logprobs, 0, 20)
    if not isinstance(shape.logprobs, bool):
        _within("logprobs", shape.logprobs, 0, ranges.text_logprobs)
    _check_stops(shape.stop, ranges)
    if shape.tools is not None and len(shape.tools) > ranges.tools:
        raise InvalidRequest(f"tools: at most {ranges.tools}, got {len(shape.tools)}", param="tools")
    if isinstance(shape.logit_bias, dict):
        for token, bias in shape.logit_bias.items():
            _within("logit_bias", bias, -100, 100, f" for token {token[:32]!r}")
    elif shape.logit_bias is not None:
        _check_pairs(shape.logit_bias)
    return shape


def _check_pairs(biases: list[Any]) -> None:
    """Checks logit_bias in the form of llama.cpp: [token id or text, bias or false]. Raises InvalidRequest."""
    for pair in biases:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int | str):
            raise InvalidRequest("logit_bias: as a list, it is pairs of a token and its bias", param="logit_bias")
        token, bias = pair
        if bias is not False and not isinstance(bias, int | float):
            raise InvalidRequest(
                f"logit_bias of token {str(token)[:32]!r} must be a number or false", param="logit_bias"
            )
        _within("logit_bias", bias, -100, 100, f" for token {str(token)[:32]!r}")


def _check_stops(stop: str | list[str] | None, ranges: Ranges) -> None:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > ranges.stops:
        raise InvalidRequest(f"stop: at most {ranges.stops} stop sequences, got {len(stops)}", param="stop")
    longest = max(map(len, stops), default=0)
    if longest > LONGEST_STOP:
        raise InvalidRequest(
            f"stop: a stop sequence has at most {LONGEST_STOP} characters, got {longest}", param="stop"
        )


def _within(name: str, value: float | None, least: float, most: float, where: str = "") -> None:
    if value is None or least <= value <= most:
        return
    wanted = f"at least {plain(least, 6)}" if most == inf else f"between {plain(least, 6)} and {plain(most, 6)}"
    raise InvalidRequest(f"{name} must be {wanted}, got {plain(value, 12)}{where}", param=name)


class Ask:
    """A request while it is being accepted."""

    __slots__ = ("alias", "body", "exchange", "extra", "path", "responds", "same", "shape", "tenant")

    def __init__(
        self,
        exchange: Exchange,
        tenant: Tenant,
        path: str,
        body: dict[str, Any],
        same: bool,
        shape: ChatFields,
        extra: Extra | None,
    ) -> None:
        self.exchange = exchange
        self.tenant = tenant
        self.path = path
        """The path at the replica: a response may be asked for as a chat."""
        self.body = body
        self.same = same
        """Whether the body is still what the client sent, byte for byte."""
        self.shape = shape
        self.extra = extra
        self.responds = path == RESPONSES
        self.alias: AliasConfig | None = None
        """What the config says of the name that is asked for. None: nothing."""

    @property
    def chats(self) -> bool:
        return self.responds or self.path == CHAT

    def rename(self, model: str) -> str:
        """Asks for this model."""
        self.body["model"] = model
        self.same = False
        return model


class AskOpened:
    """A request that was read, before its lane is known."""

    __slots__ = ("ask", "chosen", "found", "link_tokens", "model", "prefix", "prompt_tokens", "session")

    def __init__(
        self,
        ask: Ask,
        model: str,
        found: PromptFound,
        prompt_tokens: int,
        session: str | None,
        chosen: Chosen | None,
        prefix: tuple[bytes, ...],
        link_tokens: float,
    ) -> None:
        self.ask = ask
        self.model = model
        self.found = found
        self.prompt_tokens = prompt_tokens
        self.session = session
        self.chosen = chosen
        self.prefix = prefix
        self.link_tokens = link_tokens

    @property
    def lane_named(self) -> str | None:
        """The lane that a trusted client names. None: it names none."""
        ask = self.ask
        return (ask.exchange.headers.get("x-headgate-lane") or ask.shape.lane) if ask.tenant.trusted else None


def ask_usage(ask: Ask, embeds: bool) -> bool:
    """Has a stream end with its usage. Returns whether the client itself asked for that. Embeddings are not streamed,
    whatever the client asks for."""
    options = ask.shape.stream_options
    wanted = options is not None and options.include_usage is True
    if ask.shape.stream is True:
        if embeds:
            del ask.body["stream"]
            ask.same = False
        elif not wanted and not ask.responds:
            ask.body["stream_options"] = {**(ask.body.get("stream_options") or {}), "include_usage": True}
            ask.same = False
    return wanted
