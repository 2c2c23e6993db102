"""What text may be sent now? Tokens are bytes: half a character, or half a stop string, has to wait."""

import codecs
from collections.abc import Sequence


class TextStream:
    """One sequence's output as text. Whatever the borders between tokens, what comes out is the text up
    to the stop string that is complete first (of several complete at once, the longest)."""

    def __init__(self, stops: Sequence[str] = (), free: int = 0) -> None:
        """`free`: tokens at the beginning in which no stop string is looked for."""
        self.stopped: str | None = None
        """The stop string that was hit. It is not part of the text, and nothing comes after it."""
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._free = free

    def push(self, piece: bytes) -> str:
        """Take a token's bytes; return the text that may be sent. Invalid bytes become U+FFFD."""
        if self._free > 0:
            self._free -= 1
            return self._decoder.decode(piece)
        return self._advance(self._decoder.decode(piece))

    def finish(self) -> str:
        """No more tokens: return what was held back."""
        text = self._advance(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _advance(self, new: str) -> str:
        if self.stopped is not None:
            return ""
        text = self._held + new
        hits = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if hits:
            _, start, self.stopped = min(hits)
            self._held = ""
            return text[:start]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        sent = len(text) - keep
        self._held = text[sent:]
        return text[:sent]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` could be the beginning of `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
