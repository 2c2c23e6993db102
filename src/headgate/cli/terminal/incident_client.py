"""Lists, tells and records incidents of a running gateway from the command line."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.client import AdminClient, exact
from headgate.explain.explanation import many, seconds
from headgate.model.errors import StartupError

PERFETTO = "https://ui.perfetto.dev"
SHOWN = 5
"""Slowest and longest running requests that are told."""


def ls(url: str, key: str | None, *, as_json: bool = False, console: Console | None = None) -> None:
    console, answer = console or _console(), AdminClient(url, key).ask("/admin/incidents")
    if as_json:
        print_json(answer, console)
        return
    found = answer["incidents"]
    if found:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("id", no_wrap=True)
        table.add_column("when", no_wrap=True)
        table.add_column("what", overflow="fold")
        for one in found:
            table.add_row(one["id"], when(one["at"]), Text(one["reason"]))
        console.print(table)
    else:
        console.print("No incident is kept: none of the alerts has turned critical.")
    if answer["skipped"]:
        told = f"{many(answer['skipped'], 'incident')} more not recorded: observe.incidents.per_hour was reached"
        console.print(Text(told, "yellow"))
    if answer["failed"]:
        console.print(
            Text(f"{many(answer['failed'], 'incident')} could not be written; the gateway's log says why", "red")
        )
    console.print(Text(f"in {answer['folder']}" + (f", {answer['kept']}" if answer["kept"] else ""), "dim"))


def show(
    url: str,
    key: str | None,
    name: str | None,
    *,
    trace: Path | None = None,
    as_json: bool = False,
    console: Console | None = None,
) -> None:
    """Tells an incident in words; `name` None: the newest. `trace`: file to save its trace to."""
    console, gateway = console or _console(), AdminClient(url, key)
    if name is None:
        found = gateway.ask("/admin/incidents")["incidents"]
        if not found:
            raise StartupError("no incident is kept; headgate incident record makes one of the last minute")
        name = str(found[0]["id"])
    path = f"/admin/incidents/{quote(name, safe='')}"
    answer = gateway.ask(path)
    if trace is not None:
        _save(gateway, path, trace)
    if as_json:
        print_json(answer, console)
    else:
        console.print(told(answer))
        console.print(_where(name, trace))


def record(url: str, key: str | None, reason: str, *, as_json: bool = False, console: Console | None = None) -> None:
    console = console or _console()
    answer = AdminClient(url, key).send("POST", "/admin/incidents", {"reason": reason} if reason else {})
    if as_json:
        print_json(answer, console)
    else:
        console.print(told(answer))
        console.print(_where(answer["id"], None))


def _save(gateway: AdminClient, path: str, file: Path) -> None:
    status, body = gateway.raw("GET", f"{path}/trace")
    if status != 200:
        raise StartupError(f"the trace can't be had: the gateway answered {status}")
    try:
        file.write_bytes(body)
    except OSError as error:
        raise StartupError(f"{file} can't be written: {error.strerror or error}") from None


def _where(name: str, saved: Path | None) -> Text:
    if saved is not None:
        return Text.assemble("Open ", (str(saved), "bold"), f" at {PERFETTO} (Open trace file).")
    return Text(f"The trace: headgate incident show {name} --trace FILE, then open FILE at {PERFETTO}.", "dim")


# -- showing -------------------------------------------------------------------------------------------------


def told(one: dict[str, Any]) -> Group:
    running, ended = one["requests"]["running"], one["requests"]["ended"]
    outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in one["requests"]["outcomes"].items())
    parts: list[Any] = [
        Text.assemble((one["id"], "bold"), f"  {when(one['at'])}, the {seconds(one['seconds'])} before"),
        Text(f"{one['reason']}. {many(ended, 'request')} ended" + (f" ({outcomes})" if outcomes else "")
             + f", {running} still ran."),
    ]  # fmt: skip
    for alert in one["alerts"]:
        where = f" of lane {alert['lane']}" if alert["lane"] else ""
        head = Text.assemble(
            (f"✗ {alert['alert']}{where}", "bold red"), f", {seconds(alert.get('ago_s', 0.0))} before the end"
        )
        parts += [head, Padding(Text(alert["message"]), (0, 0, 0, 4))]
    parts += [Text("Lanes", "bold"), *(_indented(line) for line in _lanes(one))]
    parts += [Text("Replicas", "bold"), *(_indented(line) for line in _replicas(one))]
    if one["slowest"]:
        parts.append(Text("Slowest", "bold"))
        for request in one["slowest"][:SHOWN]:
            parts.append(
                _indented(
                    f"{request['id']} (lane {request['lane']}, tenant {request['tenant']}): {request['headline']}"
                )
            )
    if one["longest_running"]:
        parts.append(Text("Running longest", "bold"))
        for request in one["longest_running"][:SHOWN]:
            where = f"at replica {request['replica']}" if request["replica"] else "in the queue"
            first = "" if request["ttft_s"] is None else f", first token after {exact(request['ttft_s'])}"
            about = f"{request['id']} (lane {request['lane']}, tenant {request['tenant']})"
            parts.append(_indented(f"{about}: {seconds(request['e2e_s'])} {where}{first}"))
    pauses = one["pauses"]
    if pauses["count"]:
        told = f"The gateway itself paused {many(pauses['count'], 'time')}, at most {exact(pauses['longest_s'])}."
        parts.append(Text(told, "dim"))
    steps = ", ".join(f"{count} of {name}" for name, count in one["steps"].items())
    if steps:
        parts.append(Text(f"Steps in the trace: {steps}.", "dim"))
    return Group(*parts)


def _lanes(one: dict[str, Any]) -> list[str]:
    busy = [lane for lane in one["lanes"] if lane["waiting_most"] or lane["running_most"]]
    lines = [
        f"{lane['name']}: {lane['waiting']} waited and {lane['running']} ran at the end; "
        f"at most {lane['waiting_most']} and {lane['running_most']}"
        for lane in busy
    ]
    return lines or ["nothing waited or ran"]


def _replicas(one: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{count} {condition}" for condition, count in one["conditions"].items())
    lines = [counts or "none"]
    for replica in one["replicas"][:SHOWN]:
        moves = " → ".join(f"{each['state']} ({seconds(each['ago_s'])} ago)" for each in replica["states"][-4:])
        why = f": {replica['why']}" if replica["why"] and replica["condition"] != "up" else ""
        use = f"{replica['requests']} of {replica['limit']:.0f} in use"
        kv = "" if replica["kv_ratio"] is None else f", KV {replica['kv_ratio']:.0%}"
        batch = "" if replica["batch_size"] is None else f", batch {replica['batch_size']:.0f}"
        lines.append(f"{replica['id']}: {moves}{why}; {use}{batch}{kv}")
    more = len(one["replicas"]) - SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _indented(line: str) -> Padding:
    return Padding(Text(line), (0, 0, 0, 2))


def when(at: float) -> str:
    """The time of day here, for people."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def print_json(answer: object, console: Console) -> None:
    console.print(json.dumps(answer, indent=1, ensure_ascii=False), markup=False, soft_wrap=True, highlight=False)


def _console() -> Console:
    return Console(highlight=False)
