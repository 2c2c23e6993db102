"""Asks a gateway for batches from the command line."""

from typing import Any
from urllib.parse import quote

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.client import AdminClient, print_json
from headgate.explain.explanation import many, seconds

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
_STYLES = {"failed": "bold red", "expired": "yellow", "cancelled": "dim", "completed": "green"}


def ls(url: str, key: str | None, limit: int, console: Console | None = None, *, as_json: bool = False) -> None:
    answer = AdminClient(url, key).ask(f"/admin/batches?limit={limit}")
    if as_json:
        print_json(answer)
        return
    console = console or Console(highlight=False)
    if answer["trouble"]:
        console.print(Text(answer["trouble"], "bold red"))
    if not answer["batches"]:
        console.print("There are no batches: clients make them with POST /v1/batches.")
        return
    console.print(_table(answer["batches"]))
    if answer["has_more"]:
        console.print(Text(f"{limit} of them, the newest; more with --limit", "dim"))


def show(url: str, key: str | None, batch_id: str, console: Console | None = None, *, as_json: bool = False) -> None:
    found = AdminClient(url, key).ask(f"/admin/batches/{quote(batch_id, safe='')}")
    if as_json:
        print_json(found)
    else:
        (console or Console(highlight=False)).print(shown(found))


def cancel(url: str, key: str | None, batch_id: str, console: Console | None = None, *, as_json: bool = False) -> None:
    found = AdminClient(url, key).send("POST", f"/admin/batches/{quote(batch_id, safe='')}/cancel", {})
    if as_json:
        print_json(found)
    else:
        (console or Console(highlight=False)).print(f"{found['id']} is {found['status'].replace('_', ' ')}")


def _table(batches: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("batch", "tenant", "status", "done", "failed", "of", "waits for"):
        number = title in ("done", "failed", "of")
        table.add_column(title, justify="right" if number else "left", no_wrap=title == "batch", overflow="fold")
    for one in batches:
        counts = one["request_counts"]
        status = Text(one["status"].replace("_", " "), _STYLES.get(one["status"], ""))
        table.add_row(
            one["id"], one["tenant"], status, str(counts["completed"]), str(counts["failed"]), str(counts["total"]),
            one["waits_for"],
        )  # fmt: skip
    return table


def shown(one: dict[str, Any]) -> Group:
    counts, status = one["request_counts"], one["status"]
    over = counts["completed"] + counts["failed"]
    far = f", {over / counts['total']:.0%}" if counts["total"] and status in OPEN else ""
    parts: list[Any] = [
        Text.assemble((one["id"], "bold"), "  ", (status.replace("_", " ") + far, _STYLES.get(status, ""))),
        _line(f"{many(counts['total'], 'line')}: {counts['completed']} answered, {counts['failed']} failed, "
              f"{one['lines_under_way']} under way"),
        _line(f"{one['endpoint']}, model {one['model'] or 'not named'}, tenant {one['tenant']}"),
    ]  # fmt: skip
    ended = next(
        (one[f"{end}_at"] for end in ("completed", "failed", "expired", "cancelled") if one[f"{end}_at"]), None
    )
    if status not in OPEN and ended:
        parts.append(_line(f"took {seconds(max(0, ended - one['created_at']))}"))
    if one["waits_for"]:
        parts.append(_line(f"waits: {one['waits_for']}"))
    files = [(name, one[f"{name}_file_id"]) for name in ("input", "output", "error")]
    parts += [_line(f"{name}: {file_id}", "dim") for name, file_id in files if file_id]
    for flaw in (one["errors"] or {}).get("data", ())[:10]:
        where = "" if flaw["line"] is None else f"line {flaw['line']}: "
        parts.append(_line(f"{where}{flaw['message']}", "yellow"))
    return Group(*parts)


def _line(told: str, style: str = "") -> Padding:
    return Padding(Text(told, style), (0, 0, 0, 2))
