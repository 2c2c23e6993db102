"""What a running gateway does with batches: good lines and bad ones, whose they are, how many there may be."""

import hashlib
import http.client
import json
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from headgate.__main__ import app
from tests.batches.scripted import ScriptedEngine, scripted
from tests.batches.site import begin, client, jsonl, line, over, results, site, wait_for
from tests.keys import hash_key
from tests.ledger import ADMIN_KEY, ADMIN_KEYS

pytestmark = pytest.mark.timeout(60)
QUOTAS = {"tenant_files": 12, "tenant_bytes": 3_000_000, "tenant_batches": 2, "file_bytes": 2_000_000, "lines": 100}


class Place:
    """A gateway, the engine behind it, and two tenants."""

    def __init__(self, where: str, engine: ScriptedEngine, folder: Path) -> None:
        self.where = where
        self.engine = engine
        self.folder = folder
        self.acme = client(where, "acme-key")
        self.other = client(where, "other-key")

    def raw(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
        address = urllib.parse.urlsplit(self.where)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
        try:
            given = {"authorization": "Bearer acme-key", **{name.replace("_", "-"): v for name, v in headers.items()}}
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def clear(self) -> None:
        """Cancels and deletes what the tests left."""
        for ai in (self.acme, self.other):
            for batch in ai.batches.list():
                if batch.status in ("validating", "in_progress", "cancelling", "finalizing"):
                    ai.batches.cancel(batch.id)
                    over(ai, batch.id)
            for file in ai.files.list():
                ai.files.delete(file.id)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("batches")
    tenants = {
        "acme": {"key_sha256": [hash_key("acme-key")]},
        "other": {"key_sha256": [hash_key("other-key")]},
    }
    config = {"tenants": tenants, "admin_keys": ADMIN_KEYS, "batches": QUOTAS}
    with scripted() as engine, site(folder, engine.url, slots=4, **config) as where:
        yield Place(where, engine, folder / "batches")


@pytest.fixture(autouse=True)
def clean(place: Place) -> Iterator[None]:
    yield
    place.clear()


def say(number: int, text: str) -> dict[str, Any]:
    return line(number, messages=[{"role": "user", "content": text}])


# -- lines ------------------------------------------------------------------------------------------------------


def test_malformed_lines_are_named_by_number_and_the_others_run(place: Place) -> None:
    lines = [line(1), b"{", b"", {**line(4), "url": "/v1/else"}, line(1), line(6)]
    done = over(place.acme, begin(place.acme, lines).id)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (5, 2, 3)
    assert done.errors is not None
    assert [one.line for one in done.errors.data or ()] == [2, 4, 5]
    assert [one["custom_id"] for one in results(place.acme, done.output_file_id)] == ["line-1", "line-6"]
    bad = results(place.acme, done.error_file_id)
    assert [one["error"]["line"] for one in bad] == [2, 4, 5]
    assert [one["custom_id"] for one in bad] == [None, "line-4", "line-1"]
    assert "url must be" in bad[1]["error"]["message"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [([b"{", b"nonsense"], "no JSON object"), ([], "no lines"), ([line(n) for n in range(101)], "more than 100 lines")],
)
def test_a_batch_of_which_no_line_can_be_served_fails(place: Place, lines: list[Any], told: str) -> None:
    done = over(place.acme, begin(place.acme, lines).id)
    assert done.status == "failed"
    assert done.errors is not None
    assert told in str(done.errors.data)
    assert done.output_file_id is None


def test_a_line_that_fails_is_sent_again_and_one_that_is_wrong_is_not(place: Place) -> None:
    done = over(place.acme, begin(place.acme, [say(1, "fail 1 a"), say(2, "wrong b"), say(3, "fine c")]).id)
    assert done.status == "completed"
    assert [one["custom_id"] for one in results(place.acme, done.output_file_id)] == ["line-1", "line-3"]
    [wrong] = results(place.acme, done.error_file_id)
    assert wrong["response"]["status_code"] == 400
    assert "not like that" in wrong["response"]["body"]["error"]["message"]
    assert place.engine.asked["wrong b"] == 1
    assert place.engine.asked["fine c"] == 1


def test_a_line_is_judged_as_the_same_request_of_a_client_would_be(place: Place) -> None:
    lines = [line(1, temperature=99), line(2, model="no-such-model"), line(3, priority=1), line(4)]
    batch = begin(place.acme, lines)
    wait_for(lambda: (place.acme.batches.retrieve(batch.id).request_counts or batch).completed >= 2)  # type: ignore[union-attr]
    place.acme.batches.cancel(batch.id)
    done = over(place.acme, batch.id)
    bad = {one["custom_id"]: one for one in results(place.acme, done.error_file_id)}
    assert bad["line-1"]["response"]["body"]["error"]["param"] == "temperature"
    assert bad["line-2"]["error"]["code"] == "batch_cancelled"  # its model may come: it would be tried for a while


def test_text_and_other_endpoints_have_their_own_lines(place: Place) -> None:
    ask = {"custom_id": "e", "method": "POST", "url": "/v1/responses", "body": {"model": "double", "input": "Hello"}}
    done = over(place.acme, begin(place.acme, [ask], "/v1/responses").id)
    [told] = results(place.acme, done.output_file_id)
    assert told["response"]["body"]["object"] == "response"


def test_lines_run_in_lane_batch_as_their_tenant(place: Place) -> None:
    batch = begin(place.acme, [line(n) for n in range(3)])
    over(place.acme, batch.id)
    status, told = place.raw("GET", f"/admin/requests/{batch.id}-1", authorization=f"Bearer {ADMIN_KEY}")
    assert status == 200
    assert (told["record"]["lane"], told["record"]["tenant"]) == ("batch", "acme")


def test_operators_see_and_cancel_every_batch(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    batch = begin(place.other, [b"{", *(say(n, f"slow 30 {n}") for n in range(9))])
    wait_for(lambda: place.other.batches.retrieve(batch.id).status == "in_progress")
    for words in (("ls",), ("show", batch.id), ("cancel", batch.id)):
        with pytest.raises(SystemExit) as ended:
            app(["batch", *words, "--url", place.where, "--key", ADMIN_KEY])
        assert not ended.value.code
    printed = capsys.readouterr().out
    assert "in progress" in printed
    assert "10 lines: 0 answered, 1 failed" in printed
    assert "line 1: the line is no JSON object" in printed
    assert "tenant other" in printed
    assert f"{batch.id} is cancelling" in printed
    assert over(place.other, batch.id).status == "cancelled"
    status, told = place.raw("GET", "/admin/batches/batch_0", authorization=f"Bearer {ADMIN_KEY}")
    assert (status, told["error"]["code"]) == (404, "not_found")
    assert place.raw("GET", "/admin/batches")[0] == 401


# -- cancelling -------------------------------------------------------------------------------------------------


def test_a_cancelled_batch_keeps_the_results_that_it_has(place: Place) -> None:
    batch = begin(place.acme, [say(n, "fast" if n < 3 else f"slow 30 {n}") for n in range(20)])
    wait_for(lambda: (place.acme.batches.retrieve(batch.id).request_counts or batch).completed == 3)  # type: ignore[union-attr]
    assert place.acme.batches.cancel(batch.id).status == "cancelling"
    done = over(place.acme, batch.id)
    assert done.status == "cancelled"
    assert [one["custom_id"] for one in results(place.acme, done.output_file_id)] == ["line-0", "line-1", "line-2"]
    rest = results(place.acme, done.error_file_id)
    assert len(rest) == 17
    assert {one["error"]["code"] for one in rest} == {"batch_cancelled"}
    assert place.acme.batches.cancel(batch.id).status == "cancelled"  # once more changes nothing


# -- whose, and how much ----------------------------------------------------------------------------------------


def test_another_tenants_files_and_batches_are_not_there(place: Place) -> None:
    batch = begin(place.acme, [line(1)])
    for ask in (
        lambda: place.other.files.retrieve(batch.input_file_id),
        lambda: place.other.files.content(batch.input_file_id),
        lambda: place.other.files.delete(batch.input_file_id),
        lambda: place.other.batches.retrieve(batch.id),
        lambda: place.other.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError, match="yours"):
            ask()
    with pytest.raises(openai.BadRequestError, match="no file"):
        place.other.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert batch.id not in [one.id for one in place.other.batches.list()]
    assert list(place.other.files.list()) == []
    with pytest.raises(openai.AuthenticationError):
        client(place.where, "unknown").batches.list()


def test_quotas_are_told(place: Place) -> None:
    for number in range(2):
        begin(place.acme, [say(number, "slow 20")])
    with pytest.raises(openai.RateLimitError, match="not over"):
        begin(place.acme, [line(3)])
    with pytest.raises(openai.APIStatusError, match="larger than 2000000") as raised:
        place.acme.files.create(file=("big.jsonl", b"x" * 2_000_001), purpose="batch")
    assert raised.value.status_code == 413
    place.other.files.create(file=("a.jsonl", b"x" * 1_900_000), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="delete some"):
        place.other.files.create(file=("b.jsonl", b"x" * 1_900_000), purpose="batch")
    for number in range(11):
        place.other.files.create(file=(f"{number}.jsonl", b"x"), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="12 files"):
        place.other.files.create(file=("c.jsonl", b"x"), purpose="batch")
    kept = [path for path in place.folder.joinpath("files").iterdir() if path.name.endswith(".part")]
    assert kept == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"endpoint": "/v1/images/generations"}, "endpoint must be one of"),
        ({"completion_window": "1h"}, "completion_window must be"),
        ({"input_file_id": "file-0"}, "no file 'file-0'"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata may have 16"),
        ({"metadata": {"a": "x" * 513}}, "metadata may have 16"),
        ({"metadata": 7}, "not what creates a batch"),
    ],
)
def test_what_is_wrong_with_a_new_batch_is_named(place: Place, asked: dict[str, Any], told: str) -> None:
    file = place.acme.files.create(file=("in.jsonl", jsonl([line(1)])), purpose="batch")
    whole: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h", **asked}
    with pytest.raises(openai.BadRequestError, match=told):
        place.acme.batches.create(**whole)


def test_an_input_that_is_used_is_not_deleted(place: Place) -> None:
    batch = begin(place.acme, [say(1, "slow 20")])
    with pytest.raises(openai.ConflictError, match="cancel that first"):
        place.acme.files.delete(batch.input_file_id)


def test_an_input_whose_content_is_gone_ends_its_batch_with_what_there_is(place: Place) -> None:
    file = place.acme.files.create(file=("in.jsonl", jsonl([line(1)])), purpose="batch")
    (place.folder / "files" / file.id).unlink()
    with pytest.raises(openai.BadRequestError, match="upload it again"):
        place.acme.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(openai.NotFoundError, match="not there any more"):
        place.acme.files.content(file.id)


def test_pages_of_batches_follow_each_other(place: Place) -> None:
    made = [begin(place.acme, [line(n)]).id for n in range(2)]
    for one in made:
        over(place.acme, one)
    made.append(begin(place.acme, [line(3)]).id)
    first = place.acme.batches.list(limit=2)
    assert [one.id for one in first.data] == made[:0:-1]
    assert first.has_more
    assert [one.id for one in first][:3] == made[::-1]
    with pytest.raises(openai.BadRequestError, match="limit must be"):
        place.acme.batches.list(limit=101)
    with pytest.raises(openai.BadRequestError, match="after: no batch"):
        place.acme.batches.list(after="batch_0")


# -- uploads ----------------------------------------------------------------------------------------------------


def upload(content: bytes, purpose: str = "batch") -> bytes:
    head = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n%b\r\n' % purpose.encode()
    return head + b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--b--\r\n' % content


FORM = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("body", "kind", "status", "told"),
    [
        (b"{}", "application/json", 415, "multipart/form-data"),
        (b"{}", "multipart/form-data", 400, "boundary"),
        (b"{}", FORM, 400, "before its last boundary"),
        (upload(b"x" * 300_000)[:-9], FORM, 400, "before its last boundary"),
        (upload(b"1", "fine-tune"), FORM, 400, "only files for batches"),
        (upload(b"1").replace(b'"file"', b'"data"'), FORM, 400, "no file"),
        (upload(b"x" * 2_000_001), FORM, 413, "larger than"),
        (upload(b"x" * 3_100_000), FORM, 413, "exceeds"),
    ],
)
def test_a_form_that_is_wrong_is_refused_and_leaves_nothing(
    place: Place, body: bytes, kind: str, status: int, told: str
) -> None:
    got, answer = place.raw("POST", "/v1/files", body, content_type=kind)
    assert got == status
    assert told in answer["error"]["message"]
    wait_for(lambda: not [*place.folder.joinpath("files").iterdir()])


def test_an_upload_in_pieces_that_its_client_leaves_leaves_nothing(place: Place) -> None:
    address = urllib.parse.urlsplit(place.where)
    body = upload(b"y" * 1_500_000)
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: {address.netloc}\r\nauthorization: Bearer acme-key\r\n"
        f"content-type: {FORM}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    for sent in (0, 700_000, len(body) - 1):  # a fourth would take the last place of this tenant
        with socket.create_connection((str(address.hostname), address.port or 80)) as there:
            there.sendall(head)
            there.sendall(body[:sent])
    wait_for(lambda: not [*place.folder.joinpath("files").iterdir()])
    with socket.create_connection((str(address.hostname), address.port or 80)) as there:
        there.sendall(head)
        for at in range(0, len(body), 400_000):
            there.sendall(body[at : at + 400_000])
        assert b"200 OK" in there.recv(4096)
    [file] = place.acme.files.list()
    assert (
        hashlib.sha256(place.acme.files.content(file.id).read()).digest() == hashlib.sha256(b"y" * 1_500_000).digest()
    )


def test_a_download_is_sent_as_fast_as_it_is_read(place: Place) -> None:
    content = bytes(range(256)) * 7000
    file = place.acme.files.create(file=("a.jsonl", content), purpose="batch")
    address = urllib.parse.urlsplit(place.where)
    ask = (
        f"GET /v1/files/{file.id}/content HTTP/1.1\r\nhost: {address.netloc}\r\nauthorization: Bearer acme-key\r\n\r\n"
    )
    with socket.create_connection((str(address.hostname), address.port or 80)) as there:
        there.sendall(ask.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").encode())
        got = bytearray()
        while piece := there.recv(50_000):
            got += piece
    assert bytes(got).endswith(b"\r\n\r\n" + content)
    with socket.create_connection((str(address.hostname), address.port or 80)) as there:  # and one that leaves
        there.sendall(ask.encode())
        there.recv(1000)
    assert place.acme.files.retrieve(file.id).id == file.id


def test_a_request_beside_a_batch_has_a_slot(place: Place) -> None:
    begin(place.acme, [say(n, f"slow 3 {n}") for n in range(30)])

    def shown() -> list[tuple[str, int]]:
        _, state = place.raw("GET", "/admin/state", authorization=f"Bearer {ADMIN_KEY}")
        return [(one["tenant"], one["request_counts"]["total"]) for one in state["batches"]["running"]]

    wait_for(lambda: shown() == [("acme", 30)])
    asked: OpenAI = place.other
    answer = asked.chat.completions.create(
        model="double", messages=[{"role": "user", "content": "quick"}], max_tokens=4
    )
    assert answer.choices[0].message.content == "said"
