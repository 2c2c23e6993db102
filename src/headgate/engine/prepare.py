"""Prepares a request's body for the engine, on the event loop or in the tokenizing thread."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.engine.fields import told
from headgate.engine.intake import Intake
from headgate.engine.openai import ChatBody, TextBody
from headgate.engine.speech.calls import Manner
from headgate.engine.structured import Rules
from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, ServeError
from headgate.model.sequence import Sequence
from headgate.wire.body import json
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits

log = logging.getLogger(__name__)
LIMITS = WireLimits()


@dataclass(frozen=True, slots=True)
class Prepared:
    body: ChatBody | TextBody
    sequences: list[Sequence]
    stops: tuple[str, ...]
    manner: Manner | None
    """How the model's output is read; None: all of it is text."""
    tokenize_ms: float
    rules: Rules | None
    """The form of the output, not compiled yet; None: any text."""


def prepare(
    intake: Intake, exchange: Exchange, kind: type[ChatBody] | type[TextBody], clock: Clock
) -> Prepared | ServeError:
    try:
        body: ChatBody | TextBody = json.convert(told(json.parse(exchange.body, LIMITS), kind is ChatBody), kind)
        began = clock()
        sequences, stops = intake.sequences(body, exchange.received_at)
        rules, manner = intake.rules(body), intake.manner(body, sequences)
    except ServeError as error:
        return error
    except Exception:  # any failure must reach the client, and in a thread no other code would answer it
        log.exception("a request could not be prepared")
        return EngineFailed("internal error")
    return Prepared(body, sequences, stops, manner, (clock() - began) * 1e3, rules)


def client_of(headers: Mapping[str, str], body: ChatBody | TextBody) -> str:
    """Returns the client's name, as well as it can be told: clients take turns at compiling grammars."""
    named = (body.cache_salt, body.user, headers.get("authorization"), headers.get("x-forwarded-for"))
    return next(filter(None, named), "")
