"""Everything but completions: health, models, figures, and a plain page."""

from html import escape

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate import __version__
from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.model.errors import NotReady
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router


class Surface:
    def __init__(self, gateway: Gateway, catalog: Catalog) -> None:
        self.draining = False
        self._gateway = gateway
        self._registry = CollectorRegistry()
        self._registry.register(Figures(gateway))
        self.router = Router(
            {
                ("POST", "/v1/chat/completions"): gateway.complete,
                ("POST", "/v1/completions"): gateway.complete,
                ("POST", "/v1/embeddings"): gateway.complete,
                ("GET", "/v1/models"): catalog.serve_list,
                ("GET", "/v1/models/*"): catalog.serve_one,
                ("GET", "/health/live"): self._live,
                ("GET", "/health/ready"): self._ready,
                ("GET", "/health"): self._ready,
                ("GET", "/metrics"): self._metrics,
                ("GET", "/"): self._page,
            }
        )

    def _live(self, exchange: Exchange) -> None:
        exchange.respond(200, b'{"status":"live"}')

    def _ready(self, exchange: Exchange) -> None:
        if self.draining:
            raise NotReady("draining")
        if not any(load.usable > 0 for load in self._gateway.dispatcher.fleet.loads.values()):
            raise NotReady("no replica is ready yet")
        exchange.respond(200, b'{"status":"ready"}')

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, generate_latest(self._registry), "text/plain; version=0.0.4; charset=utf-8")

    def _page(self, exchange: Exchange) -> None:
        exchange.respond(200, page(self._gateway).encode(), "text/html; charset=utf-8")


class Figures(Collector):
    """Read when asked: counting costs the request path nothing but integers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        account, dispatcher = self._gateway.account, self._gateway.dispatcher
        requests = CounterMetricFamily("headgate_requests", "Requests by how they ended", labels=["lane", "outcome"])
        for (lane, outcome), count in list(account.ended.items()):
            requests.add_metric([lane, outcome.value], count)
        tokens = CounterMetricFamily("headgate_tokens", "Tokens by direction", labels=["direction"])
        tokens.add_metric(["prompt"], account.prompt_tokens)
        tokens.add_metric(["output"], account.output_tokens)
        waiting = GaugeMetricFamily("headgate_waiting", "Requests waiting here", labels=["lane"])
        running = GaugeMetricFamily("headgate_running", "Requests at the replicas", labels=["lane"])
        for name in dispatcher.lanes:
            waiting.add_metric([name], dispatcher.waiting(name))
            running.add_metric([name], dispatcher.running(name))
        return [requests, tokens, waiting, running, *self._replicas()]

    def _replicas(self) -> list[GaugeMetricFamily]:
        usable = GaugeMetricFamily("headgate_replica_usable", "Share of its room it may use", labels=["replica"])
        busy = GaugeMetricFamily("headgate_replica_requests", "Requests it has", labels=["replica"])
        limit = GaugeMetricFamily("headgate_replica_limit", "Requests it may have", labels=["replica"])
        tokens = GaugeMetricFamily("headgate_replica_tokens", "Tokens outstanding", labels=["replica"])
        for load in self._gateway.dispatcher.fleet.loads.values():
            for family, value in (
                (usable, load.usable),
                (busy, load.requests),
                (limit, load.limit),
                (tokens, load.tokens),
            ):
                family.add_metric([load.id], value)
        return [usable, busy, limit, tokens]


def page(gateway: Gateway) -> str:
    dispatcher, account = gateway.dispatcher, gateway.account
    lanes = "".join(
        f"<tr><th scope=row>{escape(name)}</th>"
        f"<td>{dispatcher.running(name)}</td><td>{dispatcher.waiting(name)}</td>"
        f"<td>{sum(n for (lane, _), n in account.ended.items() if lane == name)}</td></tr>"
        for name in dispatcher.lanes
    )
    replicas = "".join(
        f"<tr><th scope=row>{escape(load.id)}</th><td>{load.requests} of {load.limit:.0f}</td>"
        f"<td>{load.tokens}</td><td>{'ready' if load.usable else 'out'}</td></tr>"
        for load in dispatcher.fleet.loads.values()
    )
    return PAGE.format(lanes=lanes, replicas=replicas, version=__version__)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Headgate</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="2">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; margin-bottom: 1.5rem; }}
caption {{ text-align: left; font-weight: 600; padding: .35rem 0; }}
th, td {{ text-align: left; padding: .35rem .5rem; border-bottom: 1px solid #8884; font-weight: normal; }}
td {{ font-variant-numeric: tabular-nums; }}
</style></head><body>
<h1>Headgate</h1>
<table><caption>Lanes</caption>
<tr><th scope=col>lane</th>
<th scope=col>running</th><th scope=col>waiting</th><th scope=col>ended</th></tr>{lanes}</table>
<table><caption>Replicas</caption>
<tr><th scope=col>replica</th>
<th scope=col>requests</th><th scope=col>tokens</th><th scope=col>state</th></tr>{replicas}</table>
<p>Figures: <a href="/metrics">/metrics</a>. API: <code>POST /v1/chat/completions</code>. Version {version}.</p>
</body></html>
"""
