"""Nouns are values: equal by what they say, readable, and errors own their outcome."""

from pathlib import Path
from typing import Any

import pytest

from headgate.config.cluster import KubernetesConfig, RayConfig
from headgate.config.contradictions import contradictions
from headgate.config.engine import EngineConfig
from headgate.config.file import describe, parse
from headgate.config.fleet import AccessConfig, EmulateConfig, FleetConfig, VllmConfig, flag_value
from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.hints import HttpUrl, RedisUrl
from headgate.config.models import ModelConfig
from headgate.config.scale import ScaleConfig
from headgate.model.errors import NotReady, QueueFull, Refused, ServeError
from headgate.model.outcome import Outcome
from headgate.model.replica import Load, Replica
from headgate.model.request import Request
from headgate.model.tier import Tier
from tests.model.test_gateway_config import allows


def request(name: str) -> Request:
    return Request(
        id=name,
        arrived=0.0,
        model="m",
        lane="fast",
        priority=0,
        prompt_tokens=10,
        max_output=10,
        wait_until=1.0,
        first_token_by=1.0,
    )


def test_requests_are_equal_by_what_they_say() -> None:
    assert request("a") == request("a") != request("b")
    assert len({request("a"), request("a"), request("b")}) == 2
    assert "id='a'" in repr(request("a"))
    assert "prompt_tokens=10" in repr(request("a"))


def test_use_is_the_part_of_the_room_that_is_taken() -> None:
    load = Load(Replica(id="a", url="http://a"), 8.0, requests=2)
    assert load.use == 0.25
    load.usable = 0.5
    assert load.use == 0.5


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (QueueFull("full"), Outcome.QUEUE_FULL),
        (NotReady("soon"), Outcome.NOT_READY),
        (Refused("no", Outcome.LANE_FULL, 1.0), Outcome.LANE_FULL),
    ],
)
def test_a_refusal_says_its_outcome_and_when_to_come_back(error: Refused, outcome: Outcome) -> None:
    assert isinstance(error, ServeError)
    assert (error.outcome, error.code, error.retry_after_s) == (outcome, outcome.value, 1.0)


def test_an_error_names_what_has_to_change() -> None:
    error = ServeError("too hot", param="temperature")
    assert (str(error), error.message, error.param) == ("too hot", "too hot", "temperature")


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://collector:4318/v1/traces", True),
        ("https://10.0.0.1", True),
        ("ftp://collector", False),
        ("http://user@collector", False),
        ("http://collector:0", False),
        ("http://collector:port", False),
    ],
)
def test_http_addresses(url: str, good: bool) -> None:
    assert allows(HttpUrl, url) == good


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("redis://10.0.0.1:6379/0", True),
        ("unix:///run/redis.sock", True),
        ("http://10.0.0.1", False),
        ("redis://:0", False),
        ("redis://h:port", False),
    ],
)
def test_redis_addresses(url: str, good: bool) -> None:
    assert allows(RedisUrl, url) == good


@pytest.mark.parametrize(
    ("fleet", "path"),
    [
        (FleetConfig(drain_s=1.0), "fleet.kind"),
        (FleetConfig(kind="ray", emulate=EmulateConfig(profile="h100-llama3-8b")), "fleet.emulate"),
        (FleetConfig(kind="processes", kubernetes=KubernetesConfig(name="x")), "fleet.kubernetes"),
        (
            FleetConfig(kind="kubernetes", kubernetes=KubernetesConfig(inference_pool="x")),
            "fleet.kubernetes.inference_pool",
        ),
        (FleetConfig(kind="processes", access=AccessConfig(api_key_file=Path("/key"))), "fleet.access"),
        (FleetConfig(kind="processes", ray=RayConfig(cpus=7.0)), "fleet.ray"),
        (FleetConfig(kind="processes", history="x", scale=ScaleConfig(forecast=False)), "fleet.history"),  # type: ignore[arg-type]
    ],
)
def test_fleet_settings_without_effect_are_named(fleet: FleetConfig, path: str) -> None:
    assert [found for found, _ in contradictions(GatewayConfig(fleet=fleet))] == [path]


def vllm_fleet(kind: Any = "processes", most: int = 1, emulate: str = "", **vllm: Any) -> FleetConfig:
    emulated = EmulateConfig(profile=emulate) if emulate else None
    made = VllmConfig(model="m", **vllm)
    return FleetConfig(kind=kind, scale=ScaleConfig(min=1, max=most), emulate=emulated, vllm=made)


@pytest.mark.parametrize(
    ("fleet", "path", "said"),
    [
        (vllm_fleet("ray"), "fleet.vllm", "vLLM is started as processes"),
        (vllm_fleet(emulate="h100-llama3-8b"), "fleet.vllm", "one or the other"),
        (vllm_fleet(flags=("--port", "1")), "fleet.vllm.flags", "leave --port out"),
        (vllm_fleet(flags=("--uds=/x",)), "fleet.vllm.flags", "leave --uds out"),
        (vllm_fleet(flags=("--api_key", "k")), "fleet.vllm.flags", "leave --api-key out"),
        (vllm_fleet(flags=("-pp", "2")), "fleet.vllm.flags", "pipeline parallelism"),
        (vllm_fleet(devices=("0",), most=2), "fleet.vllm.devices", "each of 2 replicas"),
    ],
)
def test_what_a_fleet_of_vllms_cannot_have_is_named(fleet: FleetConfig, path: str, said: str) -> None:
    ((found, problem),) = contradictions(GatewayConfig(fleet=fleet))
    assert found == path
    assert said in problem


def test_a_fleet_of_vllms_that_is_fine() -> None:
    flags = ("-pp", "1", "--enforce-eager", "-pp")
    for fleet in (
        vllm_fleet(flags=flags[:3], devices=("0", "1"), most=2),
        vllm_fleet(flags=("-pp", "2"), scheduler=False),
    ):
        assert list(contradictions(GatewayConfig(fleet=fleet))) == []
        both = GatewayConfig(fleet=fleet, embedded=EngineConfig())
        assert [path for path, _ in contradictions(both)] == ["embedded"]
    assert flag_value(flags, "-pp") == ""
    assert flag_value(("--a", "1", "--a=2"), "--a", "-b") == "2"
    assert flag_value(("x",), "--a") is None
    assert "up to 1 vLLM with m" in describe(GatewayConfig(fleet=vllm_fleet()))
    replicas = (Replica(id="a", url="http://a"),)
    assert "1 replica and up to 1 vLLM" in describe(GatewayConfig(fleet=vllm_fleet(), replicas=replicas))
    assert parse("fleet: {kind: processes, vllm: {model: m}, scale: {max: 1}}", "x.yaml").embedded is None


def test_reserves_of_tiers_add_up_and_tasks_and_models_are_known() -> None:
    tiers = (Tier(name="premium", reserve=0.7), Tier(name="free", reserve=0.7))
    assert [path for path, _ in contradictions(GatewayConfig(tiers=tiers))] == ["tiers"]
    tenants = (Tenant(name="acme", key_sha256=("1" * 64,), task="chats"),)
    ((path, said),) = contradictions(GatewayConfig(tenants=tenants))
    assert path == "tenants.acme.task"
    assert "no task is called chats" in said
    replicas = (Replica(id="a", url="http://a", model="llama"),)
    models = (ModelConfig(name="small", use="lama"),)
    ((path, said),) = contradictions(GatewayConfig(replicas=replicas, models=models))
    assert "lama" in said
    assert (
        list(contradictions(GatewayConfig(replicas=replicas, models=(ModelConfig(name="small", use="llama"),)))) == []
    )
