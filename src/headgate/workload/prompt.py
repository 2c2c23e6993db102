"""Makes a prompt's text from words that are one token each in any common vocabulary, four bytes each.

So a prompt of n tokens has 4n characters, whichever tokenizer counts. Making it must be cheap, since a client makes
thousands a second: a few words of its own, which are enough to make it unique, and then a piece of one fixed text.
"""

import functools
import random
from hashlib import blake2b

from headgate.workload.arrival import BLOCK_TOKENS, Arrival

WORDS: list[str] = str.split(
    "act add age ago aid aim air all and any arm art ask bad bag bar bat bay bed big bit box boy bus but buy can cap "
    "car cat cup cut dad day did dig dog dry due ear eat egg end eye fan far fat few fit fix fly for fox fun gap gas "
    "get got guy had has hat her hid him his hit hot how ice ill its job joy key kid law lay led leg let lie lot low "
    "mad man map may men met mix new nor not now odd off oil old one our out own pan pay pen per pet pie pop put ran "
    "raw red rid row run sad sat saw say sea see set she sir sit six sky"
)
WORD_BYTES = 4
"""Bytes of a word, with the space behind it."""
OWN_WORDS = 12
"""Words that tell a text from every other: 84 bits."""
_TEXT_WORDS = 65_536


def prompt_text(arrival: Arrival, rng: random.Random, salt: int = 0) -> str:
    """The prompt of an arrival. Blocks of its prefix read the same wherever their id occurs with the same `salt`; the
    rest is drawn from `rng`."""
    left = max(1, arrival.prompt_tokens)
    parts = []
    for block in arrival.prefix:
        if left <= 0:
            break
        parts.append(_block(block, salt)[: left * WORD_BYTES])
        left -= BLOCK_TOKENS
    if left > 0:
        parts.append(_text(rng.getrandbits(128), left))
    return "".join(parts).rstrip(" ")


@functools.lru_cache(maxsize=4096)
def _block(block: int, salt: int) -> str:
    digest = blake2b(f"{salt}/{block}".encode(), digest_size=16).digest()
    return _text(int.from_bytes(digest, "little"), BLOCK_TOKENS)


def _text(bits: int, tokens: int) -> str:
    """A text that 128 bits determine."""
    own = min(OWN_WORDS, tokens)
    words = [WORDS[(bits >> 7 * index) & 127] for index in range(own)]
    words.append("")
    begin = (bits >> 7 * OWN_WORDS) % _TEXT_WORDS * WORD_BYTES
    left = (tokens - own) * WORD_BYTES
    fixed = _fixed_text()
    parts = [" ".join(words)]
    while left > 0:
        part = fixed[begin : begin + left]
        parts.append(part)
        left -= len(part)
        begin = 0
    return "".join(parts)


@functools.cache
def _fixed_text() -> str:
    return " ".join(random.Random("a text").choices(WORDS, k=_TEXT_WORDS)) + " "
