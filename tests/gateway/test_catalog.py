from headgate.gateway.catalog import Catalog
from headgate.model.event import Event, ReplicaJoined
from headgate.model.replica import Replica


def catalog(*replicas: Replica) -> tuple[Catalog, list[Event]]:
    told: list[Event] = []
    made = Catalog(told.append)
    for replica in replicas:
        made.add(replica)
    return made, told


def replica(name: str, model: str | None = None) -> Replica:
    return Replica(id=name, url=f"http://{name}", model=model)


def test_names_do_not_count_while_all_say_the_same() -> None:
    made, told = catalog(replica("a"), replica("b"))
    made.said("a", ["m", "n"])
    made.said("b", ["n", "m"])
    assert told == []
    assert made.names == ["m", "n"]


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
