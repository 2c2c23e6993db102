"""Recovers the tokens that another replica generated before it broke off.

One text can be made of different tokens, and a model continues differently after each. The client received the text in
pieces, nearly always of one token each. Tokenized piece by piece, the text gives the very tokens that were drawn;
tokenized whole, it would give those that the tokenizer prefers.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from headgate.model.errors import InvalidRequest

MOST_PIECES: Final = 65_536


class PieceCoder(Protocol):
    @property
    def n_vocab(self) -> int: ...
    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...


def said_before(tokenizer: PieceCoder, pieces: Sequence[str]) -> list[int]:
    if len(pieces) > MOST_PIECES:
        raise InvalidRequest(f"at most {MOST_PIECES} pieces can be gone on after", param="continued")
    made = {piece: tokenizer.encode(piece) for piece in dict.fromkeys(pieces)}
    wrong = {piece for piece, tokens in made.items() if _text(tokenizer, tokens) != _data(piece)}
    several = {piece for piece, tokens in made.items() if len(tokens) > 1} | wrong
    if several:
        # Such a piece may still be one token, which the tokenizer would not choose for this text alone.
        wanted = {_data(piece): piece for piece in several}
        for token in reversed(range(tokenizer.n_vocab)):
            piece = wanted.get(tokenizer.piece(token))
            if piece is not None:
                made[piece] = [token]
                wrong.discard(piece)
    if wrong:
        raise InvalidRequest(f"no tokens of this model spell {min(wrong)!r}", param="continued")
    return [token for piece in pieces for token in made[piece]]


def _data(piece: str) -> bytes:
    return piece.encode("utf-8", "replace")


def _text(tokenizer: PieceCoder, tokens: Sequence[int]) -> bytes:
    return b"".join([tokenizer.piece(token) for token in tokens])
