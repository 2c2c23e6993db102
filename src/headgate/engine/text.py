"""Turns tokens into text that may be sent. Tokens are bytes: half a character, or half a stop string, has to wait."""

import codecs
from collections.abc import Sequence


class TextStream:
    """One sequence's output as text. Wherever the borders between tokens lie, the text ends before the stop string that
    is complete first; if several are complete at once, before the longest."""

    def __init__(self, stops: Sequence[str] = (), free: int = 0) -> None:
        """`free`: tokens at the beginning in which no stop string is looked for."""
        self.stopped: str | None = None
        """The stop string that was hit; None: none yet. The stop string is not part of the text, and nothing follows
        it."""
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._free = free

    def push(self, piece: bytes) -> str:
        """Takes a token's bytes and returns the text that may be sent. Invalid bytes become U+FFFD."""
        if self._free > 0:
            self._free -= 1
            return self._decoder.decode(piece)
        return self._advance(self._decoder.decode(piece))

    def finish(self) -> str:
        """Returns the text that was held back; no more tokens come."""
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
    """Returns the number of characters at the end of `text` that could begin `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
