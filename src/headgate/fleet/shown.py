"""Shows the pool to others: the Scaler, the page, the admin API."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from headgate.fleet.member import Book, Hands, Member
from headgate.policy.scaling import scale
from headgate.policy.scaling.lifecycle import OVER, Lifecycle
from headgate.policy.scaling.scale import Decision, PoolView

NEWS = 8
"""Decisions that the page shows."""


def pool_view(members: Iterable[Member], asked_for: int, hands: Hands, start_s: float, now: float) -> PoolView:
    """The pool for the Scaler. `asked_for`: starts that the fleet has not answered yet."""
    demand = hands.demand(now)
    there = [_as_seen(member, hands, now) for member in members if not is_gone(member)]
    coming = [
        scale.PoolMember(id=f"(asked for: {number})", state=Lifecycle.STARTING, since=now)
        for number in range(asked_for)
    ]
    return PoolView(
        members=(*there, *coming),
        waiting=demand.waiting,
        waiting_tokens=demand.waiting_tokens,
        tokens_per_s=demand.tokens_per_s,
        p95_ratio=demand.p95_ratio,
        start_s=start_s,
    )


def is_gone(member: Member) -> bool:
    return member.state in OVER and not member.comes_back


def _as_seen(member: Member, hands: Hands, now: float) -> scale.PoolMember:
    """A replica that is out or being started again counts as starting: others stand in, and no further one is
    started."""
    work = hands.work(member.id, now)
    coming = member.out_since is not None or member.state is Lifecycle.FAILED
    return scale.PoolMember(
        id=member.id,
        state=Lifecycle.STARTING if coming else member.state,
        since=member.since,
        requests=work.requests,
        outstanding_tokens=work.tokens,
        cached_tokens=work.cached_tokens,
        slots=work.slots,
        use=work.use,
        binding=work.binding,
    )


def news(decision: Decision, book: Book) -> dict[str, Any]:
    """The state for the page."""
    decisions = [note for note in reversed(book.notes) if note.kind != "replica"]
    return {
        "wanted": {"serving": decision.serving, "parked": decision.parked},
        "reasons": decision.reasons,
        "notes": [asdict(note) for note in decisions[:NEWS]],
    }


def whole(members: Iterable[Member], decision: Decision, book: Book, hands: Hands, now: float) -> dict[str, Any]:
    """The state for the admin API."""
    return {
        "wanted": {"serving": decision.serving, "parked": decision.parked},
        "reasons": decision.reasons,
        "replicas": [_told(member, hands, now) for member in members],
        "cold_starts": list(book.starts),
        "notes": [asdict(note) for note in reversed(book.notes)],
    }


def _told(member: Member, hands: Hands, now: float) -> dict[str, Any]:
    return {
        "id": member.id,
        "url": member.replica.url,
        "state": member.state.name.lower(),
        "since_s": now - member.since,
        "why": member.why,
        "requests": hands.work(member.id, now).requests,
        "cold_start": member.cold_start,
    }
