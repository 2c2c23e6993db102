"""Renders Envoy that asks an endpoint picker (`headgate epp`) where each request may go, and sends it there itself.

The picker's answer names a replica and those to try if it can't be reached; Envoy's `override_host` policy follows it.
Lean: Envoy shows the picker the request only. Full: the answer too, for its status, first token and usage.
"""

from typing import Any

import yaml

from headgate.config.gateway import GatewayConfig
from headgate.export.envoy import BUFFER_BYTES, Part, listener, socket
from headgate.export.proxy import Address, address, facing
from headgate.model.errors import UsageError

_TYPES = "type.googleapis.com/envoy"
_EXT_PROC = f"{_TYPES}.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_OVERRIDE = f"{_TYPES}.extensions.load_balancing_policies.override_host.v3.OverrideHost"
_FEWEST = f"{_TYPES}.extensions.load_balancing_policies.least_request.v3.LeastRequest"
_PROTOCOL = f"{_TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions"
ENDPOINT = "x-gateway-destination-endpoint"
STREAMS = 65_536
"""Requests that Envoy may have open at the picker: each takes one, however long its answer."""


def envoy_with_picker(config: GatewayConfig, picker: str, listen: int = 8080, full: bool = False) -> str:
    """The whole file, as `envoy -c` takes it. `picker`: its address, as host:port."""
    if not config.replicas:
        raise UsageError("envoy with a picker needs replicas in the config: Envoy has to know them, too")
    it = facing(config)
    shown = "FULL_DUPLEX_STREAMED" if full else "NONE"
    asking = {
        "@type": _EXT_PROC,
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": f"{it.connect_s}s"},
        "failure_mode_allow": False,
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND" if full else "SKIP",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": shown,
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",  # without it, Envoy leaves the picker as soon as the endpoint is chosen
        },
        "message_timeout": f"{it.quiet_s}s",  # a request waits for the answer while it queues
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }
    filters = ({"name": "envoy.filters.http.ext_proc", "typed_config": asking},)
    front = listener(it, listen, filters, {"retry_on": "connect-failure", "num_retries": 2})
    clusters = [_replicas([address(_host(replica.url)) for replica in config.replicas], it), _picker(address(picker))]
    text = yaml.safe_dump(
        {"static_resources": {"listeners": [front], "clusters": clusters}}, sort_keys=False, width=120
    )
    return f"# Made by `headgate export envoy --picker`: change the config, not this file.\n{text}"


def _host(url: str) -> str:
    if not url.startswith("http://"):
        raise UsageError(f"{url}: Envoy is rendered for plain HTTP replicas only; give it TLS by hand")
    return url.removeprefix("http://").rstrip("/")


def _replicas(addresses: list[Address], it: Any) -> Part:
    room = it.connections
    metadata = {"key": "envoy.lb", "path": [{"key": ENDPOINT}]}
    override = {
        "@type": _OVERRIDE,
        "override_host_sources": [{"header": ENDPOINT}, {"metadata": metadata}],
        "fallback_policy": {
            "policies": [{"typed_extension_config": {"name": "fewest", "typed_config": {"@type": _FEWEST}}}]
        },
    }
    return {
        "name": "headgate",
        "type": "STRICT_DNS",
        "connect_timeout": f"{it.connect_s}s",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "load_balancing_policy": {
            "policies": [{"typed_extension_config": {"name": "override_host", "typed_config": override}}]
        },
        "circuit_breakers": {
            "thresholds": [{"max_connections": room, "max_pending_requests": room, "max_requests": room}]
        },
        "load_assignment": {
            "cluster_name": "headgate",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(a.host, a.port)}} for a in addresses]}],
        },
    }


def _picker(where: Address) -> Part:
    return {
        "name": "picker",
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _PROTOCOL,
                "explicit_http_config": {"http2_protocol_options": {"max_concurrent_streams": STREAMS}},
            }
        },
        # 1024 by default: the streams of a busy hour would be refused.
        "circuit_breakers": {"thresholds": [{"max_requests": STREAMS, "max_pending_requests": STREAMS}]},
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(where.host, where.port)}}]}],
        },
    }
