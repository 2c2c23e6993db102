"""Reads arrivals from the file that `headgate serve --record` wrote."""

import random
from typing import Any

import msgspec

from headgate.model.outcome import Outcome
from headgate.workload.arrival import Arrival, WorkloadError


class _Header(msgspec.Struct):
    headgate: str
    schema: int


class _Promise(msgspec.Struct):
    ttft_s: float | None = None
    tpot_s: float | None = None


class _Line(msgspec.Struct):
    at: float
    lane: str
    tenant: str
    model: str
    outcome: Outcome
    wall: float = 0.0
    stream: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    prompt: Any = None
    choices: int = 1
    promise: _Promise | None = None


SCHEMA = 1


def read_records(name: str, lines: Any) -> list[Arrival]:
    """The arrivals, in the order of the file: a record is written when its request is over, so not in order of
    arrival."""
    decode, decode_header = msgspec.json.Decoder(_Line).decode, msgspec.json.Decoder(_Header).decode
    found: list[tuple[float, _Line]] = []
    shift: float | None = None
    """Seconds from the clock of the process that wrote the last header to wall time; None: no record since the
    header."""
    for number, line in lines:
        if not line.endswith("\n"):
            break  # its writer died in the middle of the line
        try:
            if line.startswith('{"headgate":'):
                header = decode_header(line.encode("utf-8", "surrogateescape"))
                if header.schema != SCHEMA:
                    raise WorkloadError(
                        f"{name}, line {number}: Headgate {header.headgate} wrote schema {header.schema}; "
                        f"this one reads {SCHEMA}"
                    )
                shift = None
                continue
            record = decode(line.encode("utf-8", "surrogateescape"))
        except (msgspec.DecodeError, ValueError) as error:
            raise WorkloadError(f"{name}, line {number}: no record: {error}; remove that line") from None
        if shift is None:
            shift = record.wall - record.at
        found.append((record.at + shift, record))
    begin = min((at for at, _ in found), default=0.0)
    said = _said([record for _, record in found])
    return [
        Arrival(
            at - begin,
            max(1, record.prompt_tokens),
            max(1, record.output_tokens // max(1, record.choices)) if record.output_tokens else said(record.lane),
            lane=record.lane,
            tenant=record.tenant,
            stream=record.stream,
            model=record.model,
            prompt=record.prompt,
            choices=max(1, record.choices),
            ttft_s=None if record.promise is None else record.promise.ttft_s,
            tpot_s=None if record.promise is None else record.promise.tpot_s,
        )
        for at, record in found
    ]


def _said(records: list[_Line]) -> Any:
    """Draws output tokens for a request that has none, such as a refused one, from completed requests of its lane."""
    rng = random.Random("what would it have said")
    lanes: dict[str, list[int]] = {}
    for record in records:
        if record.outcome is Outcome.COMPLETED and record.output_tokens:
            each = max(1, record.output_tokens // max(1, record.choices))
            lanes.setdefault(record.lane, []).append(each)
    anyone = [tokens for lane in lanes.values() for tokens in lane] or [128]
    return lambda lane: rng.choice(lanes.get(lane) or anyone)
