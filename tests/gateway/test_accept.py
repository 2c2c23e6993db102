"""What the gateway makes of a client's bytes before anything is sent: tenant, model, lane, cap, session, and the body
for the replica. No sockets."""

import hashlib
import json
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.models import ModelConfig, VersionConfig
from headgate.config.output import AliasConfig, OutputConfig
from headgate.gateway.answer.response_bridge import Translated
from headgate.gateway.answer.response_voice import Native
from headgate.gateway.intake.abilities import Abilities
from headgate.gateway.intake.accept import LONGEST_NAME, LONGEST_SESSION, Accepted, Acceptor
from headgate.gateway.intake.asks import Identities
from headgate.gateway.intake.models import Entry, Models
from headgate.model.errors import InvalidRequest, NotOffered, Unauthorized, UnknownModel
from headgate.model.lane import LANES
from headgate.model.replica import Replica
from headgate.policy.answers.output import Output
from headgate.policy.compose import classifier
from headgate.policy.dispatch.intake import RequestIntake
from headgate.policy.rollout.capability import Room
from headgate.policy.rollout.rollout import TrafficSplit
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from tests.gateway.test_output import Connection

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
SAID = {"model": "m", "messages": HELLO, "max_tokens": 5}
TRUSTED = Tenant(name="anonymous", trusted=True)
LONG = "words " * 15_000
"""Above the size from which bodies are parsed aside."""


class Catalog:
    """Names for tests: only these are known."""

    def __init__(self, *known: str, default: str = "") -> None:
        self._known = known
        self._default = default

    def refuse_unknown(self, model: str) -> None:
        if model not in self._known:
            raise UnknownModel(f"no {model}", param="model")

    def meant_by_default(self) -> str:
        return self._default


def acceptor(
    *replicas: Replica,
    tenants: tuple[Tenant, ...] = (),
    anonymous: Tenant | None = None,
    output: OutputConfig | None = None,
    limits: WireLimits | None = None,
) -> Acceptor:
    intake = RequestIntake(dict(LANES), classifier(GatewayConfig()), Output(output or OutputConfig()))
    made = Acceptor(intake, Identities(tenants, anonymous or Tenant(name="anonymous")), limits or WireLimits())
    made.abilities = Abilities(lambda: replicas)
    return made


def replica(kind: str, name: str = "a", *models: str) -> Replica:
    return Replica(id=name, url="http://x", kind=kind, model=models[0] if models else None)


def exchange(body: object, path: str = CHAT, **headers: str) -> Exchange:
    made = Exchange(Connection(), 7.0)
    made.path, made.request_id = path, "r1"
    made.headers = {name.replace("_", "-"): value for name, value in headers.items()}
    made.body = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return made


def accept(body: object, made: Acceptor | None = None, path: str = CHAT, **headers: str) -> Accepted:
    return (made or acceptor()).accept(exchange(body, path, **headers))


def versions(*weights: int, sticky: Any = "none") -> Models:
    """The public name `chat`, with a version v1, v2 … of each weight, behind models chat-1, chat-2 …"""
    made = tuple(
        VersionConfig(name=f"v{at}", model=f"chat-{at}", weight=weight) for at, weight in enumerate(weights, start=1)
    )
    config = ModelConfig(name="chat", versions=made, sticky=sticky)
    split = TrafficSplit(tuple((one.name, float(one.weight)) for one in made))
    return Models({"chat": Entry(config, split, {one.name: one.model for one in made})}, lambda _: Room(8, 0, 0))


# -- who asks ---------------------------------------------------------------------------------------------------


def keyed(name: str, **more: Any) -> Tenant:
    return Tenant(name=name, key_sha256=(hashlib.sha256(name.encode()).hexdigest(),), **more)


def test_a_key_tells_the_tenant_and_without_one_the_client_is_anonymous() -> None:
    made = acceptor(tenants=(keyed("gold", weight=3.0, tier="premium"),))
    found = accept(SAID, made, authorization="Bearer gold")
    assert (found.tenant.name, found.request.tenant, found.request.weight, found.request.tier) == (
        "gold", "gold", 3.0, "premium",
    )  # fmt: skip
    assert accept(SAID, made).request.tenant == "anonymous"
    assert made.known({"authorization": "Bearer gold"}).name == "gold"
    assert made.several
    assert not made.keyed


def test_an_unknown_key_and_a_missing_one_are_refused_before_the_body_is_read() -> None:
    made = acceptor(tenants=(keyed("gold"),), anonymous=Tenant(name="anonymous", allowed=False))
    assert made.keyed
    for headers in ({}, {"authorization": "Bearer stolen"}):
        with pytest.raises(Unauthorized):
            accept(b"no json", made, **headers)


def test_a_new_config_counts_for_the_next_request() -> None:
    made = acceptor()
    made.reconfigure(classifier(GatewayConfig()), Identities((keyed("gold"),), Tenant(name="anonymous")))
    assert accept(SAID, made, authorization="Bearer gold").tenant.name == "gold"
    assert accept({**SAID, "max_tokens": 9000}, made).body["max_tokens"] == LANES["fast"].max_tokens
    made.reconfigure(
        classifier(GatewayConfig()), Identities((), Tenant(name="anonymous")), Output(OutputConfig(caps=False))
    )
    assert accept({**SAID, "max_tokens": 9000}, made).body["max_tokens"] == 9000


# -- the body ---------------------------------------------------------------------------------------------------


def test_a_body_as_we_would_write_it_is_passed_on_byte_for_byte() -> None:
    sent = exchange(SAID)
    found = acceptor().accept(sent)
    assert found.encoded == sent.body
    assert found.body == SAID
    assert (found.request.id, found.request.arrived, found.path) == ("r1", 7.0, CHAT)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(SAID).encode(),  # spaces: another parser may read them otherwise
        {**SAID, "seed": None},
        {**SAID, "max_tokens": 5.0},
        {**SAID, "lane": "batch"},
        {**SAID, "max_output_tokens": 4},
        {**SAID, "stream": True},
        {**SAID, "max_tokens": 90_000},
        {"model": "m", "messages": HELLO},
        {**SAID, "model": "default"},
    ],
    ids=["spaces", "null", "float", "dropped", "renamed", "usage", "capped", "no cap", "default"],
)
def test_a_body_that_is_changed_is_written_anew(body: object) -> None:
    made = acceptor()
    made.names = Catalog("m", default="m")
    assert accept(body, made).encoded == b""


def test_a_field_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_tokens"):
        accept(b'{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":5,"max_tokens":6}')


@pytest.mark.parametrize("body", [b"", b"[]", b"no json", b'{"messages":7}', b'{"model":["m"],"messages":[]}'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        accept(body)


def test_a_long_body_keeps_its_long_fields_encoded_and_gives_them_back_whole() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": LONG}], "max_tokens": 5, "stream": True}
    found = accept(body)
    assert found.encoded == b""
    assert found.can_go_on
    assert not isinstance(found.body["messages"], list)
    assert found.whole()["messages"] == body["messages"]
    assert found.asking({"model": "x"}).can_go_on
    assert not accept({**body, "n": 2}).can_go_on


def test_a_short_body_tells_itself_whether_its_stream_can_continue() -> None:
    found = accept({**SAID, "stream": True})
    assert found.can_go_on
    assert found.whole() is found.body
    assert not accept({**SAID, "n": 2}).can_go_on
    assert found.asking({"messages": HELLO, "tools": [{}]}).can_go_on is False


def test_more_messages_than_the_limit_are_refused_by_name() -> None:
    made = acceptor(limits=WireLimits(messages=2))
    accept({**SAID, "messages": HELLO * 2}, made)
    with pytest.raises(InvalidRequest, match="messages has 3 items, at most 2 are taken"):
        accept({**SAID, "messages": HELLO * 3}, made)
    accept({"model": "m", "input": ["a"] * 2}, made, RESPONSES)
    with pytest.raises(InvalidRequest, match="input has 3 items, at most 2 are taken"):
        accept({"model": "m", "input": ["a"] * 3}, made, RESPONSES)


# -- the model --------------------------------------------------------------------------------------------------


def test_default_or_no_model_is_the_one_that_the_catalog_means() -> None:
    made = acceptor()
    made.names = Catalog("served", default="served")
    for model in ("default", ""):
        found = accept({**SAID, "model": model}, made)
        assert (found.request.model, found.body["model"]) == ("served", "served")
    assert accept({"messages": HELLO}, made).request.model == "served"
    made.names = Catalog("default")
    assert accept({**SAID, "model": "default"}, made).request.model == "default"


def test_a_name_that_the_catalog_does_not_have_is_refused() -> None:
    made = acceptor()
    made.names = Catalog("served")
    with pytest.raises(UnknownModel):
        accept(SAID, made)
    made.models = versions(1)
    assert accept({**SAID, "model": "chat"}, made).request.model == "chat-1", (
        "a public name needs no replica of its own"
    )


def test_a_models_name_has_a_longest_length() -> None:
    accept({**SAID, "model": "m" * LONGEST_NAME})
    with pytest.raises(InvalidRequest, match="model is longer than 256 characters"):
        accept({**SAID, "model": "m" * (LONGEST_NAME + 1)})


def test_an_alias_sets_task_and_model_and_the_answer_says_the_alias() -> None:
    made = acceptor(output=OutputConfig(aliases=(AliasConfig(name="extract", task="extract", model="m"),)))
    sent = exchange({"model": "extract", "messages": HELLO})
    found = made.accept(sent)
    assert (found.request.model, found.body["model"]) == ("m", "m")
    assert found.allowance is not None
    assert (found.allowance.task, found.body["max_tokens"]) == ("extract", 96)
    assert sent.renames is not None
    assert sent.renames.told(b'{"model":"m"}') == b'{"model":"extract"}'


def test_an_alias_without_a_model_keeps_its_name_and_a_public_name_goes_before_it() -> None:
    made = acceptor(output=OutputConfig(aliases=(AliasConfig(name="chat", task="code", model=None),)))
    found = accept({"model": "chat", "messages": HELLO}, made)
    assert found.request.model == "chat"
    assert found.allowance is not None
    assert found.allowance.task == "code"
    made = acceptor(output=OutputConfig(aliases=(AliasConfig(name="chat", task="code", model="m"),)))
    made.models = versions(1)
    assert accept({"model": "chat", "messages": HELLO}, made).request.model == "chat-1"


def test_a_public_name_is_drawn_and_its_other_versions_stand_in() -> None:
    made = acceptor()
    made.models = versions(1, 1)
    sent = exchange({**SAID, "model": "chat"})
    found = made.accept(sent)
    assert found.chosen is not None
    other = {"chat-1": "chat-2", "chat-2": "chat-1"}[found.request.model]
    assert list(found.request.fallback) == [other]
    assert not found.request.pinned
    assert sent.renames is not None
    assert sent.renames.told(b'{"model":"chat-1"}') == b'{"model":"chat"}'
    found.stand_in(other)
    assert (found.request.model, found.body["model"], found.encoded) == (other, other, b"")
    assert list(found.request.fallback) == []
    assert found.chosen.fell_back
    assert accept({**SAID, "model": "another"}, made).chosen is None


def test_a_request_without_a_choice_can_stand_in_too() -> None:
    found = accept(SAID)
    found.stand_in("n")
    assert (found.request.model, found.body["model"], found.chosen) == ("n", "n", None)


def test_a_version_that_a_trusted_client_names_is_pinned() -> None:
    made = acceptor(anonymous=TRUSTED)
    made.models = versions(1, 1)
    found = accept({**SAID, "model": "chat"}, made, x_headgate_version="v2")
    assert (found.request.model, found.request.pinned, found.request.fallback) == ("chat-2", True, ())
    untrusted = acceptor()
    untrusted.models = versions(1, 1)
    with pytest.raises(InvalidRequest, match="counts only for trusted keys"):
        accept({**SAID, "model": "chat"}, untrusted, x_headgate_version="v2")


def test_a_session_keeps_its_version() -> None:
    made = acceptor()
    made.models = versions(1, 1, sticky="session")
    drawn = {accept({**SAID, "model": "chat", "user": "u"}, made).request.model for _ in range(8)}
    assert len(drawn) == 1


# -- lane, priority, session --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "lane"),
    [
        ({**SAID, "stream": True}, "fast"),
        (SAID, "slow"),
        ({**SAID, "service_tier": "flex"}, "batch"),
        ({**SAID, "messages": [{"role": "user", "content": LONG}]}, "long"),
        ({"model": "m", "prompt": [1] * 600, "stream": True, "max_tokens": 5}, "slow"),
    ],
    ids=["short stream", "whole", "flex", "long prompt", "exact tokens"],
)
def test_a_lane_follows_from_length_stream_and_tier(body: dict[str, Any], lane: str) -> None:
    found = accept(body, path=TEXT if "prompt" in body else CHAT)
    assert found.request.lane == lane
    assert found.request.priority == LANES[lane].priority
    assert found.request.wait_until == pytest.approx(7.0 + LANES[lane].wait_bound_s)
    assert found.request.first_token_by == pytest.approx(7.0 + LANES[lane].ttft_target_s)


def test_only_a_trusted_client_names_its_lane() -> None:
    trusted = acceptor(anonymous=TRUSTED)
    assert accept(SAID, trusted, x_headgate_lane="batch").request.lane == "batch"
    assert accept({**SAID, "lane": "batch"}, trusted).request.lane == "batch"
    assert accept({**SAID, "lane": "long"}, trusted, x_headgate_lane="batch").request.lane == "batch"
    assert accept({**SAID, "lane": "batch"}, x_headgate_lane="batch").request.lane == "slow"
    with pytest.raises(InvalidRequest, match="no lane 'none'"):
        accept(SAID, trusted, x_headgate_lane="none")


@pytest.mark.parametrize(
    ("body", "header", "priority"),
    [
        ({}, "", 1),
        ({}, "-3", -3),
        ({}, "1000", 100),
        ({}, "-1000", -100),
        ({}, "soon", 1),
        ({}, "1234567", 1),
        ({"priority": 0}, "7", 0),
        ({"priority": 500}, "", 100),
        ({"priority": -500}, "", -100),
    ],
)
def test_a_trusted_clients_priority_is_bounded(body: dict[str, Any], header: str, priority: int) -> None:
    trusted = acceptor(anonymous=TRUSTED)
    assert accept({**SAID, **body}, trusted, x_headgate_priority=header).request.priority == priority
    assert accept({**SAID, **body}, x_headgate_priority=header).request.priority == LANES["slow"].priority == 1


def test_a_session_is_the_headers_else_the_users_and_is_cut_off() -> None:
    assert accept({**SAID, "user": "u"}, x_headgate_session="s").request.session == "s"
    assert accept({**SAID, "user": "u"}).request.session == "u"
    assert accept(SAID).request.session is None
    assert accept({**SAID, "user": "u" * 2000}).request.session == "u" * LONGEST_SESSION


# -- caps and choices -----------------------------------------------------------------------------------------------


def test_a_task_by_header_goes_before_the_alias_and_the_tenants_task() -> None:
    made = acceptor(anonymous=Tenant(name="anonymous", task="reason"))
    bare = {"model": "m", "messages": HELLO}
    named = {**bare, "model": "classify"}
    found = (accept(bare, made), accept(named, made), accept(named, made, x_headgate_task="code"))
    assert [one.allowance and one.allowance.task for one in found] == ["reason", "classify", "code"]
    with pytest.raises(InvalidRequest, match="no task 'dream'"):
        accept(bare, made, x_headgate_task="dream")


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 7, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 7, "max_output_tokens": 5}, 5),
        ({"max_tokens": 4, "max_output_tokens": 5}, 4),
        ({"max_output_tokens": 5}, 5),
        ({"n_predict": 3, "max_tokens": 9}, 3),
        ({"n_predict": 30, "max_tokens": 9}, 9),
        ({"n_predict": 3, "max_output_tokens": 2}, 2),
        ({}, 384),
    ],
)
def test_of_several_names_for_the_cap_the_least_counts(body: dict[str, Any], tokens: int) -> None:
    found = accept({"model": "m", "messages": HELLO, **body})
    assert found.allowance is not None
    assert found.allowance.tokens == tokens
    assert "max_output_tokens" not in found.body
    assert "n_predict" not in found.body
    written = [found.body[name] for name in ("max_tokens", "max_completion_tokens") if name in found.body]
    assert min(written) == tokens


def test_a_least_length_is_no_longer_than_the_cap() -> None:
    assert accept({**SAID, "min_tokens": 50}).body["min_tokens"] == 5
    assert accept({**SAID, "min_tokens": 3}).body["min_tokens"] == 3


def test_choices_are_counted_in_slots_and_tokens() -> None:
    found = accept({**SAID, "n": 3})
    assert (found.request.choices, found.request.max_output) == (3, 15)
    assert accept(SAID).request.max_output == 5


def test_what_answers_usually_say_is_learned_and_counts_where_more_is_allowed() -> None:
    made = acceptor()
    found = accept({**SAID, "max_tokens": 300}, made)
    assert found.request.max_output == 128
    before = found.request.prompt_tokens
    for _ in range(200):
        made.learn(found, 50, 20)
    again = accept({**SAID, "max_tokens": 300}, made).request
    assert again.max_output == 20
    assert again.prompt_tokens > before
    made.models = versions(1)
    named = accept({**SAID, "model": "chat"}, made)
    made.learn(named, 50, 20)
    assert accept({**SAID, "model": "chat"}, made).request.prompt_tokens >= named.request.prompt_tokens


def test_a_system_message_is_told_from_none() -> None:
    system = [{"role": "system", "content": "Be kind."}]
    assert accept({**SAID, "messages": system + HELLO}).prompt.opened
    assert accept({**SAID, "messages": [{"role": "developer", "content": "x"}]}).prompt.opened
    assert not accept(SAID).prompt.opened
    assert not accept({"model": "m", "prompt": "Hello"}, path=TEXT).prompt.opened


def test_bytes_of_text_are_known_only_without_token_ids_and_media() -> None:
    assert accept(SAID).prompt.text_bytes > 0
    assert accept({"model": "m", "prompt": [1, 2, 3], "max_tokens": 5}, path=TEXT).prompt.text_bytes == 0
    picture = [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    found = accept({**SAID, "messages": [{"role": "user", "content": picture}]})
    assert found.prompt.text_bytes == 0
    assert found.request.prompt_tokens > accept(SAID).request.prompt_tokens


# -- streams ------------------------------------------------------------------------------------------------------


def test_usage_is_asked_for_on_every_stream_and_hidden_where_the_client_did_not_ask() -> None:
    found = accept({**SAID, "stream": True})
    assert found.body["stream_options"] == {"include_usage": True}
    assert not found.wants_usage
    assert found.request.stream
    told = accept({**SAID, "stream": True, "stream_options": {"include_usage": True}})
    assert told.wants_usage
    assert told.encoded != b""
    more = accept({**SAID, "stream": True, "stream_options": {"include_usage": False, "chunk": 1}})
    assert more.body["stream_options"] == {"include_usage": True, "chunk": 1}
    whole = accept(SAID)
    assert "stream_options" not in whole.body
    assert not whole.request.stream


def test_embeddings_have_no_cap_and_no_stream() -> None:
    found = accept({"model": "m", "input": ["a", "b"], "stream": True}, path=EMBEDDINGS)
    assert found.allowance is None
    assert "stream" not in found.body
    assert not found.request.stream
    assert found.request.fallback == ()
    assert "max_tokens" not in found.body


def test_embeddings_go_only_to_replicas_that_have_them() -> None:
    made = acceptor(replica("vllm", "v"), replica("tgi", "t"))
    assert accept({"model": "m", "input": "a"}, made, EMBEDDINGS).request.unfit == frozenset(("t",))
    assert accept(SAID, made).request.unfit == frozenset()
    with pytest.raises(NotOffered):
        accept({"model": "m", "input": "a"}, acceptor(replica("tgi", "t")), EMBEDDINGS)


# -- /v1/responses ------------------------------------------------------------------------------------------------


ASKED = {"model": "m", "input": "Hello", "instructions": "Be kind.", "max_output_tokens": 5}


def test_a_response_is_asked_for_as_a_chat_where_an_engine_has_only_those() -> None:
    sent = exchange(ASKED, RESPONSES)
    found = acceptor(replica("tgi")).accept(sent)
    assert found.path == CHAT
    assert found.body["messages"][-1] == HELLO[0]
    assert found.body["max_tokens"] == 5
    assert isinstance(sent.voice, Translated)
    assert found.wants_usage
    assert found.prompt.opened
    assert found.encoded == b""


def test_engines_that_all_have_responses_get_it_as_it_is() -> None:
    made = acceptor(replica("vllm"))
    sent = exchange({**ASKED, "stream": True}, RESPONSES)
    found = made.accept(sent)
    assert found.path == RESPONSES
    assert isinstance(sent.voice, Native)
    assert found.body["input"] == "Hello"
    assert "stream_options" not in found.body
    assert found.body["max_output_tokens"] == 5
    assert found.prompt.opened
    assert accept({**ASKED, "max_output_tokens": None}, made, RESPONSES).body["max_output_tokens"] == 384
    both = accept({**ASKED, "max_tokens": 3}, made, RESPONSES)
    assert "max_tokens" not in both.body
    assert both.body["max_output_tokens"] == 3


def test_what_a_chat_can_not_say_goes_to_those_who_have_responses_or_is_refused() -> None:
    told = {**ASKED, "tools": [{"type": "web_search"}]}
    mixed = accept(told, acceptor(replica("vllm", "v"), replica("tgi", "t")), RESPONSES)
    assert mixed.path == RESPONSES
    assert mixed.request.unfit == frozenset(("t",))
    with pytest.raises(
        InvalidRequest, match=r"tools: of tools, a chat has only functions, not .*, and no replica of model 'm' has"
    ):
        accept(told, acceptor(replica("tgi", "t")), RESPONSES)


def test_a_response_for_an_alias_or_a_public_name_is_judged_by_its_models() -> None:
    aliases = OutputConfig(aliases=(AliasConfig(name="talk", task="chat", model="m"),))
    found = accept({**ASKED, "model": "talk"}, acceptor(replica("vllm", "v", "m"), output=aliases), RESPONSES)
    assert (found.path, found.request.model) == (RESPONSES, "m")
    made = acceptor(replica("vllm", "v", "chat-1"), replica("tgi", "t", "chat-2"))
    made.models = versions(1)
    assert accept({**ASKED, "model": "chat"}, made, RESPONSES).path == RESPONSES
    made.models = versions(1, 1)
    assert accept({**ASKED, "model": "chat"}, made, RESPONSES).path == CHAT


def test_a_long_response_keeps_what_it_echoes_encoded() -> None:
    sent = exchange({**ASKED, "input": LONG, "metadata": {"a": LONG}}, RESPONSES)
    found = acceptor(replica("tgi")).accept(sent)
    assert isinstance(sent.voice, Translated)
    assert found.can_go_on


@pytest.mark.parametrize("body", [b"[]", {"model": "m"}, {"input": ""}, {"input": "a", "previous_response_id": "x"}])
def test_what_is_no_response_is_refused(body: object) -> None:
    with pytest.raises(InvalidRequest):
        accept(body, path=RESPONSES)


# -- ranges -------------------------------------------------------------------------------------------------------


def test_ranges_are_those_of_the_models_that_a_name_reaches() -> None:
    eight = {**SAID, "stop": list("abcdefgh")}
    more = (replica("vllm", "v", "chat-1"), replica("openai", "o", "chat-2"))
    made = acceptor(*more, output=OutputConfig(aliases=(AliasConfig(name="talk", task="chat", model="chat-1"),)))
    for model in ("chat-1", "talk"):
        accept({**eight, "model": model}, made)
    made.models = versions(1)
    accept({**eight, "model": "chat"}, made)
    made.models = versions(1, 1)
    for model in ("chat-2", "chat"):
        with pytest.raises(InvalidRequest, match="stop: at most 4 stop sequences, got 8"):
            accept({**eight, "model": model}, made)
