"""Measures the prompt of a request, and hashes it block by block, so that equal beginnings of prompts are found.

Pictures, sounds and files in base64 are not text: their bytes say nothing about their tokens. Each counts as
MEDIA_TOKENS, and only its length and its end go into the hash.
"""

from hashlib import blake2b
from typing import Any, Final

import msgspec

from headgate.gateway.intake.abilities import RESPONSES
from headgate.gateway.intake.fields import ChatFields
from headgate.model.errors import InvalidRequest

BLOCK_BYTES: Final = 512
"""Bytes of the prompt in a block, about 128 tokens. Of smaller ones more would have to be remembered, larger ones miss
more of what two prompts share: half a block on average."""
MOST_LINKS: Final = 4096
"""Maximum blocks that are hashed, of 2 MiB: what comes later is taken for new text."""
LINK_BYTES: Final = 16
MOST_ID: Final = 2**31 - 1
"""Largest token id: engines keep ids in 32 bits."""
MEDIA_TOKENS: Final = 85
"""Tokens counted for a picture, a sound or a file: what OpenAI charges for a small picture."""
MEDIA: Final = frozenset((
    "image_url", "image", "input_image", "image_embeds", "input_audio", "audio", "audio_url", "video", "video_url",
    "input_video", "file", "input_file", "computer_screenshot", "image_generation_call",
))  # fmt: skip
"""Types of message parts that are not text, over all dialects."""
DATA: Final = frozenset((
    "url", "data", "file_data", "b64_json", "result", "image_url", "image", "image_embeds", "audio", "audio_url",
    "video", "video_url",
))  # fmt: skip
"""Fields of such a part that hold data. Its other fields count as text, so that no text can be hidden there."""
TAIL: Final = 32
"""Characters at the end of the data that tell one picture from another."""
LONG_TEXT: Final = 256
"""Characters above which the value of a DATA field is shortened; up to that length it counts as text."""

MOST_SEEDS: Final = 256
"""Maximum models whose seed is kept: names come from clients."""

_encode = msgspec.json.Encoder().encode
_SEEDS: dict[str, bytes] = {}


class PromptFound:
    """The prompt of a body, measured."""

    __slots__ = ("_parts", "media", "opened", "prompts", "size", "tokens")

    def __init__(self, parts: list[bytes], size: int, media: int, prompts: int, tokens: int, opened: bool) -> None:
        self._parts = parts
        """The prompt's text as JSON, in the order in which the engine sees it: tools, then the messages."""
        self.size = size
        """Bytes of the text, as JSON."""
        self.media = media
        """Number of pictures, sounds and files."""
        self.prompts = prompts
        """Number of prompts, each of which gets its own answer."""
        self.tokens = tokens
        """Number of token ids, if the prompt came as ids; 0: it came as text."""
        self.opened = opened
        """Whether the conversation begins with a system message."""

    @property
    def text_bytes(self) -> int:
        """Bytes of the text; 0: the prompt has token ids or media, so its tokens say nothing about text."""
        return 0 if self.tokens or self.media else self.size

    def chain(self, model: str, salt: object, prompt_tokens: int) -> tuple[tuple[bytes, ...], float]:
        """The hash of each block of the prompt and of all before it, and the tokens of one block, of a prompt with this
        many. `model`: the model, or adapter, that it is for. `salt`: the client's `cache_salt`: prompts with different
        ones share no cache. The text is not kept: this can be called once."""
        parts, self._parts = self._parts, []
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        digest = _seed(model, salt)
        links: list[bytes] = []
        for start in range(0, min(len(whole), MOST_LINKS * BLOCK_BYTES), BLOCK_BYTES):
            digest = blake2b(digest + whole[start : start + BLOCK_BYTES], digest_size=LINK_BYTES).digest()
            links.append(digest)
        return tuple(links), prompt_tokens * BLOCK_BYTES / max(1, len(whole))


def _seed(model: str, salt: object) -> bytes:
    """The digest before the first block of a prompt for this model. Kept for models without a salt: nearly all requests
    are for a few of them."""
    known = _SEEDS.get(model) if not salt else None
    if known is None:
        known = blake2b(f"{model}\0{salt or ''}".encode("utf-8", "surrogatepass"), digest_size=LINK_BYTES).digest()
        if not salt:
            if len(_SEEDS) >= MOST_SEEDS:
                _SEEDS.clear()
            _SEEDS[model] = known
    return known


def found_in(shape: ChatFields, path: str, body: dict[str, Any]) -> PromptFound:
    """Measures the prompt of a body. Raises InvalidRequest if it is empty or malformed."""
    prompts, tokens = 1, 0
    if path.endswith("/chat/completions"):
        if not shape.messages:
            raise InvalidRequest("messages must be a list of at least one message", param="messages")
        messages: list[Any] = shape.messages
    elif path == RESPONSES:
        messages = _parts(body)
    else:
        name = "input" if path.endswith("/embeddings") else "prompt"
        whole = shape.input if name == "input" else shape.prompt
        if whole is None or whole == []:
            raise InvalidRequest(f"{name} must not be empty", param=name)
        messages = [whole]
        if isinstance(whole, list):
            prompts, tokens = _listed(whole, name)
    tools = shape.tools if messages is shape.messages or path == RESPONSES else None
    encoded_parts = [_encode(tools)] if tools else []
    size, media = 0, 0
    for part in messages:
        plain = part
        if isinstance(part, dict) and (not isinstance(part.get("content"), str) or "output" in part or "type" in part):
            plain, count = _without_media(part)
            media += count
        encoded = _encode(plain)
        size += len(encoded)
        encoded_parts.append(encoded)
    return PromptFound(encoded_parts, size, media, prompts, tokens, _opened(body))


def _opened(body: dict[str, Any]) -> bool:
    """Whether the conversation begins with a system message."""
    messages = body.get("messages")
    if not messages:
        return "instructions" in body
    first: Any = messages[0]
    return bool(first.get("role") in ("system", "developer"))


def _parts(body: dict[str, Any]) -> list[Any]:
    """The conversation of a /v1/responses body, message by message."""
    first = [body["instructions"]] if "instructions" in body else []
    asked = body["input"]
    return [*first, *(asked if isinstance(asked, list) else [asked])]


def _listed(whole: list[Any], name: str) -> tuple[int, int]:
    """Number of prompts in a list, and number of token ids (0: the list holds text). Raises InvalidRequest."""
    kinds = set(map(type, whole))
    if kinds == {str}:
        return len(whole), 0
    if kinds == {int}:
        _in_range(min(whole), max(whole), name)
        return 1, len(whole)
    if kinds == {list} and all(set(map(type, ids)) == {int} for ids in whole):
        _in_range(min(map(min, whole)), max(map(max, whole)), name)
        return len(whole), sum(map(len, whole))
    wanted = "text, a list of texts, token ids, or a list of lists of token ids, none of them empty"
    raise InvalidRequest(f"{name} must be {wanted}", param=name)


def _in_range(least: Any, most: Any, name: str) -> None:
    """Raises InvalidRequest if a token id is out of range. Only the engine knows which ids its model has."""
    if least < 0 or most > MOST_ID:
        wrong = least if least < 0 else most  # at most 19 digits: longer numbers are not parsed
        raise InvalidRequest(f"{name} must hold token ids from 0 to {MOST_ID}, got {wrong}", param=name)


# -- what is not text -----------------------------------------------------------------------------------------


def _without_media(message: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The message with its media shortened, and the number of media; the same object if there are none."""
    count = 0
    for name in ("content", "output"):
        inner = message.get(name)
        if isinstance(inner, list):
            found = 0
            for part in inner:
                found += _is_media(part)
            if found:
                plain = [_short(part) if _is_media(part) else part for part in inner]
                message, count = {**message, name: plain}, count + found
        elif isinstance(inner, dict) and _is_media(inner):
            message, count = {**message, name: _short(inner)}, count + 1
    return (_short(message), count + 1) if "type" in message and _is_media(message) else (message, count)


def _is_media(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if kind is None:  # some engines go by the fields instead
        return not MEDIA.isdisjoint(part)
    return isinstance(kind, str) and kind in MEDIA


def _short(part: dict[str, Any]) -> dict[str, Any]:
    """The part with its data replaced by length and end; its other fields stay."""
    return {name: _told(name, value) for name, value in part.items()}


def _told(name: str, value: Any) -> Any:
    if isinstance(value, str) and name in DATA and len(value) > LONG_TEXT:
        return [len(value), value[-TAIL:]]
    if isinstance(value, dict) and name in MEDIA:
        return {inner: _told(inner, what) for inner, what in value.items()}
    return value
