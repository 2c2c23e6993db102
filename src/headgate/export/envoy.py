"""Renders Envoy in front of the gateway, as a v3 bootstrap with one listener and one cluster.

Envoy does not buffer, and resets the upstream stream when a client leaves. The bootstrap sets the rest: no limit on the
duration of an answer (15 s by default), a longer timeout for a silent stream, small buffers so that the gateway notices
a slow client, and room for more than the 1024 requests that a cluster may have by default.
"""

from typing import Any

import yaml

from headgate.export.proxy import Facing

BUFFER_BYTES = 32 * 1024
"""Buffer per connection and direction, in bytes: the gateway notices a client that does not read after this amount."""
_TYPES = "type.googleapis.com/envoy"
_MANAGER = f"{_TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = f"{_TYPES}.extensions.filters.http.router.v3.Router"
_PROTOCOL = f"{_TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions"
_TLS = f"{_TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext"

Part = dict[str, Any]


def envoy(facing: Facing, listen: int = 8080) -> str:
    """The whole file, as `envoy -c` takes it."""
    bootstrap = {"static_resources": {"listeners": [listener(facing, listen)], "clusters": [_cluster(facing)]}}
    text = yaml.safe_dump(bootstrap, sort_keys=False, width=120)
    return f"# Made by `headgate export envoy`: change the config, not this file.\n{text}"


def listener(facing: Facing, port: int, filters: tuple[Part, ...] = (), retries: Part | None = None) -> Part:
    """The listener for clients. `filters`: what looks at a request before it is sent. `retries`: Envoy's retry policy;
    None: no request is sent twice."""
    manager = {
        "@type": _MANAGER,
        "stat_prefix": "headgate",
        "codec_type": "AUTO",
        "use_remote_address": True,  # sets x-forwarded-for, by which the admin API knows which clients are remote
        "preserve_external_request_id": True,
        "max_request_headers_kb": max(1, facing.header_bytes // 1024),
        "common_http_protocol_options": {"idle_timeout": "3600s"},
        "request_headers_timeout": f"{facing.header_s}s",
        "request_timeout": f"{facing.header_s + facing.body_s}s",
        "stream_idle_timeout": f"{facing.quiet_s}s",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_filters": [*filters, {"name": "envoy.filters.http.router", "typed_config": {"@type": _ROUTER}}],
        "route_config": {
            "name": "headgate",
            "virtual_hosts": [{"name": "headgate", "domains": ["*"], "routes": [_route(facing, retries)]}],
        },
    }
    return {
        "name": "headgate",
        "address": socket("0.0.0.0", port),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _route(facing: Facing, retries: Part | None) -> Part:
    """0 s: no limit on the duration of an answer. Without a retry policy no request is sent twice."""
    route: Part = {"cluster": "headgate", "timeout": "0s", "idle_timeout": f"{facing.quiet_s}s"}
    if retries is not None:
        route["retry_policy"] = retries
    return {"match": {"prefix": "/"}, "route": route}


def _cluster(facing: Facing) -> Part:
    room = facing.connections
    cluster: Part = {
        "name": "headgate",
        "type": "STRICT_DNS",
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": f"{facing.connect_s}s",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _PROTOCOL,
                "explicit_http_config": {"http_protocol_options": {}},
                "common_http_protocol_options": {"idle_timeout": f"{facing.kept_s}s"},
            }
        },
        "circuit_breakers": {
            "thresholds": [{"max_connections": room, "max_pending_requests": room, "max_requests": room}]
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health/ready"},
            }
        ],
        "load_assignment": {
            "cluster_name": "headgate",
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": socket(g.host, g.port)}} for g in facing.gateways]}
            ],
        },
    }
    if facing.tls:
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": _TLS, "sni": facing.gateways[0].host},
        }
    return cluster


def socket(host: str, port: int) -> Part:
    return {"socket_address": {"address": host, "port_value": port}}
