"""The figures that proxies are told, from the config; and what an ALB and Cloudflare are given."""

import json
from typing import Any

import pytest
import yaml

from headgate.config.file import parse
from headgate.config.gateway import GatewayConfig
from headgate.export.alb import alb
from headgate.export.cloudflare import cloudflare
from headgate.export.nginx import nginx, server_name
from headgate.export.proxy import Address, address, facing
from headgate.model.errors import StartupError


def config(**sections: Any) -> GatewayConfig:
    return parse(json.dumps(sections), "test")


def test_a_proxy_is_more_patient_than_the_gateway_and_keeps_connections_for_less_long() -> None:
    it = facing(GatewayConfig())
    assert it.quiet_s == 240 + 10 + 3 * 120
    assert it.kept_s < GatewayConfig().timeouts.idle_s
    patient = facing(config(timeouts={"first_token_s": 1000, "idle_s": 10}, retry={"attempts": 1}))
    assert patient.quiet_s == 240 + 10 + 1000
    assert patient.kept_s == 8
    quick = facing(config(timeouts={"first_token_s": 1}, lanes={"batch": {"wait_bound_s": 1}}))
    assert quick.quiet_s == 600  # an answer that is not streamed says nothing until it is whole


def test_where_the_gateway_is() -> None:
    assert facing(GatewayConfig()).gateways == (Address("127.0.0.1", 8000),)
    assert facing(config(listen={"host": "::", "port": 9})).gateways == (Address("::1", 9),)
    assert str(address("[fd00::7]:80")) == "[fd00::7]:80"
    with pytest.raises(StartupError, match="--gateway HOST:PORT"):
        facing(config(listen={"port": 0}))
    with pytest.raises(StartupError, match=r"listen\.uds.*--gateway HOST:PORT"):
        facing(config(listen={"uds": "/run/h.sock"}))


@pytest.mark.parametrize("text", ["", "a", "a:b", ":80", "a:80/x", "a:80;evil", "u@a:80", "a:99999", "a b:80"])
def test_no_address_of_a_gateway(text: str) -> None:
    with pytest.raises(StartupError, match="expected host:port"):
        address(text)


@pytest.mark.parametrize("text", ["", "a;b", "a {", "a\nb", "$host"])
def test_no_name_of_a_server(text: str) -> None:
    with pytest.raises(StartupError, match="--name"):
        server_name(text)


def test_limits_of_the_config_are_nginxs_too() -> None:
    made = nginx(facing(config(limits={"body_bytes": 5000, "header_bytes": 8192})))
    assert "client_max_body_size 5000;" in made
    assert "client_body_buffer_size 5000;" in made
    assert "large_client_header_buffers 4 8k;" in made


def attributes(part: dict[str, Any], name: str) -> dict[str, str]:
    return {it["Key"]: it["Value"] for it in part["Properties"][name]}


def test_an_alb_waits_long_enough_and_says_what_the_gateway_must_do() -> None:
    text = alb(GatewayConfig(), facing(GatewayConfig()))
    made = yaml.safe_load(text)
    assert (
        attributes(made["Resources"]["LoadBalancer"], "LoadBalancerAttributes")["idle_timeout.timeout_seconds"] == "610"
    )
    assert "set timeouts.idle_s to 670 or more" in text
    group = made["Resources"]["Gateways"]
    assert group["Properties"]["HealthCheckPath"] == "/health/ready"
    assert attributes(group, "TargetGroupAttributes")["load_balancing.algorithm.type"] == "least_outstanding_requests"
    assert set(_refs(made["Resources"])) <= {*made["Parameters"], *made["Resources"]}


def test_an_alb_before_a_gateway_that_keeps_connections_long_enough() -> None:
    it = config(timeouts={"idle_s": 700})
    assert "BEFORE USE" not in alb(it, facing(it))


def test_an_alb_can_not_wait_for_ever() -> None:
    it = config(timeouts={"first_token_s": 5000})
    text = alb(it, facing(it))
    balancer = yaml.safe_load(text)["Resources"]["LoadBalancer"]
    assert attributes(balancer, "LoadBalancerAttributes")["idle_timeout.timeout_seconds"] == "4000"
    assert "waits at most 4000 s" in text


def test_cloudflare_names_the_lanes_that_wait_longer_than_it_does() -> None:
    text = cloudflare(GatewayConfig(), facing(GatewayConfig()), "llm.test")
    made = yaml.safe_load(text)
    assert "in lane batch:" in text
    assert made["ingress"][0] == {"hostname": "llm.test", "path": "^/(v1|health)/", "service": "http://127.0.0.1:8000"}
    assert made["ingress"][-1] == {"service": "http_status:404"}  # cloudflared wants a last rule without a name
    assert all(len(line) <= 120 for line in text.splitlines())
    lanes = {"batch": {"wait_bound_s": 30, "ttft_target_s": 60}, "long": {"ttft_target_s": 9}}
    quick = config(lanes=lanes, timeouts={"first_token_s": 20, "idle_s": 1000})
    assert "lane" not in cloudflare(quick, facing(quick))


def _refs(part: Any) -> list[str]:
    if isinstance(part, dict):
        return [part["Ref"]] if set(part) == {"Ref"} else [ref for value in part.values() for ref in _refs(value)]
    return [ref for value in part for ref in _refs(value)] if isinstance(part, list) else []
