from headgate.model.labels import LONGEST, OTHER, Cap


def test_the_first_names_keep_their_own_and_any_more_are_other() -> None:
    cap = Cap(2)
    assert [cap.of(name) for name in ("a", "b", "c", "a", "b", "d")] == ["a", "b", OTHER, "a", "b", OTHER]
    assert len(cap) == 2


def test_other_takes_nobodys_place() -> None:
    cap = Cap(1)
    assert cap.of(OTHER) == OTHER
    assert cap.of("a") == "a"


def test_asking_whether_a_name_is_known_gives_it_no_place() -> None:
    cap = Cap(1)
    assert cap.known("a") == OTHER
    assert cap.of("b") == "b"
    assert cap.known("b") == "b"


def test_a_very_long_name_gets_no_place() -> None:
    cap = Cap(10)
    assert cap.of("x" * LONGEST) == "x" * LONGEST
    assert cap.of("x" * (LONGEST + 1)) == OTHER


def test_room_is_made_by_forgetting_names_that_are_no_longer_used() -> None:
    cap = Cap(2)
    for name in ("a", "b", "c"):
        cap.of(name)
    cap.keep({"b", "never seen"})
    assert [cap.of(name) for name in ("c", "b", "a")] == ["c", "b", OTHER]
