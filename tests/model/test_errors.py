from headgate.model.errors import Refused, ReplicaAnswered
from headgate.model.outcome import Outcome


def test_a_replicas_own_answer_says_whether_it_is_full_and_until_when() -> None:
    full = ReplicaAnswered("busy", full=True, room_in_s=5.0)
    assert (full.message, full.full, full.room_in_s) == ("busy", True, 5.0)
    assert (ReplicaAnswered("no").full, ReplicaAnswered("no").room_in_s) == (False, None)


def test_limits_and_unknown_models_are_refused_in_the_words_that_openais_clients_look_for() -> None:
    over, full = Refused("x", Outcome.OVER_LIMIT, 1.0), Refused("x", Outcome.QUEUE_FULL, 1.0)
    assert (over.code, over.kind) == ("rate_limit_exceeded", "requests")
    assert (full.code, full.kind) == (Outcome.QUEUE_FULL.value, Refused.kind)
    assert Refused("x", Outcome.UNKNOWN_MODEL, None).code == "model_not_found"
