from pathlib import Path

from headgate.policy.lifecycle import COMING, NEXT, OVER, ROUTED, Happened, State, as_mermaid, next_state

DOCS = Path(__file__).parent.parent.parent / "docs" / "fleet.md"


def reached(start: State, without: frozenset[State] = frozenset()) -> set[State]:
    """Everything that can follow, without passing through some states."""
    found, new = {start}, {start}
    while new:
        new = {next_state(state, happened) for state in new for happened in Happened} - found - without
        found |= new
    return found


def test_everything_that_can_happen_in_every_state_has_an_answer() -> None:
    assert list(NEXT) == list(Happened)
    assert all(len(row) == len(State) and all(isinstance(after, State) for after in row) for row in NEXT.values())


def test_nothing_gets_requests_is_drained_or_is_parked_before_it_has_been_ready() -> None:
    assert not reached(State.STARTING, without=frozenset({State.READY})) & {
        *ROUTED,
        State.DRAINING,
        State.PARKED,
    }


def test_the_way_from_being_started_to_serving_and_out_again() -> None:
    state, passed = State.STARTING, []
    for happened in (
        Happened.ANSWERED, Happened.WARMED, Happened.ACTIVATED, Happened.RAMPED, Happened.DRAIN, Happened.PARK,
        Happened.ACTIVATED, Happened.DRAIN, Happened.STOPPED,
    ):  # fmt: skip
        state = next_state(state, happened)
        passed.append(state.name)
    assert passed == [
        "WARMING", "READY", "RAMPING", "SERVING", "DRAINING", "PARKED", "SERVING", "DRAINING", "STOPPED",
    ]  # fmt: skip


def test_from_anywhere_it_can_serve_again_be_lost_or_be_stopped() -> None:
    for state in State:
        assert State.SERVING in reached(state)
        assert next_state(state, Happened.STOPPED) is State.STOPPED
        assert next_state(state, Happened.LOST) is (State.STOPPED if state is State.STOPPED else State.FAILED)


def test_what_is_over_stays_over_until_it_is_started_again() -> None:
    for state in OVER:
        for happened in set(Happened) - {Happened.STARTED, Happened.STOPPED}:
            assert next_state(state, happened) in OVER
        assert next_state(state, Happened.STARTED) is State.STARTING


def test_what_is_not_warm_yet_is_neither_drained_nor_parked_nor_given_requests() -> None:
    for state in COMING:
        for happened in (Happened.ACTIVATED, Happened.DRAIN, Happened.PARK, Happened.RAMPED):
            assert next_state(state, happened) is state


def test_the_diagram_has_every_change_of_the_table_and_is_the_one_in_the_docs() -> None:
    diagram = as_mermaid()
    drawn = set()
    for line in diagram.splitlines()[2:]:
        edge, _, whys = line.strip().partition(": ")
        was, _, to = edge.partition(" --> ")
        drawn |= {(was, to, why) for why in whys.split(", ")}
    changes = {
        (was.name, after[was].name, happened.value)
        for happened, after in NEXT.items()
        for was in State
        if after[was] is not was
    }
    assert drawn == changes
    assert f"```mermaid\n{diagram}```" in DOCS.read_text()
