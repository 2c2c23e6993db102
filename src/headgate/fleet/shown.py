"""Shows the pool on the page and in the admin API."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from headgate.fleet.notes import Book
from headgate.policy.scaling.member import Member
from headgate.policy.scaling.orders import PoolReader
from headgate.policy.scaling.scale import Decision

NEWS = 8
"""Decisions that the page shows."""


def news(decision: Decision, book: Book) -> dict[str, Any]:
    """The state for the page."""
    decisions = [note for note in reversed(book.notes) if note.kind != "replica"]
    return {
        "wanted": {"serving": decision.serving, "parked": decision.parked},
        "reasons": decision.reasons,
        "notes": [asdict(note) for note in decisions[:NEWS]],
    }


def whole(members: Iterable[Member], decision: Decision, book: Book, reader: PoolReader, now: float) -> dict[str, Any]:
    """The state for the admin API."""
    return {
        "wanted": {"serving": decision.serving, "parked": decision.parked},
        "reasons": decision.reasons,
        "replicas": [_told(member, reader, now) for member in members],
        "cold_starts": list(book.starts),
        "notes": [asdict(note) for note in reversed(book.notes)],
    }


def _told(member: Member, reader: PoolReader, now: float) -> dict[str, Any]:
    return {
        "id": member.id,
        "url": member.replica.url,
        "state": member.state.name.lower(),
        "since_s": now - member.since,
        "why": member.why,
        "requests": reader.work(member.id, now).requests,
        "cold_start": member.cold_start,
    }
