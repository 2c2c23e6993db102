from headgate.model.errors import ReplicaAnswered


def test_a_replicas_own_answer_says_whether_it_is_full_and_until_when() -> None:
    full = ReplicaAnswered("busy", full=True, room_in_s=5.0)
    assert (full.message, full.full, full.room_in_s) == ("busy", True, 5.0)
    assert (ReplicaAnswered("no").full, ReplicaAnswered("no").room_in_s) == (False, None)
