"""Every failure has one status, and a body that OpenAI's clients understand."""

from http import HTTPStatus

import msgspec
import pytest

from headgate.model.errors import (
    ContextOverflow,
    EngineFailed,
    InvalidRequest,
    QueueFull,
    Refused,
    ServeError,
    Unauthorized,
    UnknownModel,
)
from headgate.model.outcome import Outcome
from headgate.wire.errors import CODES, STATUS, error_body, error_headers, refusal_body


def test_every_outcome_has_a_status() -> None:
    assert set(STATUS) == set(Outcome)
    assert STATUS[Outcome.CANCELLED] == 499


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (InvalidRequest("no", param="n"), "invalid_request_error", None),
        (ContextOverflow("no"), "invalid_request_error", "context_length_exceeded"),
        (UnknownModel("no"), "invalid_request_error", "model_not_found"),
        (Unauthorized("no"), "invalid_request_error", "invalid_api_key"),
        (Refused("no", Outcome.OVER_LIMIT, 1.0), "requests", "rate_limit_exceeded"),
        (Refused("no", Outcome.LANE_FULL, 1.0), "server_error", "lane_full"),
        (QueueFull("no"), "server_error", "queue_full"),
        (EngineFailed("no"), "server_error", "engine_failed"),
    ],
)
def test_an_error_body_is_openais(error: ServeError, kind: str, code: str | None) -> None:
    expected = {"message": "no", "type": kind, "param": error.param, "code": code}
    assert msgspec.json.decode(error_body(error)) == {"error": expected}


@pytest.mark.parametrize(
    ("wait_s", "expected"),
    [(None, ()), (0.2, ("1", "200")), (1.0, ("1", "1000")), (1.0001, ("2", "1001")), (-1.0, ("0", "0"))],
)
def test_a_wait_is_given_in_whole_seconds_and_in_milliseconds(wait_s: float | None, expected: tuple[str, ...]) -> None:
    error = ServeError("full")
    error.retry_after_s = wait_s
    assert error_headers(error) == tuple(zip(("retry-after", "retry-after-ms"), expected, strict=False))


@pytest.mark.parametrize("status", CODES)
def test_a_bare_status_has_a_body_too(status: int) -> None:
    error = msgspec.json.decode(refusal_body(status, "why"))["error"]
    assert (error["message"], error["code"]) == ("why", CODES[status])
    assert HTTPStatus(status).phrase


def test_an_error_that_quotes_a_lone_surrogate_can_still_be_sent() -> None:
    assert msgspec.json.decode(error_body(InvalidRequest("\ud800")))["error"]["message"] == "?"
