"""Reads what a request of a trusted key promises for itself: its time to first token and its time per further token.

Our own header goes before llm-d's, and a header before the body's field. What makes no sense is refused and not
ignored: the client would believe in a promise that is not kept.
"""

import re
from typing import Any, Final

from headgate.model.errors import InvalidRequest

TTFT: Final = ("x-headgate-ttft-ms", "x-llm-d-slo-ttft-ms")
TPOT: Final = ("x-headgate-tpot-ms", "x-llm-d-slo-tpot-ms")
TTFT_FIELD: Final = "ttft_target_ms"
TPOT_FIELD: Final = "tpot_target_ms"
LONGEST_MS: Final = 1e9
"""Milliseconds above which a promise makes no sense: eleven days."""
_NUMBER: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?")


def promised_s(headers: dict[str, str], names: tuple[str, str], body: dict[str, Any], field: str) -> float | None:
    """Seconds that the request promises, in one of these headers or in this field of its body; None: it promises
    nothing. Raises InvalidRequest."""
    for name in names:
        said = headers.get(name)
        if said is not None:
            return _seconds(name, float(said) if _NUMBER.fullmatch(said) else 0.0, said)
    value = body.get(field)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _seconds(field, value if number else 0.0, str(value))


def _seconds(name: str, value_ms: float, said: str) -> float:
    if not 0.0 < value_ms <= LONGEST_MS:
        raise InvalidRequest(
            f"{name}: expected milliseconds above 0 and at most {LONGEST_MS:.0f}, such as 400; got {said[:32]!r}",
            param=name,
        )
    return value_ms / 1e3
