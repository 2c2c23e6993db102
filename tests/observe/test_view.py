"""What the diagnosis is shown of the fleet is what the dispatcher knows."""

import pytest

from headgate.config.gateway import ObserveConfig
from headgate.measure.conditions import START_S, Conditions
from headgate.measure.evidence import Evidence
from headgate.measure.figures import Figures
from headgate.model.event import Arrived
from headgate.model.lane import LANES
from headgate.surface.view import view
from tests.observe.test_alarms import Scene, replica, request


def test_the_fleets_own_figures() -> None:
    on = Scene(replica("a", 2), replica("b", 2), replica("c", 2))
    gone = on.dispatcher.index.loads["c"]
    gone.usable = 0.0
    on.dispatcher.index.changed(gone)
    for number in range(24):
        on.dispatcher.on(Arrived(request(number, on.now)), on.now)
    waiting = on.dispatcher.waiting("batch")
    assert waiting > 10
    figures = Figures(dict(LANES), ObserveConfig(), on.now)
    evidence = Evidence(lambda: LANES, lambda *_: {}, list)
    fleet = Conditions(on.dispatcher)
    fleet.read(on.now - START_S)
    seen = view(on.dispatcher, figures, evidence, ObserveConfig(availability=0.9), fleet.read(on.now), 0.25, on.now)
    assert (seen.replicas_up, seen.replicas_out) == (2, ("c",))
    assert seen.waiting_per_replica == waiting / 2
    assert seen.utilisation == pytest.approx(1.0)
    assert (seen.loop_lag_p99_s, seen.promised) == (0.25, ObserveConfig(availability=0.9))
    assert [one.lane.name for one in seen.lanes] == list(LANES)
