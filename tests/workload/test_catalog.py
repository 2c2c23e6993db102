"""Named workloads with their targets."""

from dataclasses import replace

import pytest
from rich.console import Console

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.report import goodput
from headgate.report.results import Target
from headgate.sim.planning.command import SimulateOptions, WorkloadOptions, _simulated
from headgate.workload.arrival import WorkloadError
from headgate.workload.catalog import CATALOG
from headgate.workload.load import Workload


@pytest.mark.parametrize("name", list(CATALOG))
def test_each_can_be_played_and_has_targets(name: str) -> None:
    workload = Workload(f"catalog:{name}", duration_s=60.0)
    arrivals = list(workload.arrivals(1))
    assert arrivals
    assert {arrival.name for arrival in arrivals} == {name}
    assert goodput.parse(workload.goodput)


def test_shared_prefix_has_150_beginnings_and_no_session() -> None:
    arrivals = list(Workload("catalog:shared-prefix", duration_s=60.0).arrivals(1))
    assert 140 <= len({arrival.prefix for arrival in arrivals}) <= 150
    assert {len(arrival.prefix) for arrival in arrivals} == {12}
    assert {(a.prompt_tokens, a.output_tokens, a.session) for a in arrivals} == {(7200, 100, None)}


def test_options_replace_those_of_the_catalog() -> None:
    (stream,) = Workload("catalog:batch,rate=9,output=7").streams
    assert (stream.rate, stream.output and stream.output.most, stream.lane) == (9.0, 7, "batch")


def test_a_mix_has_no_targets_of_its_own() -> None:
    mixed = Workload("catalog:reasoning; catalog:batch; poisson:rate=1")
    assert mixed.goodput == ()
    assert [stream.name for stream in mixed.streams] == ["reasoning", "batch", ""]


def test_the_catalogs_targets_are_judged_unless_others_are_given() -> None:
    load = WorkloadOptions(workload="catalog:shared-prefix", rate=2.0, requests=5)
    options = SimulateOptions(
        load=load, config=GatewayConfig(), profile=PROFILES["h100-llama3-8b"], replicas=1, level="gateway"
    )
    quiet = Console(quiet=True)
    assert _simulated(options, quiet).goodput == (Target("ttft", 2.0),)
    assert _simulated(replace(options, goodput=("e2el:900",)), quiet).goodput == (Target("e2e", 0.9),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("catalog:", "catalog: which workload?; there are catalog:interactive-chat (people's chats"),
        ("catalog:agnet", "no workload 'agnet' (did you mean 'agent'?)"),
        ("catalog:batch,rat=1", "did you mean 'rate'?"),
        ("poisson:rate=1,prefixes=3", "prefixes goes with shared"),
    ],
)
def test_what_is_wrong_is_said_and_what_there_is(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        Workload(text)
    assert said in str(caught.value)
