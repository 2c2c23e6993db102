"""The controller between a fleet and a gateway that do as they are told, and a Scaler that decides what a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from headgate.config.fleet import FleetConfig
from headgate.config.scale import ScaleConfig
from headgate.fleet.controller import Controller, Nap
from headgate.fleet.port import Appeared, Spec, Vanished
from headgate.model.errors import StartupError
from headgate.policy.scaling.lifecycle import Lifecycle
from headgate.policy.scaling.member import Demand, Work
from headgate.policy.scaling.placement import Sleep
from headgate.policy.scaling.pool import OUT_FOR_S, STOP_GRACE_S
from headgate.policy.scaling.scale import Action, Activate, Decision, Drain, Park, PoolView, Scaler, Start
from tests.fleet.double import FakeFleet, FakeHands, replica, settle
from tests.wire.serving import until


class Told:
    """A Scaler that says what it was told to say."""

    def __init__(self) -> None:
        self.says: list[Decision] = []
        self.views: list[PoolView] = []

    def decide(self, view: PoolView, now: float, wall: float) -> Decision:
        self.views.append(view)
        return self.says.pop(0) if self.says else Decision(1, 0)

    def say(self, *actions: Action, reason: str = "because") -> None:
        self.says.append(Decision(1, 0, actions, (reason,)))


class Scene:
    def __init__(self, config: FleetConfig, scaler: Scaler | None = None) -> None:
        self.now = 100.0
        self.fleet, self.hands, self.told = FakeFleet(), FakeHands(), Told()
        self.controller = Controller(
            self.fleet,
            scaler or self.told,
            Spec(pool="p"),
            self.hands,
            config.every[0],
            lambda: self.now,
            lambda: self.now + 1e9,
        )
        self.fleet.watch(self.controller.on_change)

    async def look(self, *actions: Action, after_s: float = 1.0) -> None:
        self.now += after_s
        if actions:
            self.told.say(*actions)
        self.controller.look(self.now)
        await settle()

    async def ready(self, name: str) -> None:
        self.hands.joined[name]()
        await settle()

    async def serving(self, *names: str) -> None:
        """As many replicas as names, all of them in use."""
        await self.look(Start(len(names)))
        for name in names:
            await self.ready(name)
        await self.look(*(Activate(name) for name in names))
        await self.look()
        assert self.states() == dict.fromkeys(names, "SERVING")

    def states(self) -> dict[str, str]:
        return {name: member.state.name for name, member in self.controller.pool.members.items()}

    def notes(self, kind: str) -> list[str]:
        return [f"{note.text} | {' '.join(note.reasons)}" for note in self.controller.book.notes if note.kind == kind]


@asynccontextmanager
async def scene(config: FleetConfig | None = None, scaler: Scaler | None = None) -> AsyncIterator[Scene]:
    made = Scene(config or FleetConfig(kind="processes", drain_s=30.0), scaler)
    try:
        yield made
    finally:
        await made.controller.close()
        assert made.fleet.closed


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_replicas_are_paid_for_from_asked_for_to_gone() -> None:
    async def test() -> None:
        async with scene() as s:
            assert s.controller.paid_for() == 0
            await s.look(Start(2))
            assert s.controller.paid_for() == 2
            await s.ready("p-1")
            await s.ready("p-2")
            await s.look(Activate("p-1"), Park("p-2"))
            assert s.controller.paid_for() == 2
            s.hands.works["p-1"] = Work(requests=1)
            await s.look(Drain("p-1"))
            assert s.states()["p-1"] == "DRAINING"
            assert s.controller.paid_for() == 2
            s.hands.works["p-1"] = Work()
            await s.look()
            assert s.controller.paid_for() == 1

    run(test)


def test_a_start_passes_through_every_state_and_is_used_only_when_told() -> None:
    async def test() -> None:
        async with scene() as s:
            s.hands.answering = False
            s.hands.phases = {"process": 0.5, "weights": 2.0}
            await s.look(Start(1))
            assert s.states() == {"p-1": "STARTING"}
            s.hands.answering = True
            await until(lambda: s.states() == {"p-1": "WARMING"})
            s.now += 2.5
            await s.ready("p-1")
            await s.look()
            assert s.states() == {"p-1": "READY"}
            assert s.hands.routed == {"p-1": False}
            await s.look(Activate("p-1"))
            assert s.hands.routed == {"p-1": True}
            state = s.controller.state()
            assert state["cold_starts"][0]["phases"] == {"process": 0.5, "weights": 2.0}
            assert state["start_s"] == pytest.approx(2.5)
            assert s.told.views[-1].start_s == pytest.approx(2.5)
            assert "because" in s.notes("decision")[-1]

    run(test)


def test_what_was_asked_for_is_in_the_view_from_the_first() -> None:
    async def test() -> None:
        async with scene() as s:
            s.told.say(Start(3))
            s.controller.look(s.now)
            assert [member.state for member in s.controller.pool.view(s.now).members] == [Lifecycle.STARTING] * 3
            await settle()
            assert [member.state for member in s.controller.pool.view(s.now).members] == [Lifecycle.WARMING] * 3

    run(test)


def test_only_one_that_joins_others_ramps_up_and_it_serves_when_the_ramp_is_over() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1")
            assert s.hands.ramped == []
            await s.look(Start(1))
            await s.ready("p-2")
            s.hands.works["p-2"] = Work(share=0.1)
            await s.look(Activate("p-2"))
            assert s.hands.ramped == ["p-2"]
            await s.look()
            assert s.states()["p-2"] == "RAMPING"
            s.hands.works["p-2"] = Work(share=1.0)
            await s.look()
            assert s.states()["p-2"] == "SERVING"

    run(test)


def test_a_parked_one_is_in_use_at_once_and_without_a_ramp() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1")
            await s.look(Start(1))
            await s.ready("p-2")
            await s.look(Park("p-2"))
            assert s.states()["p-2"] == "PARKED"
            assert s.hands.routed == {"p-1": True, "p-2": False}
            await s.look(Activate("p-2"), after_s=0.0)
            assert s.states()["p-2"] == "SERVING"
            assert s.hands.routed == {"p-1": True, "p-2": True}
            assert s.hands.ramped == []

    run(test)


def test_one_that_drains_is_stopped_when_it_is_empty() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            s.hands.works["p-1"] = Work(requests=2)
            await s.look(Drain("p-1"))
            assert s.hands.routed["p-1"] is False
            await s.look(Drain("p-1"), after_s=29.0)
            assert s.states()["p-1"] == "DRAINING"
            assert s.fleet.stopped == []
            s.hands.works["p-1"] = Work(requests=0)
            await s.look()
            assert [name for name, _ in s.fleet.stopped] == ["p-1"]
            assert s.states() == {"p-2": "SERVING"}
            assert "p-1" not in s.hands.joined

    run(test)


def test_what_is_left_after_the_grace_is_cut_off() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            s.hands.works["p-1"] = Work(requests=2)
            await s.look(Drain("p-1"))
            await s.look(after_s=29.9)
            assert s.fleet.stopped == []
            await s.look(after_s=0.2)
            assert [name for name, _ in s.fleet.stopped] == ["p-1"]
            assert any("cut off with 2 running" in note for note in s.notes("replica"))

    run(test)


def test_one_that_serves_is_emptied_before_it_is_parked_and_can_be_called_back() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            s.hands.works["p-2"] = Work(requests=1)
            await s.look(Park("p-2"))
            await s.look(after_s=500.0)  # kept ones are not cut off
            assert s.states()["p-2"] == "DRAINING"
            await s.look(Activate("p-2"))
            assert s.states()["p-2"] == "SERVING"
            await s.look(Park("p-2"))
            s.hands.works["p-2"] = Work(requests=0)
            await s.look()
            assert s.states()["p-2"] == "PARKED"
            assert s.fleet.stopped == []

    run(test)


def test_one_that_was_to_be_parked_can_still_be_stopped() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            s.hands.works["p-2"] = Work(requests=1)
            await s.look(Park("p-2"))
            await s.look(Drain("p-2"))
            s.hands.works["p-2"] = Work(requests=0)
            await s.look()
            assert [name for name, _ in s.fleet.stopped] == ["p-2"]

    run(test)


def test_one_that_is_not_ready_yet_is_stopped_without_further_ado() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.look(Start(1))
            await s.look(Drain("p-1"))
            assert [name for name, _ in s.fleet.stopped] == ["p-1"]
            assert s.states() == {}

    run(test)


def test_a_lost_one_that_its_fleet_brings_back_counts_as_on_its_way() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            s.fleet.tell(Vanished("p-1", "killed by signal 9", comes_back=True))
            assert "p-1" not in s.hands.joined
            await s.look()
            seen = {member.id: member.state for member in s.told.views[-1].members}
            assert seen == {"p-1": Lifecycle.STARTING, "p-2": Lifecycle.SERVING}
            assert any("killed by signal 9" in note for note in s.notes("trouble"))
            s.fleet.tell(Appeared(replica("p-1")))
            await settle()
            assert s.states()["p-1"] == "WARMING"
            await s.ready("p-1")
            await s.look(Activate("p-1"))
            assert s.hands.ramped == ["p-1"]

    run(test)


def test_a_lost_one_that_does_not_come_back_is_no_longer_shown() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            s.fleet.tell(Vanished("p-1", "its node is gone"))
            await s.look()
            assert [member.id for member in s.told.views[-1].members] == ["p-2"]
            assert not s.controller.broken.done()

    run(test)


def test_if_nothing_ever_gets_ready_it_is_said_why() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.look(Start(1))
            s.fleet.tell(Vanished("p-1", "its process ended with exit code 1"))
            with pytest.raises(StartupError, match="exit code 1"):
                await s.controller.broken

    run(test)


def test_a_start_that_cannot_be_had_is_tried_again_later_and_later() -> None:
    async def test() -> None:
        async with scene() as s:
            s.fleet.refuse = "no more machines: ask for some"
            await s.look(Start(1))
            assert s.controller.pool.view(s.now).members == ()
            assert any("no more machines" in note for note in s.notes("trouble"))
            await s.look(Start(1), after_s=0.5)  # too soon
            assert len(s.notes("trouble")) == 1
            await s.look(Start(1), after_s=1.0)
            assert len(s.notes("trouble")) == 2
            await s.look(Start(1), after_s=1.5)  # now it is two seconds
            assert len(s.notes("trouble")) == 2
            s.fleet.refuse = ""
            await s.look(Start(1), after_s=1.0)
            assert s.states() == {"p-1": "WARMING"}

    run(test)


def test_one_that_is_out_for_long_is_replaced_and_meanwhile_others_stand_in() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            s.hands.works["p-1"] = Work(share=0.0)
            await s.look()
            await s.look()
            assert {member.id: member.state for member in s.told.views[-1].members}["p-1"] is Lifecycle.STARTING
            await s.look(after_s=OUT_FOR_S)
            await s.look()
            assert [name for name, _ in s.fleet.stopped] == ["p-1"]

    run(test)


def test_one_that_never_gets_ready_is_given_up() -> None:
    async def test() -> None:
        async with scene(FleetConfig(kind="processes", start_limit_s=60.0)) as s:
            await s.look(Start(1))
            await s.look(after_s=61.0)
            assert [name for name, _ in s.fleet.stopped] == ["p-1"]

    run(test)


def test_at_zero_on_purpose_nothing_is_started_until_somebody_comes() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.serving("p-1", "p-2")
            assert s.controller.to_zero() == 2
            for _ in range(3):
                await s.look()
            assert s.states() == {}
            asked = len(s.told.views)
            await s.look(Start(1))
            assert len(s.told.views) == asked
            s.hands.wanted = Demand(waiting=1)
            await s.look()
            assert s.states() == {"p-3": "WARMING"}
            assert s.controller.pool.held is False

    run(test)


def test_a_burst_does_not_wait_for_the_next_look() -> None:
    async def test() -> None:
        config = FleetConfig(kind="processes", scale=ScaleConfig(min=1, max=2, warm=1, forecast=False))
        async with scene(config, Scaler(config.scale)) as s:
            running = asyncio.get_running_loop().create_task(s.controller.run())
            try:
                await until(lambda: set(s.hands.joined) == {"p-1", "p-2"})
                await s.ready("p-1")
                await s.ready("p-2")
                await until(lambda: "PARKED" in s.states().values() and any(s.hands.routed.values()))
                s.hands.wanted = Demand(waiting=5)  # and no time passes: the next look is not due
                await until(lambda: all(s.hands.routed.values()))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    run(test)


def test_decisions_are_kept_with_their_reasons_and_not_repeated() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.look(Start(1))
            await s.look()
            await s.look()
            assert s.notes("decision") == ["1 to serve, 0 parked: start 1 | because"]
            assert s.controller.news()["notes"][0]["text"] == "1 to serve, 0 parked: start 1"

    run(test)


# -- sleep ----------------------------------------------------------------------------------------------------------


async def resting(s: Scene) -> None:
    """One serves, and another is parked and told to sleep."""
    await s.look(Start(2))
    await s.ready("p-1")
    await s.ready("p-2")
    await s.look(Activate("p-1"), Park("p-2"))
    await s.look(Sleep("p-2"))


def test_a_parked_one_sleeps_and_wakes_before_it_gets_requests() -> None:
    async def test() -> None:
        async with scene() as s:
            await resting(s)
            assert s.states()["p-2"] == "ASLEEP"
            assert s.controller.lifecycle("p-2") == "asleep"
            await s.look(Activate("p-2"))
            assert s.hands.rested == ["sleep p-2", "wake p-2"]
            assert s.states()["p-2"] == "SERVING"
            assert s.hands.routed["p-2"]
            assert s.controller.state()["wake_s"] == 0.0
            assert "p-2 woke up in 0.00 s" in s.notes("replica")[-1]

    run(test)


def test_one_that_has_no_sleep_mode_stays_parked_and_people_are_told_what_to_do() -> None:
    async def test() -> None:
        async with scene() as s:
            s.hands.nap = Nap("awake", "it has no /sleep: start it with --enable-sleep-mode")
            await resting(s)
            assert s.states()["p-2"] == "PARKED"
            assert s.notes("trouble") == ["p-2 does not sleep | it has no /sleep: start it with --enable-sleep-mode"]

    run(test)


@pytest.mark.parametrize("nap", [Nap("unknown", "it answered 500"), RuntimeError("an answer that no code expects")])
def test_one_of_which_it_is_not_known_whether_it_sleeps_is_stopped_and_no_other(nap: Nap | Exception) -> None:
    async def test() -> None:
        async with scene() as s:
            s.hands.nap = nap
            await resting(s)
            assert s.states() == {"p-1": "SERVING"}
            assert s.fleet.stopped == [("p-2", STOP_GRACE_S)]
            assert not s.controller.broken.done()

    run(test)


@pytest.mark.parametrize("how", ["it says no", "it raises"])
def test_one_that_does_not_wake_up_is_stopped_and_no_other(how: str) -> None:
    async def test() -> None:
        async with scene() as s:
            await resting(s)
            s.hands.cannot_wake = "it answered 500"
            if how == "it raises":
                s.hands.nap = RuntimeError("an answer that no code expects")
            await s.look(Activate("p-2"))
            assert s.states() == {"p-1": "SERVING"}
            assert s.fleet.stopped == [("p-2", STOP_GRACE_S)]
            assert not s.controller.broken.done()
            assert "did not wake up" in s.notes("trouble")[-1]

    run(test)


def test_an_operator_lets_a_parked_one_sleep_and_wakes_it() -> None:
    async def test() -> None:
        async with scene() as s:
            await s.look(Start(1))
            await s.ready("p-1")
            await s.look(Park("p-1"))
            assert s.controller.sleep("p-1", "asked")
            await settle()
            assert s.states() == {"p-1": "ASLEEP"}
            assert not s.controller.sleep("p-1", "asked")
            assert s.controller.wake("p-1", "asked")
            await settle()
            assert s.states() == {"p-1": "PARKED"}
            assert s.hands.routed == {"p-1": False}

    run(test)
