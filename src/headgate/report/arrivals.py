"""Judges all arrivals: availability, and percentiles over all arrivals beside those over the served.

A percentile over the served says nothing about the requests that were not: a server that refuses enough requests keeps
any promise to the rest. So a request that was refused, failed or was cut off counts as longer than any bound. Left out
are the client's own errors and refusals of a tenant over its own limit (429): no server could have answered them.
"""

from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from headgate.policy.promises.promise import beyond
from headgate.report.results import KINDS, Floats, Results

CUT_OFF = "cut off when the run was ended"
OWN_LIMIT = "429"
"""Prefix of a refusal's reason where the tenant was over its own limit; Headgate's other refusals are 503."""
_REFUSED, _FAILED, _CLIENT = KINDS.index("refused"), KINDS.index("failed"), KINDS.index("client")


def missed(results: Results, *, own_limits: bool = False) -> NDArray[np.bool_]:
    """Marks the requests that asked for an answer and got none, or not all of it. `own_limits`: include those of
    tenants over their own limits, where the question is whether a whole workload is served."""
    own = np.array([not own_limits and reason.startswith(OWN_LIMIT) for reason in results.reasons], np.bool_)
    cut = np.array([reason == CUT_OFF for reason in results.reasons], np.bool_)
    refused = (results.kind == _REFUSED) & ~own[results.why]
    left = (results.kind == _CLIENT) & cut[results.why]
    return np.asarray(refused | left | (results.kind == _FAILED))


def arrivals(
    results: Results,
    figure: str,
    lane: str | None,
    since_s: float = 0.0,
    *,
    own_limits: bool = False,
    up_to_tokens: int | None = None,
) -> tuple[Floats, float]:
    """The figure of the requests served from `since_s` on, and the number of further requests that count as having
    missed it. Not every answer has each figure: an unstreamed one has no first token of its own. The missed requests
    are taken to have the figure as often as the answered ones; likewise to have at most `up_to_tokens` tokens, where
    only such answers count."""
    mine = results.of_lane(lane) & (results.at_s >= since_s)
    column = results.figure(figure)
    answered = mine & results.ok
    counted = answered & ~np.isnan(column)
    if up_to_tokens is not None:
        counted &= results.output_tokens <= up_to_tokens
    served = column[counted]
    return served, beyond(len(served), int(answered.sum()), int((mine & missed(results, own_limits=own_limits)).sum()))


def quantile(served: Floats, missed: float, level: float) -> float:
    """The quantile over all arrivals. inf: it falls on a request that got no answer. NaN: there were no arrivals."""
    many = len(served)
    if not many:
        return inf if missed > 0 else nan
    place = level * (many + missed - 1)
    if place > many - 1 and missed > 0:
        return inf
    return float(np.quantile(served, min(1.0, place / (many - 1)) if many > 1 else 0.0))
