"""How each kind of engine is recognised and spoken to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.config.file import parse
from headgate.model.clock import monotonic
from headgate.model.dialect import DIALECTS
from headgate.model.errors import ReplicaFailed, StartupError
from headgate.model.lane import LANES
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.model.tier import TIERS, Tier
from headgate.replica.detect import Card, Cards, detect, kind_by_cards
from headgate.replica.dialects import continued, dialect_of, session_line, shape_for
from headgate.replica.http import Connections
from tests.replica.kinds import OWNERS, double
from tests.wire.serving import live

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def replica(kind: str | None, **more: Any) -> Replica:
    return Replica(id="r", url="http://r", kind=kind, **more)


def test_every_kind_that_has_gauges_has_a_place_to_look_for_them() -> None:
    assert [
        dialect.kind for dialect in DIALECTS.values() if bool(dialect.gauges) != (dialect.metrics is not None)
    ] == []


def test_every_kind_has_a_double_here_can_be_configured_and_has_its_row_in_the_docs() -> None:
    assert set(DIALECTS) == set(OWNERS)
    rows = (Path(__file__).parents[2] / "docs" / "replicas.md").read_text(encoding="utf-8")
    for kind in DIALECTS:
        (found,) = parse(f"replicas: [{{url: http://r, kind: {kind}}}]", "x.yaml").replicas
        assert found.kind == kind
        assert f"| `{kind}` |" in rows
    with pytest.raises(StartupError, match=r"replicas\[0\]\.kind: expected one of headgate, vllm, "):
        parse("replicas: [{url: http://r, kind: x}]", "x.yaml")


def test_an_engine_that_nobody_knows_is_spoken_to_like_any_openai_server() -> None:
    assert dialect_of(replica(None)) is dialect_of(replica("openai")) is DIALECTS["openai"]


# -- which kind is it? ----------------------------------------------------------------------------------------


async def detected(kind: str, signs: bool) -> str:
    async with double(kind, signs=signs) as engine:
        connections = Connections(engine.url, clock=monotonic)
        try:
            _, body = await connections.get("/v1/models")
            return await detect(msgspec.json.decode(body, type=Cards).data, connections.get)
        finally:
            connections.close()


@pytest.mark.parametrize("kind", OWNERS)
def test_each_kind_is_recognised(kind: str) -> None:
    @live
    async def run() -> None:
        assert await detected(kind, signs=True) == kind

    run()


@pytest.mark.parametrize("kind", [kind for kind in OWNERS if kind not in ("tensorrt_llm", "openai")])
def test_and_also_when_its_models_are_signed_by_somebody_else(kind: str) -> None:
    @live
    async def run() -> None:
        assert await detected(kind, signs=False) == kind

    run()


@live
async def test_a_server_that_answers_nothing_else_is_an_openai_server() -> None:
    asked: list[str] = []

    async def get(path: str) -> tuple[int, bytes]:
        asked.append(path)
        if path == "/info":
            raise ReplicaFailed("gone")
        return (200, b"\xff not JSON") if path == "/props" else (500, b"")

    assert await detect([], get) == "openai"
    assert len(asked) == 3


def test_another_headgate_gateway_is_not_taken_for_an_engine() -> None:
    assert kind_by_cards([Card("m", owned_by="headgate")]) == "openai"
    assert kind_by_cards([Card("m", owned_by="headgate-emulated", max_model_len=4096)]) == "headgate"


# -- what a request becomes -----------------------------------------------------------------------------------


@dataclass
class Trust:
    trusted: bool = False


@dataclass
class Asked:
    body: dict[str, Any]
    tenant: Trust = field(default_factory=Trust)
    uncached_tokens: int = 7
    request: Request = field(
        default_factory=lambda: Request(
            id="q", arrived=0.0, model="m", lane="fast", priority=-3, wait_until=1.0, first_token_by=1.0
        )
    )


def shaped(of: Replica, body: dict[str, Any], *, trusted: bool = False, tier: Tier = TIERS["free"]) -> dict[str, Any]:
    shape = shape_for(of)
    asked = Asked(body, Trust(trusted))
    return body if shape is None else shape(asked, LANES["fast"], tier, "q.1")


@pytest.mark.parametrize(
    ("kind", "priority"), [("vllm", -3), ("sglang", 3), ("tensorrt_llm", 0.515), ("tgi", None), ("openai", None)]
)
def test_priority_is_told_in_each_engines_own_way_and_only_where_it_is_heeded(
    kind: str, priority: float | None
) -> None:
    assert shaped(replica(kind, priority=True), {"model": "m"}).get("priority") == priority
    assert "priority" not in shaped(replica(kind), {"model": "m"})


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt_llm", "triton"])
def test_fields_of_our_own_do_not_reach_engines_that_would_refuse_them(kind: str) -> None:
    body = {"model": "m", "priority": 9, "lane": "fast", "ttft_target_ms": 5, "seed": 1}
    left = shaped(replica(kind), body, trusted=True)
    left.pop("rid", None)
    assert left == {"model": "m", "seed": 1}
    assert body["lane"] == "fast"  # another replica may be tried next


def test_our_own_engine_is_told_the_lanes_promises() -> None:
    told = shaped(replica("headgate"), {"model": "m"}, tier=Tier(name="premium", longest_neighbour=512))
    fast = LANES["fast"]
    assert told == {
        "model": "m",
        "lane": "fast",
        "priority": -3,
        "ttft_target_ms": fast.ttft_target_s * 1e3,
        "tpot_target_ms": fast.gap_target_s * 1e3,
        "uncached_tokens": 7,
        "longest_neighbour": 512,
    }


def test_our_own_engine_is_told_what_the_request_itself_promises() -> None:
    promising = Asked({"model": "m"})
    promising.request = promising.request.but(ttft_s=0.25, tpot_s=0.03)
    shape = shape_for(replica("headgate"))
    assert shape is not None
    told = shape(promising, LANES["fast"], Tier(name="free"), "q.1")
    assert (told["ttft_target_ms"], told["tpot_target_ms"]) == (250.0, 30.0)


def test_our_scheduler_inside_vllm_is_told_what_a_request_wishes() -> None:
    body: dict[str, Any] = {"messages": [], "vllm_xargs": {"mine": 1, "headgate_priority": -100}}
    fast = LANES["fast"]
    told = {
        "headgate_priority": -3,
        "headgate_ttft_ms": fast.ttft_target_s * 1e3,
        "headgate_gap_ms": fast.gap_target_s * 1e3,
        "headgate_uncached_tokens": 7,
    }
    assert shaped(replica("vllm"), body, trusted=True)["vllm_xargs"] == {"mine": 1, **told}
    assert body["vllm_xargs"] == {"mine": 1, "headgate_priority": -100}
    assert shaped(replica("vllm"), {"prompt": "a"}) == {"prompt": "a", "vllm_xargs": told}
    assert shaped(replica("vllm"), {"input": "a"}) == {"input": "a"}
    assert shaped(replica("vllm"), {"prompt": "a", "vllm_xargs": 1}) == {"prompt": "a", "vllm_xargs": 1}
    assert "vllm_xargs" not in shaped(replica("sglang"), {"prompt": "a"})
    promising = Asked({"prompt": "a"})
    promising.request = promising.request.but(ttft_s=0.25, tpot_s=0.03)
    shape = shape_for(replica("vllm"))
    assert shape is not None
    own = shape(promising, LANES["fast"], Tier(name="free"), "q.1")["vllm_xargs"]
    assert (own["headgate_ttft_ms"], own["headgate_gap_ms"]) == (250.0, 30.0)


def test_a_request_that_can_be_cancelled_by_name_has_one() -> None:
    assert shaped(replica("sglang"), {})["rid"] == "q.1"
    assert DIALECTS["sglang"].abort == "/abort_request"


def test_a_body_that_nobody_changes_is_not_even_copied() -> None:
    assert shape_for(replica("openai")) is shape_for(replica("llama_cpp")) is shape_for(replica(None)) is None


def test_a_sessions_name_can_be_any_text_and_never_breaks_out_of_its_header() -> None:
    assert session_line(DIALECTS["vllm"], "a\r\nhost: evil é") == b"x-session-id: a%0D%0Ahost%3A%20evil%20%C3%A9\r\n"
    assert len(session_line(DIALECTS["sglang"], "x" * 10_000)) < 200


# -- going on with a reply --------------------------------------------------------------------------------------

ASK = {"role": "user", "content": "Count."}
SAID = {"role": "assistant", "content": "One, two"}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("headgate", {"messages": [ASK], "continued": ["One, two"], "max_tokens": 10}),  # it counts for itself
        ("vllm", {"continue_final_message": True, "add_generation_prompt": False}),
        ("sglang", {"continue_final_message": True}),
        ("tgi", {}),
        ("llama_cpp", {}),
        ("tensorrt_llm", None),
        ("triton", None),
        ("openai", None),
        (None, None),
    ],
)
def test_a_chat_goes_on_where_the_engine_can(kind: str | None, more: dict[str, Any] | None) -> None:
    body = {"model": "m", "messages": [ASK], "max_tokens": 10}
    expected = None if more is None else {"model": "m", "messages": [ASK, SAID], "max_tokens": 7, **more}
    assert continued(kind, CHAT, body, "One, two", 3) == expected
    assert body == {"model": "m", "messages": [ASK], "max_tokens": 10}


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_text_goes_on_anywhere(kind: str) -> None:
    body = {"prompt": "Count: ", "max_tokens": 2}
    own = {**body, "continued": ["o", "ne"]}
    expected = own if kind == "headgate" else {"prompt": "Count: one", "max_tokens": 1}
    assert continued(kind, TEXT, body, "one", 5, ["o", "ne"]) == expected


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1, 2, 3]},
        {"prompt": ["a", "b"]},
        {"prompt": "a", "n": 2},
        {"prompt": "a", "echo": True},
        {"prompt": "a", "suffix": "z"},
        {"prompt": "a", "response_format": {"type": "json_object"}},
    ],
)
def test_a_text_that_would_not_be_the_same_is_left(body: dict[str, Any]) -> None:
    assert continued("vllm", TEXT, body, "x", 1) is None


def test_our_own_engine_goes_on_after_token_ids_and_under_a_grammar() -> None:
    for body in ({"prompt": [1, 2, 3]}, {"prompt": "a", "response_format": {"type": "json_object"}}):
        assert continued("headgate", TEXT, body, "x", 1, ["x"]) == {**body, "continued": ["x"]}
    assert continued("headgate", TEXT, {"prompt": ["a", "b"]}, "x", 1) is None
    assert continued("headgate", CHAT, {"messages": [ASK], "tools": [{}]}, "x", 1) is None


def test_a_chat_that_would_not_be_the_same_is_left() -> None:
    assert continued("vllm", CHAT, {"messages": [ASK], "tools": [{}]}, "x", 1) is None
    assert continued("tgi", CHAT, {"messages": [ASK]}, "ends with a space ", 1) is None
    assert continued("llama_cpp", CHAT, {"messages": [ASK, SAID]}, "x", 1) is None
    assert continued("vllm", "/v1/embeddings", {"input": "x"}, "x", 1) is None


def test_a_message_that_the_client_itself_had_continued_stays_one_message() -> None:
    body = {"messages": [ASK, SAID], "continue_final_message": True, "max_completion_tokens": 9}
    going = continued("vllm", CHAT, body, ", three", 2)
    assert going is not None
    assert going["messages"] == [ASK, {"role": "assistant", "content": "One, two, three"}]
    assert going["max_completion_tokens"] == 7
    assert continued("vllm", CHAT, {**body, "messages": [ASK, {"role": "assistant", "content": []}]}, "x", 1) is None


# -- the documentation --------------------------------------------------------------------------------------------


def _rows(text: str, start: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith(start)
    ]


def test_what_the_documentation_says_that_engines_say_is_what_is_read() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "replicas.md").read_text()
    for dialect in DIALECTS.values():
        (row,) = _rows(text, f"| {dialect.name} |")
        assert len(row) == 5
        described = "batch" in dialect.says or "batch_each" in dialect.says
        gauges = {name: [one.partition("{")[0] for one in names] for name, names in dialect.gauges.items()}
        if described:
            assert row[2] == f"`{dialect.about[0].partition('?')[0]}`"
        else:
            assert row[2] == (f"`{gauges['batch_limit'][0]}`" if "batch_limit" in gauges else "–")
        assert row[3] == (f"`{gauges['kv_ratio'][0]}`" if "kv_ratio" in gauges else "–")
        assert bool(dialect.says) == bool(dialect.about)


def test_the_documented_table_is_the_one_in_force() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "replicas.md").read_text()
    rows = _rows(text, "| `")
    assert [row[0] for row in rows] == [f"`{kind}`" for kind in DIALECTS]
    for row in rows:
        dialect = DIALECTS[row[0].strip("`")]
        assert row[1] == dialect.name
        assert row[2].startswith(f"`{dialect.health[0]}`")
        assert (dialect.live is not None) == ("then" in row[2])
        assert row[3] == ("one token" if dialect.deep is None else f"`{dialect.deep}`")
        assert row[4] == ("–" if dialect.metrics is None else f"`{dialect.metrics}`")
        assert (row[5] == "–") == (dialect.priority is None and dialect.kind != "headgate")
        assert row[6] == ("–" if dialect.session is None else f"`{dialect.session.decode()}`")
        assert (row[7] == "no") == (dialect.chat_continued is None)
        assert row[8] == ("given at its start" if dialect.load_adapter is None else f"`{dialect.load_adapter}`")
