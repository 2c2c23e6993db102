from pathlib import Path

from headgate.policy.scaling.lifecycle import (
    COMING,
    NEXT,
    OVER,
    ROUTED,
    Lifecycle,
    LifecycleEvent,
    as_mermaid,
    next_state,
)

DOCS = Path(__file__).parent.parent.parent / "docs" / "fleet.md"


def reached(start: Lifecycle, without: frozenset[Lifecycle] = frozenset()) -> set[Lifecycle]:
    """Everything that can follow, without passing through some states."""
    found, new = {start}, {start}
    while new:
        new = {next_state(state, happened) for state in new for happened in LifecycleEvent} - found - without
        found |= new
    return found


def test_everything_that_can_happen_in_every_state_has_an_answer() -> None:
    assert list(NEXT) == list(LifecycleEvent)
    assert all(
        len(row) == len(Lifecycle) and all(isinstance(after, Lifecycle) for after in row) for row in NEXT.values()
    )


def test_nothing_gets_requests_is_drained_or_is_parked_before_it_has_been_ready() -> None:
    assert not reached(Lifecycle.STARTING, without=frozenset({Lifecycle.READY})) & {
        *ROUTED,
        Lifecycle.DRAINING,
        Lifecycle.PARKED,
    }


def test_the_way_from_being_started_to_serving_and_out_again() -> None:
    state, passed = Lifecycle.STARTING, []
    for happened in (
        LifecycleEvent.ANSWERED, LifecycleEvent.WARMED, LifecycleEvent.ACTIVATED, LifecycleEvent.RAMPED,
        LifecycleEvent.DRAIN, LifecycleEvent.PARK,
        LifecycleEvent.ACTIVATED, LifecycleEvent.DRAIN, LifecycleEvent.STOPPED,
    ):  # fmt: skip
        state = next_state(state, happened)
        passed.append(state.name)
    assert passed == [
        "WARMING", "READY", "RAMPING", "SERVING", "DRAINING", "PARKED", "SERVING", "DRAINING", "STOPPED",
    ]  # fmt: skip


def test_from_anywhere_it_can_serve_again_be_lost_or_be_stopped() -> None:
    for state in Lifecycle:
        assert Lifecycle.SERVING in reached(state)
        assert next_state(state, LifecycleEvent.STOPPED) is Lifecycle.STOPPED
        assert next_state(state, LifecycleEvent.LOST) is (
            Lifecycle.STOPPED if state is Lifecycle.STOPPED else Lifecycle.FAILED
        )


def test_what_is_over_stays_over_until_it_is_started_again() -> None:
    for state in OVER:
        for happened in set(LifecycleEvent) - {LifecycleEvent.STARTED, LifecycleEvent.STOPPED}:
            assert next_state(state, happened) in OVER
        assert next_state(state, LifecycleEvent.STARTED) is Lifecycle.STARTING


def test_what_is_not_warm_yet_is_neither_drained_nor_parked_nor_given_requests() -> None:
    for state in COMING:
        for happened in (LifecycleEvent.ACTIVATED, LifecycleEvent.DRAIN, LifecycleEvent.PARK, LifecycleEvent.RAMPED):
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
        for was in Lifecycle
        if after[was] is not was
    }
    assert drawn == changes
    assert f"```mermaid\n{diagram}```" in DOCS.read_text()
