"""Detects a replica's kind of engine, once, when it first answers, from what the engine says about itself.

Nearly all engines sign their list of models. An engine that does not, or whose list was changed by a proxy, is asked
for what only one kind has; an engine that still can't be told is treated as a plain OpenAI server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from headgate.model.dialect import DIALECTS
from headgate.model.errors import ReplicaFailed

MOST_BYTES: Final = 1 << 20
"""Bytes of an answer that are looked at."""

MOST_CARDS: Final = 1024
"""Maximum models that one replica may list; more are not read."""
LONGEST_NAME: Final = 512
"""Maximum characters of a model's name; a longer one is left out."""
MOST_CONTEXT: Final = 1_000_000_000
"""Maximum context in tokens; a larger number is nonsense."""

GATEWAY: Final = "headgate"
"""What a gateway calls itself in its list of models, whose owners are those that its replicas name."""

Get = Callable[[str], Awaitable[tuple[int, bytes]]]


class Card(msgspec.Struct):
    """A model or an adapter in a list of models, with the fields that engines agree on."""

    id: str
    owned_by: Any = None
    parent: Any = None
    """The model that an adapter is for; None: not an adapter."""
    max_model_len: Any = None
    created: Any = None
    served_by: Any = None
    """`headgate` where a gateway like this one lists the models of its replicas."""

    @property
    def context(self) -> int | None:
        """The longest sequence that the model takes, in tokens; None: not stated, or not plausible."""
        length = self.max_model_len
        return length if type(length) is int and 0 < length <= MOST_CONTEXT else None

    @property
    def is_adapter(self) -> bool:
        return isinstance(self.parent, str) and self.parent != self.id


class Cards(msgspec.Struct):
    data: list[Card]


def read_cards(body: bytes) -> list[Card]:
    """The models in a list of models; empty: the body is no such list."""
    try:
        cards = msgspec.json.decode(body, type=Cards).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [card for card in cards[:MOST_CARDS] if 0 < len(card.id) <= LONGEST_NAME]


async def detect(cards: list[Card], get: Get) -> str:
    """`get` may raise ReplicaFailed, TimeoutError or OSError."""
    return kind_by_cards(cards) or await _by_its_own(get)


def kind_by_cards(cards: list[Card]) -> str | None:
    for card in cards:
        if card.served_by == GATEWAY or (card.owned_by == "headgate" and card.max_model_len is None):
            return "openai"  # a gateway like this one, or its last version, with promises of its own
        owner = str(card.owned_by).removesuffix("-emulated")
        for dialect in DIALECTS.values():
            if dialect.owned_by is not None and owner == dialect.owned_by:
                return dialect.kind
    return None


async def _by_its_own(get: Get) -> str:
    info, props, metrics = await asyncio.gather(_ask(get, "/info"), _ask(get, "/props"), _ask(get, "/metrics"))
    about = _fields(info)
    if "model_id" in about and ("router" in about or "max_total_tokens" in about):
        return "tgi"
    if "total_slots" in _fields(props):
        return "llama_cpp"
    for dialect in DIALECTS.values():
        if dialect.prefix is not None and f"\n{dialect.prefix}".encode() in b"\n" + metrics:
            return dialect.kind
    return "openai"


async def _ask(get: Get, path: str) -> bytes:
    """The body at this path; empty: there is none."""
    try:
        status, body = await get(path)
    except (ReplicaFailed, TimeoutError, OSError):
        return b""
    return body[:MOST_BYTES] if status == 200 else b""


def _fields(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
