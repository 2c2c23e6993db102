import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from headgate.config.models import ModelConfig, VersionConfig
from headgate.gateway.catalog import Catalog, Listing, ModelFacts
from headgate.gateway.intake.models import Entry, Models
from headgate.model.event import Arrived, Dispatch, Ended, Event, Probed, Refuse, ReplicaJoined
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.health import Health
from headgate.policy.rollout.capability import Room
from headgate.policy.rollout.rollout import TrafficSplit
from headgate.replica.detect import Card, kind_by_cards, read_cards
from tests.policy.driven import settings_of


class Place:
    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.listing = Listing(replica)


def catalog(*replicas: Replica, hear: Callable[[ReplicaJoined], object] = id) -> tuple[Catalog, list[Event]]:
    told: list[Event] = []
    places = {replica.id: Place(replica) for replica in replicas}

    def tell(event: ReplicaJoined) -> None:
        places[event.replica.id].replica = event.replica
        told.append(event)
        hear(event)

    made = Catalog(places, tell)
    made.look_again()
    return made, told


def replica(name: str, model: str | None = None) -> Replica:
    return Replica(id=name, url=f"http://{name}", model=model)


def test_names_do_not_count_while_all_say_the_same() -> None:
    made, told = catalog(replica("a"), replica("b"))
    made.said("a", ["m", "n"])
    made.said("b", ["n", "m"])
    assert told == []
    assert made.names == ["m", "n"]


def test_a_model_is_listed_and_told_as_the_same_card() -> None:
    made, _ = catalog(replica("a", "org/m 1"))
    said: list[Any] = []
    exchange: Any = SimpleNamespace(path="/v1/models/org%2Fm%201", respond=lambda status, body: said.append(body))
    made.serve_list(exchange)
    made.serve_one(exchange)
    card = {"id": "org/m 1", "object": "model", "created": 0, "owned_by": "headgate", "served_by": "headgate"}
    assert [msgspec.json.decode(body) for body in said] == [{"object": "list", "data": [card]}, card]


def test_replicas_that_differ_are_asked_by_name() -> None:
    made, told = catalog(replica("a"), replica("b"))
    made.said("a", ["small"])
    made.said("b", ["large"])
    joined = {event.replica.id: event.replica.names for event in told if isinstance(event, ReplicaJoined)}
    assert joined == {"a": {"small"}, "b": {"large"}}


def test_a_configured_name_is_not_overruled() -> None:
    made, told = catalog(replica("a", "mine"), replica("b"))
    made.said("a", ["theirs"])
    made.said("b", ["large"])
    assert told == []
    assert made.names == ["mine", "large"]


def test_a_replica_that_says_the_same_again_is_left_alone() -> None:
    made, told = catalog(replica("a"), replica("b"))
    for _ in range(3):
        made.said("a", ["small"])
        made.said("b", ["large"])
    assert len(told) == 2


# -- adapters -------------------------------------------------------------------------------------------------


def test_an_adapter_that_only_some_have_loaded_is_a_name_that_counts() -> None:
    made, told = catalog(replica("a"), replica("b"))
    made.said("a", ["m", "poet"], frozenset(("poet",)))
    made.said("b", ["m"])
    joined = {event.replica.id: event.replica.names for event in told if isinstance(event, ReplicaJoined)}
    assert joined == {"a": {"m", "poet"}, "b": {"m"}}
    made.said("b", ["m", "poet"], frozenset(("poet",)))
    assert made.names == ["m", "poet"]


def test_adapters_come_beside_a_configured_name_and_go_again() -> None:
    made, told = catalog(replica("a", "mine"), replica("b", "mine"))
    made.said("a", ["theirs", "poet"], frozenset(("poet",)))
    made.said("b", ["theirs"])
    joined = {event.replica.id: event.replica.names for event in told if isinstance(event, ReplicaJoined)}
    assert joined == {"a": {"mine", "poet"}}
    assert made.names == ["mine", "poet"]
    made.said("a", ["theirs"])
    assert made.names == ["mine"]


def test_configured_names_are_not_lost_when_a_replica_lists_its_own() -> None:
    made, told = catalog(Replica(id="a", url="http://a", models=frozenset(("x", "y"))))
    made.said("a", ["theirs"])
    assert told == []
    assert made.names == ["x", "y"]


def test_a_request_for_an_adapter_goes_where_it_is_loaded() -> None:
    dispatcher = Dispatcher(settings_of(), Health(), random.Random(1))

    replicas = [replica(name) for name in ("a", "b", "c")]
    made, _ = catalog(*replicas, hear=lambda event: dispatcher.on(event, 0.0))
    for one in replicas:
        dispatcher.on(ReplicaJoined(one), 0.0)
    made.said("a", ["m"])
    made.said("b", ["m", "poet"], frozenset(("poet",)))
    made.said("c", ["m"])
    assert made.adapters == {"poet"}
    for name in ("a", "b", "c"):
        dispatcher.on(Probed(name, ok=True), 0.0)

    def sent(number: int, model: str) -> str:
        (command,) = dispatcher.on(Arrived(request(number, model)), 0.0)
        assert isinstance(command, Dispatch)
        return command.replica_id

    assert {sent(number, "poet") for number in range(6)} == {"b"}
    assert {sent(number, "m") for number in range(6, 24)} == {"a", "b", "c"}
    (refused,) = dispatcher.on(Arrived(request(99, "painter")), 0.0)
    assert isinstance(refused, Refuse)


def request(number: int, model: str) -> Request:
    return Request(
        id=f"q{number}", arrived=0.0, model=model, lane="fast", priority=0, wait_until=1.0, first_token_by=1.0
    )


def test_a_replica_that_has_loaded_an_adapter_is_still_in_use_and_what_it_does_still_counted() -> None:
    dispatcher = Dispatcher(settings_of(), Health(), random.Random(1))
    for name in ("a", "b"):
        dispatcher.on(ReplicaJoined(replica(name, "m")), 0.0)
        dispatcher.on(Probed(name, ok=True, deep=True), 0.0)
    for number in range(8):
        dispatcher.on(Arrived(request(number, "m")), 0.0)
    before = {name: load.requests for name, load in dispatcher.index.loads.items()}
    dispatcher.on(ReplicaJoined(Replica(id="a", url="http://a", model="m", models=frozenset(("poet",)))), 0.1)
    assert {name: load.requests for name, load in dispatcher.index.loads.items()} == before
    assert all(load.usable == 1.0 and not load.cold for load in dispatcher.index.loads.values())
    (command,) = dispatcher.on(Arrived(request(9, "poet")), 0.1)
    assert isinstance(command, Dispatch)
    assert command.replica_id == "a"
    for number in range(8):
        dispatcher.on(Ended(f"q{number}", Outcome.COMPLETED, (1, 1)), 0.2)
    assert sum(load.requests for load in dispatcher.index.loads.values()) == 1


# -- what replicas say of their models -----------------------------------------------------------------------------


def cards(made: Catalog) -> dict[str, dict[str, Any]]:
    said: list[Any] = []
    made.serve_list(cast(Any, SimpleNamespace(path="", respond=lambda status, body: said.append(body))))
    listed = msgspec.json.decode(said[0])["data"]
    return {card.pop("id"): card for card in listed}


def facts(**more: Any) -> ModelFacts:
    return ModelFacts.of(Card(id="m", **more))


def test_a_model_has_the_date_owner_and_context_that_its_replicas_state() -> None:
    made, _ = catalog(replica("a"), replica("b"))
    made.said("a", ["m"], facts={"m": facts(created=200, owned_by="vllm", max_model_len=8192)})
    made.said("b", ["m"], facts={"m": facts(created=100, owned_by="sglang", max_model_len=4096)})
    assert cards(made)["m"] == {
        "object": "model", "created": 100, "owned_by": "vllm", "served_by": "headgate", "max_model_len": 4096,
    }  # fmt: skip


def test_the_first_date_stays_where_an_engine_states_the_time_of_the_question() -> None:
    made, _ = catalog(replica("a"))
    for now in (100, 130, 160):
        made.said("a", ["m"], facts={"m": facts(created=now)})
    assert cards(made)["m"]["created"] == 100


def test_what_replicas_do_not_state_is_not_made_up() -> None:
    made, _ = catalog(replica("a"), replica("b", "mine"))
    made.said("a", ["m"], facts={"m": facts()})
    assert cards(made) == {
        name: {"object": "model", "created": 0, "owned_by": "headgate", "served_by": "headgate"}
        for name in ("m", "mine")
    }


def test_nonsense_in_a_card_harms_nothing() -> None:
    for wrong in ("x", -1, 1.5, True, [1], 1 << 50):
        assert facts(created=wrong, owned_by=7, max_model_len=wrong) == ModelFacts()
    assert len(facts(owned_by="x" * 10_000).owner) == 128


def test_a_configured_name_has_what_the_replica_says_of_its_own() -> None:
    one = Replica(id="a", url="http://a", model="mine", served_as="theirs")
    made, _ = catalog(one)
    made.said("a", ["theirs", "other"], facts={"theirs": facts(max_model_len=64), "other": facts(max_model_len=32)})
    assert cards(made)["mine"]["max_model_len"] == 64


def test_a_public_name_has_what_its_models_have_in_common() -> None:
    made, _ = catalog(replica("a", "v1"), replica("b", "v2"))
    made.said("a", ["v1"], facts={"v1": facts(created=100, owned_by="vllm", max_model_len=8192)})
    config = ModelConfig(
        name="assistant", versions=(VersionConfig(name="x", model="v1"), VersionConfig(name="y", model="v2"))
    )
    table = {"assistant": Entry(config, TrafficSplit((("x", 1.0),)), {"x": "v1", "y": "v2"})}
    made.serve_models(Models(table, lambda model: Room(1, 0, 0)))
    assert cards(made)["assistant"] == {
        "object": "model",
        "created": 100,
        "owned_by": "headgate",
        "served_by": "headgate",
    }
    made.said("b", ["v2"], facts={"v2": facts(created=300, max_model_len=4096)})
    assert cards(made)["assistant"]["max_model_len"] == 4096
    assert cards(made)["assistant"]["created"] == 300


def test_a_gateway_behind_a_gateway_is_not_taken_for_the_engine_that_it_tells_of() -> None:
    made, _ = catalog(replica("a"))
    made.said("a", ["m"], facts={"m": facts(owned_by="vllm", max_model_len=8192)})
    said: list[bytes] = []
    made.serve_list(cast(Any, SimpleNamespace(path="", respond=lambda status, body: said.append(body))))
    assert kind_by_cards(read_cards(said[0])) == "openai"
    assert kind_by_cards([Card(id="m", owned_by="vllm", max_model_len=8192)]) == "vllm"
