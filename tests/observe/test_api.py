"""The description of the API: of every route there is, valid, and the same everywhere it is shown."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from headgate.model.outcome import Outcome
from headgate.surface.api.document import ERRORS, OPERATIONS, document
from headgate.surface.api.page import as_html, as_markdown
from headgate.wire.errors import STATUS
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with double() as (_, engine), gateway(tmp_path_factory.mktemp("api"), {}, engine) as where:
        yield where


def described(url: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(ask(f"{url}/openapi.json")[1])
    return made


@pytest.mark.timeout(60)
def test_every_route_of_a_running_gateway_is_described_and_nothing_else(url: str) -> None:
    made = described(url)
    assert "x-undescribed" not in made, "a route without a description: see surface/api/"
    shown = {(method.upper(), path) for path, methods in made["paths"].items() for method in methods}
    assert shown == {(method, operation.path or path) for (method, path), operation in OPERATIONS.items()}


def test_a_route_of_which_nothing_is_said_is_noticed() -> None:
    assert document([*OPERATIONS, ("PUT", "/new/*")])["x-undescribed"] == ["PUT /new/*"]


def test_the_document_is_openapi() -> None:
    OpenAPIV31SpecValidator(document(OPERATIONS)).validate()


def test_operations_have_names_of_their_own_and_say_who_they_are_for() -> None:
    names = [operation.name for operation in OPERATIONS.values()]
    assert len(names) == len(set(names))
    for (_, path), operation in OPERATIONS.items():
        assert (operation.who == "admin") == path.startswith("/admin"), path
        wanted = set(re.findall(r"{(\w+)}", operation.path or path))
        assert {p.name for p in operation.parameters if p.where == "path"} == wanted, path
        assert ("*" in path) == (operation.path is not None), path


def test_every_status_a_request_can_end_with_is_described() -> None:
    shown = {STATUS[outcome] for outcome in Outcome} - {200, 499}
    assert shown <= set(ERRORS)
    assert shown <= set(OPERATIONS["POST", "/v1/chat/completions"].errors)


@pytest.mark.timeout(60)
def test_what_is_answered_is_what_is_described(url: str) -> None:
    made = described(url)

    def check(path: str, answer: bytes, shown_as: str | None = None, status: str = "200", method: str = "get") -> None:
        response = made["paths"][shown_as or path][method]["responses"][status]
        if "$ref" in response:
            response = made["components"]["responses"][response["$ref"].rpartition("/")[2]]
        schema = next(iter(response["content"].values()))["schema"]
        whole = {**schema, "components": made["components"]}
        Draft202012Validator(whole).validate(json.loads(answer))

    status, answer = ask(f"{url}/v1/chat/completions", chat("n=2"), {"x-request-id": "one"})
    assert status == 200
    check("/v1/chat/completions", answer, method="post")
    status, answer = ask(f"{url}/v1/responses", {"model": "double", "input": "n=2"})
    assert status == 200
    check("/v1/responses", answer, method="post")
    message = {"model": "double", "max_tokens": 5, "messages": [{"role": "user", "content": "n=2"}]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        status, answer = ask(url + path, message)
        assert status == 200
        check(path, answer, method="post")
    status, answer = ask(f"{url}/v1/chat/completions", chat("x", max_tokens=0))
    check("/v1/chat/completions", answer, status=str(status), method="post")
    for path in ("/v1/models", "/health/live", "/health/ready", "/admin/slo", "/admin/slow", "/admin/fleet"):
        check(path, ask(url + path)[1])
    check("/admin/requests/one", ask(f"{url}/admin/requests/one")[1], "/admin/requests/{id}")
    for line in ask(f"{url}/admin/records")[1].splitlines():
        check("/admin/records", line)


def test_examples_fit_what_they_are_examples_of() -> None:
    components = document(OPERATIONS)["components"]
    for operation in OPERATIONS.values():
        if operation.example is not None:
            assert operation.body is not None
            Draft202012Validator({**operation.body, "components": components}).validate(operation.example)


def test_the_page_in_the_repository_is_the_one_that_would_be_made() -> None:
    wanted = as_markdown(OPERATIONS)
    assert (ROOT / "docs" / "api.md").read_text() == wanted, "python -m headgate.surface.api.page > docs/api.md"


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        """Ids of the routes' articles."""
        self.every: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag not in ("meta", "link", "br", "input"):
            self.open.append(tag)
        assert tag != "style"
        assert tag != "script" or given["src"] == "docs/try.js"
        assert not [name for name in given if name.startswith("on") or name == "style"]
        if "id" in given:
            assert given["id"] not in self.every
            self.every.add(str(given["id"]))
            self.ids |= {str(given["id"])} if tag == "article" else set()
        if tag in ("a", "link"):
            self.links.add(str(given["href"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_refers_to_nothing_from_elsewhere() -> None:
    seen = Seen()
    seen.feed(as_html(OPERATIONS))
    assert seen.open == []
    assert seen.ids == {operation.name for operation in OPERATIONS.values()}
    assert {link[1:] for link in seen.links if link.startswith("#")} == seen.ids
    assert {link for link in seen.links if not link.startswith("#")} == {
        "./", "openapi.json", "page/icon.svg", "docs/style.css",
    }  # fmt: skip


@pytest.mark.timeout(60)
def test_the_page_and_its_style_are_served(url: str) -> None:
    status, page = ask(f"{url}/docs")
    assert status == 200
    assert b"/v1/responses" in page
    status, style = ask(f"{url}/docs/style.css")
    assert status == 200
    assert b"light-dark(" in style
