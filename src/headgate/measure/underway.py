"""Describes requests that are not over yet as neighbours of others."""

from collections.abc import Mapping

from headgate.explain.neighbours import Neighbour, prefill_share
from headgate.gateway.placing import Ticket

Tickets = Mapping[str, Ticket]


def neighbours_at(tickets: Tickets, replicas: set[str], now: float) -> dict[str, list[Neighbour]]:
    """The requests at these replicas, by replica. Their remaining work is unknown, so they are taken to end now."""
    found: dict[str, list[Neighbour]] = {}
    for ticket in tickets.values():
        replica, since = ticket.timeline.replica, ticket.timeline.since
        if replica is None or replica.id not in replicas or (answer := ticket.so_far(now)) is None:
            continue
        request = ticket.accepted.request
        tokens = request.prompt_tokens
        first_at = now if answer.first_at is None else answer.first_at
        if answer.first_at is None and not request.stream:
            # An unstreamed answer shows nothing before its end: its prefill may be long over.
            first_at = since + (now - since) * prefill_share(tokens, request.output_each)
        neighbour = Neighbour(
            request.id, request.tenant, request.lane, replica.id, tokens, tokens + answer.events,
            since, first_at, now,
        )  # fmt: skip
        found.setdefault(replica.id, []).append(neighbour)
    return found
