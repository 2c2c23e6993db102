"""Converts between text and tokens with the tokenizer.json of a model's folder."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from headgate.engine.runner.emulated_tokenizer import EmulatedTokenizer
from headgate.engine.runner.tokenizer import CHATML, Tokenizer, compile_template
from headgate.model.clock import Clock, wall
from headgate.model.errors import InvalidRequest, StartupError

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class FolderTokenizer(Tokenizer):
    """The `tokenizers` library in place of llama.cpp; chats are rendered as by the parent."""

    def __init__(
        self,
        folder: Path,
        vocabulary: int,
        *,
        ends: frozenset[int],
        template: str | None = None,
        clock: Clock = wall,
    ) -> None:
        """`vocabulary`: the tokens that the model can draw, of which many a model has more than its tokenizer. `ends`:
        the tokens that end a generation; empty: the one that the folder's tokenizer_config.json names."""
        from tokenizers import Tokenizer as Coder

        path = folder / "tokenizer.json"
        try:
            self._coder = Coder.from_file(str(path))
            self._plain = Coder.from_file(str(path))
        except Exception as error:  # the library's own, which has no type
            raise StartupError(f"can't read {path} ({error}); fetch the model again") from error
        self._plain.encode_special_tokens = True
        config = _config(folder)
        self.n_vocab = vocabulary
        named = {name: _name(config.get(name)) for name in ("bos_token", "eos_token")}
        self._names = named
        end = self._coder.token_to_id(named["eos_token"]) if named["eos_token"] else None
        self.eog = ends or frozenset([] if end is None else [end])
        begin = self._coder.token_to_id(named["bos_token"]) if named["bos_token"] else None
        # What the tokenizer's own post-processing puts first, whatever its config says.
        self.bos = begin if begin is not None and self._coder.encode("").ids[:1] == [begin] else None
        self._special = {
            token: added.content for token, added in self._coder.get_added_tokens_decoder().items() if added.special
        }
        self._as_bytes = _byte_level() if _is_byte_level(path) else None
        self._pieces = [None] * self.n_vocab
        self.template = template or _template(folder, config) or CHATML
        self._template = compile_template(self.template, clock)

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        coder = self._coder if special else self._plain
        try:
            tokens: list[int] = coder.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        except Exception as error:
            raise InvalidRequest("the text can't be tokenized", param="prompt") from error
        return self._begun(tokens) if bos else tokens

    def _spell(self, token: int, *, special: bool) -> bytes:
        if token in self._special:
            return self._special[token].encode() if special else b""
        said: str | None = self._coder.id_to_token(token)
        if said is None:
            return b""
        if self._as_bytes is not None:
            known = self._as_bytes
            return b"".join([known[sign] if sign in known else sign.encode() for sign in said])
        byte = _BYTE.fullmatch(said)
        return bytes([int(byte[1], 16)]) if byte else said.replace("▁", " ").encode()

    @cached_property
    def _control(self) -> re.Pattern[str]:
        names = sorted(self._special.values(), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")


class PlaceholderTokenizer(EmulatedTokenizer):
    """Stands in where the folder has no tokenizer, as with random weights: tokens are words that mean nothing."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.n_vocab = vocabulary

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        return [token % self.n_vocab for token in super().encode(text, special=special, bos=bos)]

    def encode_chat(self, *given: Any, **settings: Any) -> list[int]:
        return [token % self.n_vocab for token in super().encode_chat(*given, **settings)]


def tokenizer_in(
    folder: Path, vocabulary: int, ends: frozenset[int], template: str | None
) -> FolderTokenizer | PlaceholderTokenizer:
    if (folder / "tokenizer.json").is_file():
        return FolderTokenizer(folder, vocabulary, ends=ends, template=template)
    return PlaceholderTokenizer(vocabulary)


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        said = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"can't read {path} ({error}); fetch the model again") from error
    return said if isinstance(said, dict) else {}


def _name(said: Any) -> str:
    """A token's text, given as such or as the description of an added token."""
    text = said.get("content") if isinstance(said, dict) else said
    return text if isinstance(text, str) else ""


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        said = config.get("chat_template")
        return said if isinstance(said, str) else None


def _is_byte_level(path: Path) -> bool:
    return b'"ByteLevel"' in path.read_bytes()


def _byte_level() -> dict[str, bytes]:
    """GPT-2's signs for bytes: printable ones stand for themselves, the others for what comes after 255, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    signs = {chr(byte): bytes([byte]) for byte in printable}
    return signs | {chr(256 + at): bytes([byte]) for at, byte in enumerate(others)}
