"""Tells which tenant cost which how much of its p99, from the command line."""

from typing import Any
from urllib.parse import urlencode

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from headgate.cli.client import AdminClient, duration, exact
from headgate.cli.terminal.frame import clean
from headgate.cli.terminal.incident_client import print_json
from headgate.explain.explanation import many, seconds
from headgate.report.words import percent

FIGURES = {"ttft": "time to first token", "e2e": "whole answer"}
MATERIAL = 0.05
"""Share of a p99 from which on a cost is worth a sentence."""


def blame(
    url: str,
    key: str | None,
    *,
    lane: str | None = None,
    last: str = "5m",
    by: str = "ttft",
    as_json: bool = False,
    console: Console | None = None,
) -> None:
    query = {"last": f"{duration(last):g}", "by": by, **({"lane": lane} if lane else {})}
    answer = AdminClient(url, key).ask(f"/admin/blame?{urlencode(query)}")
    console = console or Console(highlight=False)
    if as_json:
        print_json(answer, console)
    else:
        console.print(told(answer))


def told(answer: dict[str, Any]) -> Group:
    where = f" in lane {answer['lane']}" if answer["lane"] else ""
    last = f"in the last {seconds(answer['last_s'])}"
    if not answer["tenants"]:
        return Group(Text(f"No tenant has had an answer{where} {last}."))
    of = f"{many(sum(tail['requests'] for tail in answer['tenants']), 'answer')}{where} {last}"
    parts: list[Any] = [Text(headline(answer), "bold"), Text("")]
    if answer["costs"]:
        costs = _table("who", "whom", "of its p99", "share")
        for cost in answer["costs"]:
            costs.add_row(clean(cost["who"]), clean(cost["whom"]), exact(cost["seconds"]), percent(cost["share"]))
        parts += [costs, Text("")]
    tails = _table("tenant", "requests", "p99", "own", "others", "no tenant's", "for one of them: headgate why")
    for tail in answer["tenants"]:
        made_of = (exact(tail[name]) for name in ("p99_s", "own_s", "others_s", "none_s"))
        tails.add_row(clean(tail["tenant"]), str(tail["requests"]), *made_of, clean(tail["example"]))
    about = (
        f"p99 of the {FIGURES[answer['by']]}, {of}; no tenant's: replicas that failed or were cold, the gateway itself"
    )
    return Group(*parts, tails, Text(about, "dim"))


def headline(answer: dict[str, Any]) -> str:
    """The answer in one sentence."""
    if not answer["costs"] or answer["costs"][0]["share"] < MATERIAL:
        return "No tenant costs another a notable part of its p99."
    worst = answer["costs"][0]
    tail = next((one for one in answer["tenants"] if one["tenant"] == worst["whom"]), None)
    of = "" if tail is None else f" of {exact(tail['p99_s'])}"
    return (
        f"{worst['who']} costs {worst['whom']} most: {exact(worst['seconds'])}{of} at p99 ({percent(worst['share'])})."
    )


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, name in enumerate(names):
        words = name in ("who", "whom", "tenant") or index == len(names) - 1 > 4
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    return table
