"""Converts between text and tokens for an engine without a model.

Every four bytes are a token, so that the same beginning of a text gives the same tokens and prefixes are found in the
cache. The output is words of three letters with a space before them: four bytes again, so that a reply that comes back
in the next turn's messages is made of the very tokens that were generated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.engine.runner.tokenizer import Message, normalised

VOCABULARY = 128_256
"""Tokens in the vocabulary, as in Llama 3."""
_START, _END, _RESERVED = 0, 1, 16
_MIX = 2_654_435_761

SAID = (
    " the and for are but not you all any can had her was one our out day get has him his how man new now old see two"
    " way who boy did its let put say she too use act add age ago aid aim air ant arm art ask ate bag bar bat bay bed"
    " bee bet big bit bow box bus buy cab cap car cat cot cow cry cup cut den dig dip dog dot dry due ear eat egg elm"
    " end eye fan far fat few fig fin fit fix flu fly fog fox fun fur gap gas gem gum hat hay hen hid hip hit hop hot"
    " hug hut ice ink inn ivy jam jar jaw jet job jog joy key kid kin kit lab lad lap law lay leg lid lie lip log lot"
    " low map mat may mix mud mug nap net nod nor nut oak oar oat odd off oil orb ore own owl pad pan paw pea pen pet"
    " pie pig pin pit pot pub ram ran rat raw ray red rib rid rim rip rob rod row rub rug run rye sad sat saw sea set"
    " sew shy sip sir sit six ski sky son sow spa sum sun tan tap tar tax tea ten tie tin tip toe ton top toy try tub"
    " tug van vat vet vow wag war wax web wet why wig win wit woe yak yam yes yet zip zoo"
)
"""The text that output is taken from, four bytes at a time."""


def _ids(data: bytes) -> list[int]:
    if rest := -len(data) % 4:
        data += b"\0" * rest
    # Not numpy: its overhead on a short text is a hundred times this, on a long one it gains little.
    return [(four * _MIX >> 13) % (VOCABULARY - _RESERVED) + _RESERVED for four in memoryview(data).cast("I")]


class EmulatedTokenizer:
    """Stands in for `tokenizer.Tokenizer`; llama.cpp is not loaded."""

    n_vocab = VOCABULARY
    eog: frozenset[int] = frozenset()
    """No token ends a generation: it lasts until its maximum length or a stop string."""
    bos: int | None = None
    template = "{{ messages }}{{ tools }}"
    """Tools count as part of the prompt; the output is never a call."""

    def __init__(self) -> None:
        self.words = _ids(SAID.encode())
        """The tokens that are generated."""
        self._spelled = [SAID[at : at + 4].encode() for at in range(0, len(SAID), 4)]
        self._pieces = dict(zip(self.words, self._spelled, strict=True))

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        return _ids(text.encode("utf-8", "replace"))

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        return self._spelled[token % len(self._spelled)] if known is None else known

    def spelling(self, token: int) -> bytes:
        return self.piece(token)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Returns each message as a start, its role, its text and an end. Tools come first."""
        tokens: list[int] = []
        if tools:
            tokens += [_START, *_ids(msgspec.json.encode(list(tools))), _END]
        for message in normalised(messages):
            tokens += [_START, *_ids(message["role"].encode("utf-8", "replace"))]
            tokens += _ids(message["content"].encode("utf-8", "replace"))
            if message.get("tool_calls"):
                tokens += _ids(msgspec.json.encode(message["tool_calls"]))
            tokens.append(_END)
        if continue_final_message:
            return tokens[:-1]
        return [*tokens, _START, *_ids(b"assistant")] if add_generation_prompt else tokens
