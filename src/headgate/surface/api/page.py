"""Renders the API for people: a page at /docs and docs/api.md, from the same description as /openapi.json.

The page is one plain file without scripts, made on the first request for it.
"""

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from headgate.surface.api.document import ABOUT, ERRORS, described, document
from headgate.surface.api.operation import Operation, Operations, Schema
from headgate.surface.api.schemas import schemas
from headgate.surface.page import HEADERS
from headgate.wire.exchange import Exchange
from headgate.wire.router import Routes

WHO = {
    "client": "a tenant's key, where tenants have keys",
    "admin": "an admin key; on this machine without one, while no tenant has a key",
    "anybody": "anybody",
}


class ApiPage:
    def __init__(self, table: Callable[[], list[tuple[str, str]]]) -> None:
        """`table`: returns all routes of the gateway; called when the page is first asked for."""
        self._table = table

    def routes(self) -> Routes:
        return {
            ("GET", "/openapi.json"): self._document,
            ("GET", "/docs"): self._page,
            ("GET", "/docs/style.css"): self._style,
        }

    def _document(self, exchange: Exchange) -> None:
        exchange.respond(200, self._encoded, headers=HEADERS)

    def _page(self, exchange: Exchange) -> None:
        exchange.respond(200, self._html, "text/html; charset=utf-8", HEADERS)

    def _style(self, exchange: Exchange) -> None:
        style = files("headgate.surface.api").joinpath("style.css").read_bytes()
        exchange.respond(200, style, "text/css; charset=utf-8", HEADERS)

    @cached_property
    def _encoded(self) -> bytes:
        return msgspec.json.encode(document(self._table()))

    @cached_property
    def _html(self) -> bytes:
        return as_html(described(self._table())).encode()


def _by_tag(operations: Operations) -> dict[str, list[tuple[str, str, Operation]]]:
    found: dict[str, list[tuple[str, str, Operation]]] = {}
    for (method, path), operation in operations.items():
        found.setdefault(operation.tag, []).append((method, operation.path or path, operation))
    return found


def kind_of(schema: Schema) -> str:
    """A few words for a schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "oneOf" in schema or "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind_of(one) for one in schema.get("oneOf") or schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {kind_of(schema.get('items') or {})}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def fields_of(schema: Schema) -> Iterator[tuple[str, str, str]]:
    """Yields (name, kind, about) of an object's fields, the required ones first."""
    known = schemas().get(kind_of(schema), schema) if "$ref" in schema else schema
    needed = known.get("required", ())
    fields: dict[str, Any] = known.get("properties", {})
    for name in sorted(fields, key=lambda field: field not in needed):
        about = str(fields[name].get("description", ""))
        yield name, kind_of(fields[name]) + (", needed" if name in needed else ""), about


def _rows(operation: Operation) -> list[tuple[str, str, str]]:
    """The parameters and body fields of a request: (name, where and kind, about)."""
    rows = [(f"{p.name}", f"{p.where}, {kind_of(p.schema)}", p.about) for p in operation.parameters]
    if operation.body is not None:
        rows += [(name, f"body, {kind}", about) for name, kind, about in fields_of(operation.body)]
    return rows


def _answers(operation: Operation) -> list[tuple[str, str]]:
    kind = operation.content_type if operation.answer is None else kind_of(operation.answer)
    if operation.status == 101:
        kind = "a WebSocket"
    first = f"{kind}. Streamed: {operation.streams}" if operation.streams else f"{kind}."
    return [(str(operation.status), first), *((str(status), ERRORS[status]) for status in operation.errors)]


def _example(method: str, path: str, operation: Operation) -> str:
    if operation.status == 101:
        return f"websocat ws://localhost:8000{path}"
    body = "" if operation.example is None else f" \\\n  -d '{json.dumps(operation.example)}'"
    verb = "" if method == "GET" or body else f" -X {method}"
    kind = " -H 'content-type: application/json'" if body or method == "POST" else ""
    return f"curl{verb} localhost:8000{path}{kind}{body}"


# -- a page ---------------------------------------------------------------------------------------------------


def _marked(text: str) -> str:
    """HTML for a sentence with `code` in it."""
    return "".join(
        f"<code>{escape(part)}</code>" if at % 2 else escape(part) for at, part in enumerate(text.split("`"))
    )


def as_html(operations: Operations) -> str:
    tags = _by_tag(operations)
    links = "".join(
        f"<li><b>{escape(tag)}</b><ul>"
        + "".join(f'<li><a href="#{o.name}"><i>{method}</i> {escape(path)}</a></li>' for method, path, o in found)
        + "</ul></li>"
        for tag, found in tags.items()
    )
    sections = "".join(
        f"<h2>{escape(tag)}</h2>" + "".join(_article(*one) for one in found) for tag, found in tags.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Headgate: the API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<link rel="icon" href="page/icon.svg" type="image/svg+xml"><link rel="stylesheet" href="docs/style.css">'
        '</head><body><nav aria-label="Routes">'
        '<p><a href="./">Headgate</a> · <a href="openapi.json">openapi.json</a></p>'
        f"<ul>{links}</ul></nav><main><h1>The API</h1><p>{_marked(ABOUT)}</p>{sections}</main></body></html>\n"
    )


def _article(method: str, path: str, operation: Operation) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{_marked(about)}</td></tr>"
        for name, kind, about in _rows(operation)
    )
    said = f"<details><summary>What can be said</summary><table>{rows}</table></details>" if rows else ""
    answers = "".join(f"<tr><td>{status}</td><td>{_marked(about)}</td></tr>" for status, about in _answers(operation))
    about = f"<p>{_marked(operation.about)}</p>" if operation.about else ""
    return (
        f'<article id="{operation.name}"><h3><i class="{method}">{method}</i> <code>{escape(path)}</code></h3>'
        f"<p><b>{escape(operation.summary)}.</b> For {escape(WHO[operation.who])}.</p>{about}"
        f'<pre tabindex="0">{escape(_example(method, path, operation))}</pre>{said}'
        f"<details><summary>Answers</summary><table>{answers}</table></details></article>"
    )


# -- docs/api.md ----------------------------------------------------------------------------------------------


def as_markdown(operations: Operations) -> str:
    lines = ["# The API", "", "Generated from what the gateway says of itself at `/openapi.json` and `/docs`:", ""]
    lines += ["    python -m headgate.surface.api.page > docs/api.md", "", ABOUT, ""]
    for tag, found in _by_tag(operations).items():
        lines += [f"## {tag}", ""]
        for method, path, operation in found:
            lines += [f"### {method} `{path}`", "", f"{operation.summary}. For {WHO[operation.who]}."]
            lines += [operation.about] if operation.about else []
            lines += ["", *(f"    {line}" for line in _example(method, path, operation).splitlines()), ""]
            rows = _rows(operation)
            if rows:
                lines += ["| what | where | |", "|---|---|---|"]
                lines += [f"| `{name}` | {_cell(kind)} | {_cell(about)} |" for name, kind, about in rows]
                lines.append("")
            lines += [f"- {status}: {about}" for status, about in _answers(operation)]
            lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    from headgate.surface.api.document import OPERATIONS

    print(as_markdown(OPERATIONS), end="")
