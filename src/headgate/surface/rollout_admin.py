"""Shows and changes rollouts over HTTP, for `headgate rollout` and the page.

GET  /admin/rollout                     every public name with versions: shares, stage, verdict, what is compared
POST /admin/rollout/NAME/start          {"version": "v2", "mode": "canary", "share": null}
POST /admin/rollout/NAME/promote        all requests go to the new version, now
POST /admin/rollout/NAME/rollback       no request does, from the next one on
POST /admin/rollout/NAME/scores         {"scores": [{"request": "ID", "score": 0.8}, {"version": "v2", "score": 1}]}
"""

from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec

from headgate.model.errors import InvalidRequest
from headgate.policy.rollout.rollout import Mode, No, RolloutStep
from headgate.surface.access import AdminAccess
from headgate.upkeep.rollouts import Rollouts
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.router import Routes

PATH: Final = "/admin/rollout"
VERBS: Final = ("start", "promote", "rollback", "scores")
MOST_SCORES: Final = 1000
"""Maximum scores in one request."""

_encode = msgspec.json.Encoder().encode


class RolloutStart(msgspec.Struct, forbid_unknown_fields=True):
    version: str
    mode: Mode = "canary"
    share: float | None = None


class AnswerScore(msgspec.Struct, forbid_unknown_fields=True):
    """The score of one answer: of a request by its id, or of a version."""

    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    request: str | None = None
    version: str | None = None


class AnswerScores(msgspec.Struct, forbid_unknown_fields=True):
    scores: list[AnswerScore]


_scores = msgspec.json.Decoder(AnswerScores).decode
_start = msgspec.json.Decoder(RolloutStart).decode


class RolloutAdmin:
    def __init__(self, rollouts: Rollouts, access: AdminAccess, refresh: Callable[[], None]) -> None:
        """`refresh` hands over the records that have just closed, so that the status is up to date."""
        self._rollouts = rollouts
        self._access = access
        self._refresh = refresh

    def routes(self) -> Routes:
        guard = self._access.guard
        return {("GET", PATH): guard(self._show), ("POST", f"{PATH}/*"): guard(self._act)}

    def news(self) -> list[dict[str, Any]]:
        """The status of every public name with versions, for the page."""
        return self._rollouts.status()

    def _show(self, exchange: Exchange) -> None:
        self._refresh()
        exchange.respond(200, _encode({"models": self._rollouts.status()}))

    def _act(self, exchange: Exchange) -> None:
        name, _, verb = exchange.path.removeprefix(f"{PATH}/").rpartition("/")
        name = unquote(name)
        if name not in self._rollouts.names:
            known = ", ".join(self._rollouts.names) or "none: the config has no models with versions"
            exchange.respond(404, refusal_body(404, f"no model {name[:128]!r} with versions; there is {known}"))
            return
        if verb not in VERBS:
            exchange.respond(404, refusal_body(404, f"{verb[:64]!r} can't be done; there is {', '.join(VERBS)}"))
            return
        self._refresh()
        if verb == "scores":
            self._score(exchange, name)
            return
        said = self._done(name, verb, exchange.body)
        if isinstance(said, No):
            raise InvalidRequest(said.why)
        exchange.respond(200, _encode({"name": name, "step": said}))

    def _score(self, exchange: Exchange, name: str) -> None:
        try:
            given = _scores(exchange.body or b"{}").scores
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(
                f"scores are a list, each from 0 to 1 and of a request or a version: {error}"
            ) from None
        if len(given) > MOST_SCORES:
            raise InvalidRequest(f"at most {MOST_SCORES} scores at once, got {len(given)}")
        if any((one.request is None) == (one.version is None) for one in given):
            raise InvalidRequest("each score is of a request or of a version: give one of the two")
        said = self._rollouts.score(name, [(one.request, one.version, one.score) for one in given])
        if isinstance(said, No):
            raise InvalidRequest(said.why)
        taken, unknown = said
        exchange.respond(200, _encode({"name": name, "taken": taken, "unknown": unknown}))

    def _done(self, name: str, verb: str, body: bytes) -> RolloutStep | No:
        if verb == "promote":
            return self._rollouts.promote(name)
        if verb == "rollback":
            return self._rollouts.rollback(name)
        try:
            asked = _start(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"a start needs a version, and may have a mode and a share: {error}") from None
        return self._rollouts.start(name, asked.version, asked.mode, asked.share)
