"""Decides for a fleet that something else scales, such as KEDA: every ready replica serves, none is started or
stopped."""

from headgate.policy.scaling.lifecycle import OVER, Lifecycle
from headgate.policy.scaling.scale import Activate, Decision, PoolView


class Follow:
    """Takes the place of policy/scaling/scale.Scaler."""

    def decide(self, view: PoolView, now: float, wall: float) -> Decision:
        there = [member for member in view.members if member.state not in OVER]
        idle = [member for member in there if member.state in (Lifecycle.READY, Lifecycle.PARKED)]
        actions = tuple(Activate(member.id) for member in idle)
        return Decision(len(there), 0, actions, ("whoever is ready serves: something else scales this pool",))
