"""Makes the chains of block hashes for a workload's arrivals, which tell equal beginnings of prompts.

The engine hashes tokens; a workload only names which blocks of a prompt equal which others. The chain is made from
those ids directly: equal ids from the start on give equal links; any other link belongs to one arrival only.
"""

from collections import OrderedDict
from hashlib import blake2b

from headgate.workload.arrival import BLOCK_TOKENS, Arrival

_NUMBERS: list[bytes] = []
"""Three bytes for each number; extended as needed."""


def chain_of(arrival: Arrival, number: int, block_tokens: int, output: int = 0) -> list[bytes]:
    """Returns a link for each full block of the prompt, and of the answer to come: an existing link need not be hashed.
    `number` tells this arrival's own text from that of all others."""
    links = (max(1, arrival.prompt_tokens) + output) // block_tokens
    while len(_NUMBERS) < max(links, BLOCK_TOKENS):
        _NUMBERS.append(len(_NUMBERS).to_bytes(3, "big"))
    chain: list[bytes] = []
    if arrival.prefix and BLOCK_TOKENS % block_tokens == 0:
        each, digest = BLOCK_TOKENS // block_tokens, b""
        for block in arrival.prefix[: -(-arrival.prompt_tokens // BLOCK_TOKENS)]:
            digest = blake2b(block.to_bytes(16, "big", signed=True), digest_size=16, key=digest).digest()
            chain += [digest + part for part in _NUMBERS[:each]]
        del chain[arrival.prompt_tokens // block_tokens :]
    own = number.to_bytes(8, "big")
    chain += [own + part for part in _NUMBERS[len(chain) : links]]
    return chain


class KnownBlocks:
    """The beginnings of prompts that a replica remembers, those used last; a cache without memory of its own."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        """Maximum blocks."""
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()
        """Position and id of each block."""

    @property
    def tokens(self) -> int:
        return len(self._known) * BLOCK_TOKENS

    def cached(self, prefix: tuple[int, ...]) -> int:
        """Returns the tokens of this beginning that are remembered."""
        known = self._known
        for place, block in enumerate(prefix):
            if (place, block) not in known:
                return place * BLOCK_TOKENS
            known.move_to_end((place, block))
        return len(prefix) * BLOCK_TOKENS

    def remember(self, prefix: tuple[int, ...]) -> None:
        known = self._known
        for key in enumerate(prefix):
            known[key] = None
        while len(known) > self._most:
            known.popitem(last=False)
