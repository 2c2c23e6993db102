"""Describes requests that are not over yet: as neighbours, and as records so far."""

from collections.abc import Mapping

from headgate.explain.neighbours import Neighbour, prefill_share
from headgate.gateway.gateway import Ticket
from headgate.model.outcome import Outcome
from headgate.model.record import Gap, Record

Tickets = Mapping[str, Ticket]


def neighbours_at(tickets: Tickets, replicas: set[str], now: float) -> dict[str, list[Neighbour]]:
    """The requests at these replicas, by replica. Their remaining work is unknown, so they are taken to end now."""
    found: dict[str, list[Neighbour]] = {}
    for ticket in tickets.values():
        replica, relay = ticket.replica, ticket.relay
        if relay is None or replica is None or replica.id not in replicas:
            continue
        request = ticket.accepted.request
        tokens = request.prompt_tokens
        first_at = now if relay.first_at is None else relay.first_at
        if relay.first_at is None and not request.stream:
            # An unstreamed answer shows nothing before its end: its prefill may be long over.
            first_at = ticket.since + (now - ticket.since) * prefill_share(tokens, request.output_each)
        neighbour = Neighbour(
            request.id, request.tenant, request.lane, replica.id, tokens, tokens + relay.events,
            ticket.since, first_at, now,
        )  # fmt: skip
        found.setdefault(replica.id, []).append(neighbour)
    return found


def so_far(ticket: Ticket, now: float) -> Record:
    """The request's record as if it ended now, with the outcome COMPLETED, since nothing has gone wrong yet."""
    request, relay, replica = ticket.accepted.request, ticket.relay, ticket.replica
    queue_s, first_s, stream_s = ticket.queue_s, 0.0, 0.0
    ttft_s, tpot_s, events = None, None, 0
    gaps: tuple[Gap, ...] = ()
    if relay is None:
        queue_s += now - ticket.since
    elif relay.first_at is None:
        first_s = now - ticket.since
    else:
        first_s, stream_s = relay.first_at - ticket.since, now - relay.first_at
        ttft_s, events = relay.first_at - request.arrived, relay.events
        tpot_s = stream_s / (events - 1) if events > 1 else None
        last_at = relay.first_at if relay.last_at is None else relay.last_at
        gaps = (Gap(last_at - request.arrived, now - last_at),)
    e2e_s = now - request.arrived
    return Record(
        id=request.id,
        at=request.arrived,
        lane=request.lane,
        tenant=request.tenant,
        tier=request.tier,
        model=request.model,
        replica=None if replica is None else replica.id,
        stream=request.stream,
        outcome=Outcome.COMPLETED,
        attempts=ticket.attempts,
        failed=ticket.failed,
        failures=ticket.failures,
        cold=ticket.cold,
        prompt_tokens=request.prompt_tokens,
        output_tokens=events,
        accept_s=e2e_s - queue_s - ticket.retry_s - first_s - stream_s,
        queue_s=queue_s,
        retry_s=ticket.retry_s,
        first_s=first_s,
        stream_s=stream_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        max_gap_s=gaps[0].took_s if gaps else 0.0,
        gaps=gaps,
        ahead=ticket.ahead,
        reason=ticket.reason,
        seen=ticket.seen,
    )
