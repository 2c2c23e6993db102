"""Renders Cloudflare in front of the gateway: a tunnel's config file, with notes on what no file can set.

Cloudflare forwards text/event-stream as it comes, and resets the connection to the gateway when a client leaves. Its
timeout can be changed only on the Enterprise plan, so Cloudflare is the one proxy that may give up before the gateway
does; the notes name the lanes concerned.
"""

import yaml

from headgate.config.gateway import GatewayConfig
from headgate.export.proxy import Facing, first_byte_s
from headgate.model.labels import plain

PATIENCE_S = 120
"""Proxy Read Timeout in seconds, after which the client gets 524. It was 100 until 2025, and applies between any two
reads."""
KEPT_S = 900
"""Proxy Idle Timeout in seconds: how long an unused connection to the origin is kept. A tunnel has its own, set
below."""


def cloudflare(config: GatewayConfig, facing: Facing, hostname: str = "llm.example.com") -> str:
    scheme = "https" if facing.tls else "http"
    tunnel = {
        "tunnel": "TUNNEL-ID",
        "credentials-file": "/etc/cloudflared/TUNNEL-ID.json",
        "originRequest": {
            "connectTimeout": f"{facing.connect_s}s",
            "keepAliveTimeout": f"{facing.kept_s}s",
            "keepAliveConnections": min(1024, facing.connections),
            "disableChunkedEncoding": False,
        },
        "ingress": [
            # One public name, and only the paths that clients need: the admin API is not reached through Cloudflare.
            {"hostname": hostname, "path": "^/(v1|health)/", "service": f"{scheme}://{facing.gateways[0]}"},
            {"service": "http_status:404"},
        ],
    }
    notes = "".join(f"# {line}".rstrip() + "\n" for line in _notes(config))
    return notes + yaml.safe_dump(tunnel, sort_keys=False, width=120)


def _notes(config: GatewayConfig) -> list[str]:
    lines = [
        "Made by `headgate export cloudflare`: config.yml of cloudflared, for a named tunnel to the gateway.",
        "",
        "What Cloudflare does, and what to set in its dashboard:",
        "- Streams (text/event-stream) pass as they come. Leave Response Buffering off (Enterprise), and let no rule",
        "  cache /v1/* or change its body.",
        "- Quick tunnels (trycloudflare.com) hold streams back: use a named one.",
        f"- After {PATIENCE_S} s in which the gateway says nothing the client gets 524. Only Enterprise can change",
        "  that (Proxy Read Timeout). So long answers should be streamed.",
    ]
    slow = [lane.name for lane in config.lanes if lane.wait_bound_s + lane.ttft_target_s > PATIENCE_S]
    if slow:
        lines.append(f"- Requests may wait longer than that in {_lanes(slow)}: ask them past Cloudflare.")
    if first_byte_s(config) > PATIENCE_S:
        lines.append(
            f"- A first byte may take up to {plain(first_byte_s(config), 6)} s here"
            " (timeouts.first_token_s, retry.attempts)."
        )
    if config.timeouts.idle_s <= KEPT_S:
        lines += [
            f"- Without a tunnel, set timeouts.idle_s to more than {KEPT_S} in the gateway's config: Cloudflare keeps",
            "  unused connections that long.",
        ]
    return [*lines, "- `headgate doctor --url https://YOUR-NAME` tests tokens and disconnects through it.", ""]


def _lanes(names: list[str]) -> str:
    return f"lane {names[0]}" if len(names) == 1 else f"lanes {', '.join(names)}"
