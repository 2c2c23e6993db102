"""Puts the pools of a fleet side by side: each has a controller of its own, and all are asked and shown as one."""

import asyncio
from collections.abc import Mapping
from typing import Any

from headgate.config.fleet import PoolConfig
from headgate.fleet.controller import Controller
from headgate.fleet.notes import NOTES
from headgate.fleet.port import FleetError
from headgate.model.replica import ReplicaId
from headgate.policy.scaling.board import PoolBoard
from headgate.policy.scaling.lifecycle import COMING, ROUTED, Lifecycle
from headgate.policy.scaling.member import PoolCounts
from headgate.policy.scaling.pool import ManagedPool

PAGE_NEWS = 8
"""Decisions that the page shows."""


class FleetPools:
    """Implements `upkeep.replica_set.FleetView` and `surface.fleet_admin.FleetControl` for all pools."""

    def __init__(
        self, controllers: Mapping[str, Controller], pools: Mapping[str, PoolConfig], board: PoolBoard
    ) -> None:
        """Controllers and settings by the pool's name."""
        self._board = board
        self.controllers = dict(controllers)
        self.pools = dict(pools)
        """Their settings, with those that were changed while they run."""

    async def run(self) -> None:
        """Runs until cancelled. Raises FleetError if a pool has nothing to start replicas on."""
        async with asyncio.TaskGroup() as tasks:
            for name, controller in self.controllers.items():
                tasks.create_task(_run(name, controller))

    async def close(self) -> None:
        """Stops every replica that these pools started."""
        await asyncio.gather(*(controller.close() for controller in self.controllers.values()))

    # -- what people ask for -----------------------------------------------------------------------------------

    def drain(self, replica_id: ReplicaId, why: str) -> bool:
        return self._owner(replica_id).drain(replica_id, why)

    def park(self, replica_id: ReplicaId, why: str) -> bool:
        return self._owner(replica_id).park(replica_id, why)

    def activate(self, replica_id: ReplicaId, why: str) -> bool:
        return self._owner(replica_id).activate(replica_id, why)

    def sleep(self, replica_id: ReplicaId, why: str) -> bool:
        return self._owner(replica_id).sleep(replica_id, why)

    def wake(self, replica_id: ReplicaId, why: str) -> bool:
        return self._owner(replica_id).wake(replica_id, why)

    def to_zero(self) -> int:
        """Stops all replicas of all pools until the next request for each. Returns how many there are."""
        return sum(controller.to_zero() for controller in self.controllers.values())

    def _owner(self, replica_id: ReplicaId) -> Controller:
        return next(controller for controller in self.controllers.values() if controller.owns(replica_id))

    # -- what is asked of them ---------------------------------------------------------------------------------

    def owns(self, replica_id: ReplicaId) -> bool:
        return any(controller.owns(replica_id) for controller in self.controllers.values())

    def lifecycle(self, replica_id: ReplicaId) -> str | None:
        found = (controller.lifecycle(replica_id) for controller in self.controllers.values())
        return next((state for state in found if state is not None), None)

    def paid_for(self) -> int:
        return sum(controller.paid_for() for controller in self.controllers.values())

    def counts(self, now: float) -> dict[str, PoolCounts]:
        """The pools by name, where they have names."""
        return {name: self._counted(name, now) for name in self.controllers if name}

    def _counted(self, name: str, now: float) -> PoolCounts:
        pool, share = self.controllers[name].pool, self._board.share(name, now)
        return PoolCounts(
            {"serving": pool.decision.serving, "parked": pool.decision.parked},
            _states(pool),
            tuple(pool.members),
            share.waiting if share.may_start else 0,
            self.pools[name].price,
        )

    def news(self) -> dict[str, Any]:
        """The part of the state that the page shows."""
        found = [self._named(name, controller.news()) for name, controller in self.controllers.items()]
        notes = _newest(found, PAGE_NEWS)
        return {**_summed(found), "notes": notes, "pools": [self._told(name) for name in self.controllers]}

    def state(self) -> dict[str, Any]:
        """The state for the admin API."""
        found = [self._named(name, controller.state()) for name, controller in self.controllers.items()]
        kinds = dict.fromkeys(one["kind"] for one in found)
        return {
            "kind": ", ".join(kinds),
            "held_at_zero": all(one["held_at_zero"] for one in found),
            "start_s": max(one["start_s"] for one in found),
            "wake_s": max(one["wake_s"] for one in found),
            **_summed(found),
            "replicas": [replica for one in found for replica in one["replicas"]],
            "cold_starts": sorted((start for one in found for start in one["cold_starts"]), key=lambda it: it["wall"]),
            "notes": _newest(found, NOTES),
            "pools": [self._told(name) for name in self.controllers],
        }

    @staticmethod
    def _named(name: str, state: dict[str, Any]) -> dict[str, Any]:
        """The state of a pool, whose notes and replicas say to which pool they belong; without a name, as it is."""
        if not name:
            return state
        notes = [{**note, "pool": name, "text": f"{name}: {note['text']}"} for note in state["notes"]]
        replicas = [{**replica, "pool": name} for replica in state.get("replicas", ())]
        reasons = tuple(f"{name}: {reason}" for reason in state["reasons"])
        return {**state, "notes": notes, "replicas": replicas, "reasons": reasons}

    def _told(self, name: str) -> dict[str, Any]:
        """A pool as people see it."""
        controller, pool = self.controllers[name], self.pools[name]
        return {
            "name": name or "default",
            "kind": pool.kind,
            "model": pool.model,
            "version": pool.version,
            "lanes": sorted(pool.lanes),
            "tags": pool.tags,
            "price": pool.price,
            "min": pool.scale.min,
            "max": pool.scale.max,
            "start_s": controller.pool.start_s,
            "wake_s": controller.pool.wake_s,
            "held_at_zero": controller.pool.held,
            "reasons": controller.pool.decision.reasons,
            "wanted_serving": controller.pool.decision.serving,
            "wanted_parked": controller.pool.decision.parked,
            **_states(controller.pool),
        }


async def _run(name: str, controller: Controller) -> None:
    try:
        await controller.run()
    except FleetError as error:
        raise FleetError(f"pool {name}: {error}" if name else str(error)) from error


def _states(pool: ManagedPool) -> dict[str, int]:
    """Replicas in each state."""
    states = [member.state for member in pool.members.values()]
    return {
        "serving": sum(state in ROUTED for state in states),
        "parked": states.count(Lifecycle.PARKED),
        "waking": states.count(Lifecycle.WAKING),
        "asleep": states.count(Lifecycle.ASLEEP) + states.count(Lifecycle.DOZING),
        "starting": sum(state in COMING or state is Lifecycle.READY for state in states),
        "draining": states.count(Lifecycle.DRAINING),
        "failed": states.count(Lifecycle.FAILED),
    }


def _summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    wanted = {name: sum(one["wanted"][name] for one in found) for name in ("serving", "parked")}
    return {"wanted": wanted, "reasons": tuple(reason for one in found for reason in one["reasons"])}


def _newest(found: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    notes = [note for one in found for note in one["notes"]]
    return sorted(notes, key=lambda note: -note["wall"])[:most] if len(found) > 1 else notes[:most]
