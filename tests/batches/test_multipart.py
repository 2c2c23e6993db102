"""Forms in any pieces, and forms that are none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.batches.forms.multipart import MOST_FIELD_BYTES, MOST_HEADER_BYTES, MOST_PARTS, FormReader, boundary_of
from headgate.model.errors import InvalidRequest

MARK = b"----x1"


def part(name: str, content: bytes, more: str = "") -> bytes:
    return b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (
        MARK,
        name.encode(),
        more.encode(),
        content,
    )


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + MARK + b"--\r\n"


def read(data: bytes, *cuts: int) -> tuple[FormReader, bytes]:
    got: list[bytes] = []
    reader = FormReader(MARK, "file", got.append)
    before = 0
    for cut in (*sorted(cuts), len(data)):
        reader.feed(data[before:cut])
        before = cut
    reader.finish()
    return reader, b"".join(got)


@settings(max_examples=60)
@given(
    st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"\r\n", b"\r\n--", b"\r\n----x", b"\r\n----x2\r\n"])),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_a_form_is_read_whatever_pieces_it_comes_in(content: bytes, cuts: list[int]) -> None:
    if b"\r\n--" + MARK in b"\r\n" + content + b"\r\n":
        return
    data = form(part("purpose", b"batch"), part("file", content, '; filename="a.jsonl"'), part("last", b"1"))
    reader, got = read(data, *cuts)
    assert got == content
    assert reader.fields == {"purpose": "batch", "last": "1"}
    assert reader.filename == "a.jsonl"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("c:\\\\temp\\\\in.jsonl", "in.jsonl"),
        ("", "upload.jsonl"),
        ("a\x07b", "ab"),
        ("x" * 999, "x" * 255),
    ],
)
def test_a_file_has_its_own_name_without_folders(given: str, kept: str) -> None:
    assert read(form(part("file", b"1", f'; filename="{given}"')))[0].filename == kept


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"nothing of the kind" * 1000, "does not begin with the boundary"),
        (form(part("purpose", b"batch")), "no file"),
        (form(part("file", b"1"), part("file", b"2")), "more than one"),
        (part("file", b"1"), "ends before its last boundary"),
        (b"--" + MARK + b"xx", "not followed by a line end"),
        (b"--" + MARK + b"\r\nContent-Type: text/plain\r\n\r\n1\r\n", "no name"),
        (b"--" + MARK + b"\r\n\r\n1\r\n", "no content-disposition"),
        (b"--" + MARK + b"\r\nA: " + b"a" * MOST_HEADER_BYTES + b"\r\n\r\n", "headers of a part"),
        (b"--" + MARK + b"\r\nA: " + b"a" * (MOST_HEADER_BYTES + 1), "headers of a part"),
        (form(part("other", b"a" * (MOST_FIELD_BYTES + 1))), "longer than"),
        (form(*(part(f"p{number}", b"") for number in range(MOST_PARTS + 1))), "more than 32 parts"),
    ],
)
def test_what_is_wrong_with_a_form_is_named(data: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        read(data)


def test_what_follows_the_last_boundary_is_ignored() -> None:
    assert read(form(part("file", b"1")) + b"and more")[1] == b"1"


@pytest.mark.parametrize(
    ("given", "boundary"),
    [("multipart/form-data; boundary=abc", b"abc"), ('multipart/form-data; boundary="a b"', b"a b")],
)
def test_the_boundary_is_found(given: str, boundary: bytes) -> None:
    assert boundary_of(given) == boundary


@pytest.mark.parametrize("given", ["multipart/form-data", "multipart/form-data; boundary=" + "a" * 71, "x; boundary=ä"])
def test_a_boundary_is_needed(given: str) -> None:
    with pytest.raises(InvalidRequest, match="boundary"):
        boundary_of(given)
