"""Changes a running gateway from the command line."""

import json
import sys
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.cli.client import AdminClient, duration, message, print_json
from headgate.explain.explanation import seconds
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError

LOOK_EVERY_S = 0.1
STOPPED_WITHIN_S = 120.0
NOTES = 10


def show(url: str, key: str | None = None, console: Console | None = None, *, as_json: bool = False) -> None:
    state = AdminClient(url, key).ask("/admin/fleet")
    if as_json:
        print_json(state)
        return
    console = console or Console(highlight=False)
    if state["outage"]:
        console.print(Text.assemble(("OUTAGE ", "bold red"), state["outage"]))
    console.print(replicas_table(state))
    for replica in state["known"]:
        if replica.get("why") and not replica["usable"]:
            console.print(Text(f"{replica['id']}: {replica['why']}", "dim"))
    if state["kind"] == "fixed":
        usable = sum(replica["usable"] > 0 for replica in state["known"])
        console.print(Text(f"{usable} of {len(state['known'])} take requests; this gateway starts none of its own."))
        return
    wanted = state["wanted"]
    console.print(
        Text(
            f"Wanted: {wanted['serving']} serving, {wanted['parked']} parked. "
            f"A start takes {seconds(state['start_s'])}, a wake-up {seconds(state['wake_s'])}."
        )
    )
    if any(pool["name"] != "default" for pool in state["pools"]):
        console.print(pools_table(state["pools"]))
    for start in state["cold_starts"][-3:]:
        parts = ", ".join(f"{name} {seconds(took)}" for name, took in start["phases"].items())
        console.print(
            Text(f"Cold start of {start['replica']}: {seconds(start['took_s'])}{f' ({parts})' if parts else ''}", "dim")
        )
    if state.get("baseline"):
        told = ", ".join(f"{name} {value}" for name, value in state["baseline"].items())
        console.print(Text(f"Start from zero, as measured: {told}", "dim"))
    for note in state["notes"][:NOTES]:
        console.print(Text.assemble((f"· {note['text']}", "bold"), "  ", (" ".join(note["reasons"]), "dim")))


def replicas_table(state: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("replica", "state", "for", "requests", "address"):
        table.add_column(name, overflow="fold", no_wrap=name in ("state", "for", "requests"))
    own = {replica["id"]: replica for replica in state.get("replicas", ())}
    for replica in own.values():
        table.add_row(
            replica["id"], replica["state"], seconds(replica["since_s"]), str(replica["requests"]), replica["url"]
        )
    for replica in state["known"]:
        if replica["id"] not in own:
            since, most = replica["since_s"], replica["limit"]
            requests = str(replica["requests"]) + ("" if most is None else f" of {most:.0f}")
            table.add_row(
                replica["id"], replica["state"], "" if since is None else seconds(since), requests, replica["url"]
            )
    return table


def pools_table(pools: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("pool", "serving", "parked", "model", "version", "lanes", "hardware", "price"):
        table.add_column(name, overflow="fold", no_wrap=name in ("serving", "parked"))
    for pool in pools:
        table.add_row(
            pool["name"],
            f"{pool['serving']} of {pool['wanted_serving']} serve",
            f"{pool['parked'] + pool['asleep']} of {pool['wanted_parked']}",
            pool["model"] or "",
            pool["version"] or "",
            ", ".join(pool["lanes"]) or "all",
            pool["tags"].get("gpu_type", ""),
            "" if pool["price"] is None else f"{pool['price']:g}",
        )
    return table


def add(url: str, replica: str, key: str | None = None) -> None:
    _say(AdminClient(url, key).send("POST", "/admin/replicas", {"url": replica}))


def act(url: str, replica: str, action: str, key: str | None = None) -> None:
    _say(AdminClient(url, key).send("POST", f"/admin/replicas/{quote(replica, safe='')}/{action}", {}))


def remove(url: str, replica: str, key: str | None = None) -> None:
    _say(AdminClient(url, key).send("DELETE", f"/admin/replicas/{quote(replica, safe='')}"))


def reload(url: str, key: str | None = None) -> None:
    _say(AdminClient(url, key).send("POST", "/admin/reload", {}))


def _say(answer: dict[str, Any]) -> None:
    print(answer.get("said", "done"))


def usage(url: str, last: str, form: str, out: Path | None, key: str | None = None) -> None:
    status, body = AdminClient(url, key).raw("GET", f"/admin/usage?last={duration(last):g}&format={form}")
    if status >= 400:
        raise StartupError(message(json.loads(body), status))
    if out is None:
        sys.stdout.write(body.decode())
    else:
        out.write_bytes(body)


# -- to zero and back --------------------------------------------------------------------------------------------


def zero(url: str, key: str | None, api_key: str | None, requests: int, patience_s: float) -> dict[str, Any]:
    """Measures a start from zero replicas. Returns the figures, and has the gateway keep them."""
    gateway = AdminClient(url, key)
    warm_s = [_first_token_s(gateway, api_key, patience_s) for _ in range(requests)]
    print(f"warm: first token after {seconds(median(warm_s))} (median of {requests}), {seconds(max(warm_s))} at worst")
    stopping = gateway.send("POST", "/admin/fleet/zero", {})["stopping"]
    print(f"stopping {stopping}")
    _until_none_is_left(gateway)
    cold_s = _first_token_s(gateway, api_key, patience_s)
    print(f"from zero: first token after {seconds(cold_s)}, {cold_s / max(1e-9, median(warm_s)):.0f} times as long")
    start = gateway.ask("/admin/fleet")["cold_starts"][-1:]
    phases = {f"{name}_s": round(took, 3) for one in start for name, took in one["phases"].items()}
    figures = {
        "warm_ttft_s": round(median(warm_s), 4),
        "cold_ttft_s": round(cold_s, 3),
        "stopped": stopping,
        **phases,
    }
    gateway.send("POST", "/admin/fleet/baseline", figures)
    return figures


def _until_none_is_left(gateway: AdminClient) -> None:
    ends, pause = monotonic() + STOPPED_WITHIN_S, Event()
    while gateway.ask("/admin/fleet")["replicas"]:
        if monotonic() > ends:
            raise StartupError(f"replicas are still there after {STOPPED_WITHIN_S:g} s: is the gateway in use?")
        pause.wait(LOOK_EVERY_S)


def _first_token_s(gateway: AdminClient, api_key: str | None, patience_s: float) -> float:
    """Seconds until a request gets its one token; a refused request is sent again until `patience_s` have passed."""
    began, pause = monotonic(), Event()
    body = {"model": "default", "prompt": "Hello", "max_tokens": 1, "stream": False}
    while True:
        status, answer = gateway.raw("POST", "/v1/completions", body, _bearer(api_key))
        took_s = monotonic() - began
        if status == 200:
            return took_s
        if status not in (429, 503, 504) or took_s > patience_s:
            raise StartupError(f"no token after {took_s:.1f} s: {message(json.loads(answer), status)}")
        pause.wait(LOOK_EVERY_S)


def _bearer(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}
