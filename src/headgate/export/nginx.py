"""Renders nginx in front of the gateway, so that no token is held back and disconnects reach the gateway.

nginx's defaults are made for pages: it collects an answer before it forwards it, talks HTTP/1.0 without keep-alive to
the upstream, and gives up after a minute. The file sets all of this, even where it equals a default, because a line in
`http {}` may differ.
"""

import re

from headgate.export.proxy import Facing
from headgate.model.errors import UsageError

IN_MEMORY = 1 << 20
"""Bytes of a request body that wait in memory until the body is complete; a larger body is written to a file."""


def nginx(facing: Facing, listen: int = 80, name: str = "_") -> str:
    """A file for conf.d: an upstream and a server, to be included inside `http {}`."""
    servers = "\n".join(f"    server {gateway};" for gateway in facing.gateways)
    return f"""\
# Made by `headgate export nginx`: change the config, not this file.
# Put it into conf.d/, inside http {{}}. Each stream takes two of events {{ worker_connections }}.
# For TLS: listen 443 ssl; ssl_certificate …; ssl_certificate_key …;

map $http_upgrade $headgate_connection {{
    default upgrade;                      # WebSocket
    ''      '';                           # anything else: keep the connection to the gateway
}}

upstream headgate {{
{servers}
    keepalive {min(1024, facing.connections)};
    keepalive_timeout {facing.kept_s}s;                # less than the gateway's own: it must never close first
    keepalive_requests 1000000;
}}

server {{
    listen {listen};
    server_name {name};

    client_max_body_size {facing.body_bytes};         # more is the gateway's 413 anyway
    client_body_buffer_size {min(IN_MEMORY, facing.body_bytes)};
    client_body_timeout {facing.body_s}s;
    client_header_timeout {facing.header_s}s;
    large_client_header_buffers 4 {max(1, facing.header_bytes // 1024)}k;
    keepalive_requests 1000000;

{_location(facing)}
}}
"""


def _location(facing: Facing) -> str:
    scheme = "https" if facing.tls else "http"
    tls = "\n        proxy_ssl_server_name on;" if facing.tls else ""
    return f"""\
    location / {{
        proxy_pass {scheme}://headgate;
        proxy_http_version 1.1;{tls}
        proxy_set_header Host $host;
        proxy_set_header Connection $headgate_connection;
        proxy_set_header Upgrade $http_upgrade;
        # The admin API counts on these: whoever comes through here is not on this machine.
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;

        # Every token as it comes.
        proxy_buffering off;
        proxy_cache off;
        gzip off;
        tcp_nodelay on;

        # A client that leaves is gone for the gateway too, which stops the engine.
        proxy_ignore_client_abort off;

        # The gateway gives up first, and says why.
        proxy_connect_timeout {facing.connect_s}s;
        proxy_send_timeout {facing.body_s}s;
        proxy_read_timeout {facing.quiet_s}s;
        proxy_socket_keepalive on;

        # Only a gateway that can't be reached is another one's turn: the gateway does its own retries.
        proxy_next_upstream error;
        proxy_intercept_errors off;
    }}"""


def server_name(text: str) -> str:
    """Returns a name that is safe after server_name. Raises StartupError for any other."""
    if not re.fullmatch(r"[A-Za-z0-9_.*-]{1,253}", text):
        raise UsageError(f"--name: expected a host name such as llm.example.com, got {text!r}")
    return text
