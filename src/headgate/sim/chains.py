"""Makes the chains of block hashes for a workload's arrivals, which tell equal beginnings of prompts.

The engine hashes tokens; a workload only names which blocks of a prompt equal which others. The chain is made from
those ids directly: equal ids from the start on give equal links; any other link belongs to one arrival only.
"""

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
        named = arrival.prompt_tokens + (output if arrival.turn else 0)  # the next turn begins with this one's answer
        for block in arrival.prefix[: -(-named // BLOCK_TOKENS)]:
            digest = blake2b(block.to_bytes(16, "big", signed=True), digest_size=16, key=digest).digest()
            chain += [digest + part for part in _NUMBERS[:each]]
        del chain[named // block_tokens :]
    own = number.to_bytes(8, "big")
    chain += [own + part for part in _NUMBERS[len(chain) : links]]
    return chain
