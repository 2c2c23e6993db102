"""Completes a stream's arrivals: lengths, lane, tenant, session, and the prefix that prompts share."""

import random
from collections.abc import Callable
from hashlib import blake2b

from headgate.workload import traces
from headgate.workload.arrival import BLOCK_TOKENS, Arrival, blocks
from headgate.workload.spec import Range, Stream

DEFAULT_PROMPT, DEFAULT_OUTPUT = Range(256, 256), Range(64, 64)


class WorkloadFinish:
    def __init__(self, stream: Stream, name: str, rng: random.Random) -> None:
        """`name`: empty unless the stream has one or is part of a mix."""
        self._stream = stream
        self._name = name
        self._rng = rng
        self._home = _number(name) << 48 if name else 0
        """Offset of block ids, so that two streams of a mix share no prefix."""
        self._lengths = _lengths(stream, rng)
        # A generator of its own: the same seed gives the same arrivals whatever the share, and a larger share only adds
        # to them.
        self._coin = random.Random(str(rng.getstate()[1][:4]))

    def _streams(self, row: Arrival) -> bool:
        stream = self._stream
        if stream.unstreamed is not None:
            return self._coin.random() >= stream.unstreamed
        return row.stream if stream.stream is None else stream.stream

    def __call__(self, row: Arrival) -> Arrival:
        stream, rng = self._stream, self._rng
        prompt, output = self._lengths(row)
        session, number = row.session, 0
        if stream.sessions:
            number = rng.randrange(stream.sessions)
            session = f"session-{number}"
        elif stream.prefixes:
            number = rng.randrange(stream.prefixes)
        prefix = row.prefix if row.turn else row.prefix[: blocks(prompt)]
        if stream.shared:
            prefix = tuple((number << 16) + block for block in range(min(stream.shared, prompt) // BLOCK_TOKENS))
        if self._name:
            session = session and f"{self._name}-{session}"
            prefix = tuple(self._home + block for block in prefix)
        return Arrival(
            row.at_s,
            prompt,
            output,
            stream.lane or row.lane,
            rng.choice(stream.tenant) if stream.tenant else row.tenant,
            self._streams(row),
            prefix,
            session,
            stream.model or row.model,
            self._name,
            row.prompt if prompt == row.prompt_tokens else None,
            row.choices,
            row.turn,
            row.later,
            row.ttft_s if stream.ttft is None else stream.ttft,
            row.tpot_s if stream.tpot is None else stream.tpot,
        )


def _lengths(stream: Stream, rng: random.Random) -> Callable[[Arrival], tuple[int, int]]:
    borrowed = traces.bundled(stream.lengths) if stream.lengths else ()
    scale, max_prompt, max_output = stream.length_scale, stream.max_prompt, stream.max_output

    def of(row: Arrival) -> tuple[int, int]:
        if row.turn:  # its turns were drawn together
            return row.prompt_tokens, row.output_tokens
        source = rng.choice(borrowed) if borrowed else row
        prompt, output = source.prompt_tokens, source.output_tokens
        if scale != 1.0:
            prompt, output = max(1, round(prompt * scale)), max(1, round(output * scale))
        if stream.prompt is not None or not source.prompt_tokens:
            prompt = draw(stream.prompt or DEFAULT_PROMPT, rng)
        if stream.output is not None or not source.output_tokens:
            output = draw(stream.output or DEFAULT_OUTPUT, rng)
        return min(prompt, max_prompt or prompt), min(output, max_output or output)

    return of


def draw(tokens: Range, rng: random.Random) -> int:
    return tokens.least if tokens.least == tokens.most else rng.randint(tokens.least, tokens.most)


def _number(text: str) -> int:
    """15 bits, the same for the same text in every process, unlike `hash`."""
    return int.from_bytes(blake2b(text.encode(), digest_size=2).digest(), "little") >> 1
