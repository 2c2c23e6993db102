"""Renders the API for people: a page at /docs and docs/api.md, from the same description as /openapi.json.

The page is one plain file, made on the first request for it. Its script only tries calls; a key given for that stays in
the page's memory.
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
from headgate.wire.router import FORM, Routes

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
            ("GET", "/docs/style.css"): lambda exchange: _send(exchange, "style.css", "text/css"),
            ("GET", "/docs/try.js"): lambda exchange: _send(exchange, "try.js", "text/javascript"),
        }

    def _document(self, exchange: Exchange) -> None:
        exchange.respond(200, self._encoded, headers=HEADERS)

    def _page(self, exchange: Exchange) -> None:
        exchange.respond(200, self._html, "text/html; charset=utf-8", HEADERS)

    @cached_property
    def _encoded(self) -> bytes:
        return msgspec.json.encode(document(self._table()))

    @cached_property
    def _html(self) -> bytes:
        return as_html(described(self._table())).encode()


def _send(exchange: Exchange, name: str, kind: str) -> None:
    content = files("headgate.surface.api").joinpath(name).read_bytes()
    exchange.respond(200, content, f"{kind}; charset=utf-8", HEADERS)


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
    if operation.body_type == FORM:
        return f"curl localhost:8000{path} -F purpose=batch -F file=@requests.jsonl"
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
        '<script type="module" src="docs/try.js"></script></head><body><nav aria-label="Routes">'
        '<p><a href="./">Headgate</a> · <a href="openapi.json">openapi.json</a></p>'
        f"<ul>{links}</ul></nav><main><h1>The API</h1><p>{_marked(ABOUT)}</p>"
        '<p class="key"><label for="key">Key for the calls that you try</label> '
        '<input id="key" type="password" autocomplete="off" placeholder="kept in this page only"></p>'
        f"{sections}</main></body></html>\n"
    )


def _article(method: str, path: str, operation: Operation) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{_marked(about)}</td></tr>"
        for name, kind, about in _rows(operation)
    )
    said = _table("Parameters", ("Name", "In", "Meaning"), rows) if rows else ""
    answers = "".join(f"<tr><td>{status}</td><td>{_marked(about)}</td></tr>" for status, about in _answers(operation))
    about = f"<p>{_marked(operation.about)}</p>" if operation.about else ""
    return (
        f'<article id="{operation.name}"><h3><i class="{method}">{method}</i> <code>{escape(path)}</code></h3>'
        f"<p><b>{escape(operation.summary)}.</b> For {escape(WHO[operation.who])}.</p>{about}"
        f'<pre tabindex="0" aria-label="An example">{escape(_example(method, path, operation))}</pre>{said}'
        f"{_table('Responses', ('Status', 'Meaning'), answers)}{_trial(method, path, operation)}</article>"
    )


def _table(name: str, heads: tuple[str, ...], rows: str) -> str:
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<details><summary>{name}</summary>{table}</details>"


def _trial(method: str, path: str, operation: Operation) -> str:
    """A form that tries the call; docs/try.js sends it."""
    if operation.status == 101:
        return ""
    fields = "".join(
        f'<label for="{operation.name}-{p.name}">{escape(p.name)}</label>'
        f'<input id="{operation.name}-{p.name}" name="{escape(p.name)}" data-in="{p.where}" autocomplete="off">'
        for p in operation.parameters
    )
    if operation.body is not None:
        body = escape(json.dumps(operation.example, indent=2) if operation.example is not None else "{}")
        name = f"{operation.name}-body"
        fields += f'<label for="{name}">body</label><textarea id="{name}" rows="6">{body}</textarea>'
    return (
        f'<details><summary>Try it</summary><form data-method="{method}" data-path="{escape(path)}">{fields}'
        f'<p><button type="submit" aria-label="Send {method} {escape(path)}">Send</button> '
        '<span role="status"></span></p></form><pre class="said" tabindex="0" aria-label="The response" hidden></pre>'
        "</details>"
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
                lines += ["| Parameter | In | Meaning |", "|---|---|---|"]
                lines += [f"| `{name}` | {_cell(kind)} | {_cell(about)} |" for name, kind, about in rows]
                lines.append("")
            lines += ["Responses:", ""]
            lines += [f"- {status}: {about}" for status, about in _answers(operation)]
            lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    from headgate.surface.api.document import OPERATIONS

    print(as_markdown(OPERATIONS), end="")
