"""How each gateway is installed and started.

`python benchmarks/gateway_peers.py install [NAME …]` puts the peers that come from PyPI into environments of their own
under .bench/. nginx is the system's.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.kit import OPEN_FILES, Command, free_port
from benchmarks.peers import ROOT, Unusable

ENVIRONMENTS = ROOT / ".bench"
COMPILED = Path(os.environ.get("HEADGATE_COMPILED", ROOT / "build" / "compiled"))


# -- what is started ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Site:
    """Where a gateway is put: its port, the replicas behind it, a folder of its own."""

    port: int
    replicas: tuple[int, ...]
    folder: Path
    key: str
    """Sent by the client to every gateway; one of them insists on a key."""
    slots: int | None = None
    """Requests each replica takes at once, for a gateway that would otherwise find out by itself."""
    copy: Path = COMPILED
    """The compiled copy of Headgate that is run, where the gateway is Headgate."""

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.replicas]


MOCKED: dict[str, object] = {"output": {"tasks": {"chat": {"runaway": "off"}}}}
"""Mocks say the alphabet again and again: watched, each of their streams would be ended after a hundred tokens. What
watching costs is in results/runaway.md."""


def headgate_command(site: Site) -> Command:
    """As `make serve` would start it: compiled, all policies, records and metrics at their defaults, but for MOCKED."""
    slots = {"slots": site.slots} if site.slots else {}
    return _configured(site, {"replicas": [{"url": url, **slots} for url in site.urls]})


def uninstrumented_command(site: Site) -> Command:
    """The same without records' figures, traces, alerts and explanations: requests are only counted."""
    return _configured(site, {"replicas": [{"url": url} for url in site.urls], "observe": {"instruments": False}})


def _configured(site: Site, config: dict[str, object]) -> Command:
    path = site.folder / "headgate.yaml"
    path.write_text(json.dumps({**config, **MOCKED}))  # JSON is YAML
    return headgate_with(site, ["--config", str(path)])


def headgate_with(site: Site, given: list[str]) -> Command:
    """The compiled copy, with these arguments to `serve`."""
    if not (site.copy / "headgate").is_dir():
        raise Unusable(f"no compiled Headgate in {site.copy}: make compiled, and see build/compile.log")
    path = os.pathsep.join(filter(None, (str(site.copy), os.environ.get("PYTHONPATH"))))
    argv = [sys.executable, "-m", "headgate", "serve", *given, "--port", str(site.port)]
    return Command(argv, {"PYTHONPATH": path})


NGINX = """daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile {files};
pid nginx.pid;
events {{ worker_connections {files}; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  upstream replicas {{ {servers} keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def nginx_command(site: Site) -> Command:
    """One worker that keeps its connections and passes each event on at once."""
    servers = " ".join(f"server 127.0.0.1:{port};" for port in site.replicas)
    config = NGINX.format(files=OPEN_FILES, servers=servers, port=site.port)
    if os.geteuid() != 0:
        config = config.replace("user root;\n", "")
    (site.folder / "nginx.conf").write_text(config)
    return Command(["nginx", "-p", str(site.folder), "-c", "nginx.conf", "-e", "stderr"])


def sglang_command(site: Site) -> Command:
    return Command([_program("sglang", "sglang-router"), "launch", *_router_flags(site), "--log-level", "error"])


def vllm_command(site: Site) -> Command:
    return Command([_program("vllm", "vllm-router"), *_router_flags(site), "--log-level", "error"])


def smg_command(site: Site) -> Command:
    """SGLang's router continued under a name of its own."""
    return Command([_program("smg", "smg"), "launch", *_router_flags(site), "--log-level", "error"])


def _router_flags(site: Site) -> list[str]:
    """The Rust routers share an ancestor. Policy, health checks and metrics as they come."""
    listen = ["--host", "127.0.0.1", "--port", str(site.port), "--prometheus-port", str(free_port())]
    return [*listen, "--worker-urls", *site.urls]


def litellm_command(site: Site) -> Command:
    replicas = [{"model": "openai/mock", "api_base": f"{url}/v1", "api_key": site.key} for url in site.urls]
    config = {"model_list": [{"model_name": "mock", "litellm_params": replica} for replica in replicas]}
    (site.folder / "litellm.yaml").write_text(json.dumps(config))
    argv = [_program("litellm", "litellm"), "--config", str(site.folder / "litellm.yaml")]
    # It refuses to start without a key, and asks the internet for a price list unless told not to.
    env = {"LITELLM_MASTER_KEY": site.key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    return Command([*argv, "--host", "127.0.0.1", "--port", str(site.port)], env)


@dataclass(frozen=True, slots=True)
class Gateway:
    name: str
    command: Callable[[Site], Command]
    requirement: str | None = None
    """What pip is told; None: not from PyPI."""


GATEWAYS = {
    "headgate": Gateway("Headgate", headgate_command),
    "nginx": Gateway("nginx", nginx_command),
    "sglang": Gateway("sglang-router", sglang_command, "sglang-router==0.3.2"),
    "vllm": Gateway("vllm-router", vllm_command, "vllm-router==0.1.16"),
    "smg": Gateway("smg", smg_command, "smg==1.13.0"),
    "litellm": Gateway("LiteLLM proxy", litellm_command, "litellm[proxy]==1.106.2"),
}
PEERS = tuple(key for key in GATEWAYS if key != "headgate")
GATEWAYS["uninstrumented"] = Gateway("Headgate without instruments", uninstrumented_command)
GATEWAYS["before"] = Gateway("Headgate before", headgate_command)
GATEWAYS["again"] = Gateway("Headgate before, again", headgate_command)


def version(key: str) -> str:
    """The version of the peer that is installed; Unusable says why there is none."""
    requirement = GATEWAYS[key].requirement
    if requirement is None:
        if not shutil.which("nginx"):
            raise Unusable("nginx is not on the PATH: apt-get install nginx")
        printed = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr
        return printed.strip().rpartition("/")[2]
    package = re.split(r"[\[=]", requirement)[0].replace("-", "_")
    for found in (ENVIRONMENTS / key).glob(f"lib/python*/site-packages/{package}-*.dist-info"):
        return found.name.removesuffix(".dist-info").rpartition("-")[2]
    raise Unusable(f"{GATEWAYS[key].name} is not in {ENVIRONMENTS / key}: make bench-peers")


def installed(keys: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """The versions of those that are there, and for each of the others why it is skipped."""
    found, skipped = {}, []
    for key in keys:
        try:
            found[key] = version(key)
        except Unusable as error:
            skipped.append(f"{key}: skipped: {error}")
    return found, skipped


def _program(key: str, name: str) -> str:
    return str(ENVIRONMENTS / key / "bin" / name)


# -- installation ---------------------------------------------------------------------------------


def install(keys: list[str]) -> None:
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    for key in keys:
        try:
            if requirement := GATEWAYS[key].requirement:
                _install(key, requirement)
            print(f"{GATEWAYS[key].name}: {version(key)}")
        except Unusable as error:
            print(f"{GATEWAYS[key].name}: skipped: {error}")


def _install(key: str, requirement: str) -> None:
    with suppress(Unusable):
        if version(key) == requirement.partition("==")[2]:
            return
    print(f"{GATEWAYS[key].name}: installing …", flush=True)
    python = ENVIRONMENTS / key / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    for argv in ([sys.executable, "-m", "venv", "--clear", str(python.parent.parent)], pip):
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise Unusable(next((line for line in reversed(lines) if "ERROR" in line), " ".join(lines[-1:])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("install",))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; all without it")
    args = parser.parse_args()
    if unknown := set(args.names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    install(args.names or list(PEERS))


if __name__ == "__main__":
    main()
