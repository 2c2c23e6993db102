"""Adds `headgate export`, which prints what other tools need, made from the gateway's config."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter, validators

from headgate.cli.setup.groups import FIT_IN
from headgate.config.gateway import GatewayConfig

if TYPE_CHECKING:
    from headgate.export.kubernetes import ManifestValues

export = App(name="export", group=FIT_IN, help="Print what other tools need, made from the gateway's own config.")
OWN = Group("The config")
FRONT = Group("In front of the gateway")
INSTRUMENTS = Group("Instruments")
CLUSTERS = Group("Clusters")
Config = Annotated[Path | None, Parameter(name="--config")]
Gateways = Annotated[tuple[str, ...], Parameter(name="--gateway", negative="")]
Port = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=65535))]


def add_to(app: App) -> None:
    app.command(export)


@export.command(group=OWN)
def schema() -> None:
    """The JSON schema of the config file, for editors: keys, types, bounds and what each setting means."""
    import json

    from headgate.config.forms.schema import schema as made

    print(json.dumps(made(), indent=1))


@export.command(group=OWN)
def example() -> None:
    """headgate.example.yaml, the config that shows every setting with its default."""
    from headgate.cli.setup.example import example_text

    print(example_text(), end="")


@export.command(name="prometheus-rules", group=INSTRUMENTS)
def prometheus_rules(*, config: Config = None) -> None:
    """Recording and alerting rules for the promises of every lane.

    Parameters
    ----------
    config
        The gateway's YAML file. Default: the default lanes and promises.
    """
    from headgate.export.prometheus_rules import rules

    print(rules(_load(config)), end="")


@export.command(group=INSTRUMENTS)
def grafana(*, config: Config = None) -> None:
    """A dashboard, as JSON to import.

    Parameters
    ----------
    config
        The gateway's YAML file. Default: the default lanes and promises.
    """
    from headgate.export.grafana import dashboard

    print(dashboard(_load(config)))


# -- what stands in front ----------------------------------------------------------------------------------


@export.command(group=FRONT)
def nginx(*, gateway: Gateways = (), listen: Port = 80, name: str = "_", config: Config = None) -> None:
    """Settings for nginx that hold no token back and pass disconnects on: a file for conf.d.

    Parameters
    ----------
    gateway
        Where a gateway listens, as host:port; may be given several times. Default: this machine, the config's port.
    listen
        Port for clients.
    name
        The server's name, as clients call it. Default: any.
    config
        The gateway's YAML file. Default: all defaults.
    """
    from headgate.export import nginx as made
    from headgate.export.proxy import facing

    print(made.nginx(facing(_load(config), gateway), listen, made.server_name(name)), end="")


@export.command(group=FRONT)
def envoy(
    *, gateway: Gateways = (), picker: str | None = None, full: bool = False, listen: Port = 8080, config: Config = None
) -> None:
    """The same for Envoy: a whole bootstrap file.

    Parameters
    ----------
    gateway
        Where a gateway listens, as host:port; may be given several times. Default: this machine, the config's port.
    picker
        Where `headgate epp` listens, as host:port: Envoy asks it, and sends to the config's replicas itself.
    full
        With --picker: Envoy shows it the answers too, for first tokens, usage and failures. Costs a message per part.
    listen
        Port for clients.
    config
        The gateway's YAML file. Default: all defaults.
    """
    from headgate.export import envoy as made
    from headgate.export.envoy_picker import envoy_with_picker
    from headgate.export.proxy import facing

    if picker is not None:
        print(envoy_with_picker(_load(config), picker, listen, full), end="")
        return

    print(made.envoy(facing(_load(config), gateway), listen), end="")


@export.command(group=FRONT)
def alb(*, config: Config = None) -> None:
    """The same for an AWS Application Load Balancer: a CloudFormation template.

    Parameters
    ----------
    config
        The gateway's YAML file. Default: all defaults.
    """
    from headgate.export import alb as made
    from headgate.export.proxy import facing

    chosen = _load(config)
    print(made.alb(chosen, facing(chosen)), end="")


@export.command(group=FRONT)
def cloudflare(*, gateway: Gateways = (), name: str = "llm.example.com", config: Config = None) -> None:
    """The same for Cloudflare: a tunnel's config.yml, with notes on what Cloudflare does by itself.

    Parameters
    ----------
    gateway
        Where the gateway listens, as host:port. Default: this machine, the config's port.
    name
        The public host name.
    config
        The gateway's YAML file. Default: all defaults.
    """
    from headgate.export import cloudflare as made
    from headgate.export.proxy import facing

    chosen = _load(config)
    print(made.cloudflare(chosen, facing(chosen, gateway), name), end="")


# -- clusters ----------------------------------------------------------------------------------------------


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    name: str = "headgate"
    """Name of everything; the engines are NAME-engine."""
    namespace: str | None = None
    """Namespace. Default: the current one of the user who applies the manifests."""
    image: str | None = None
    """The gateway's image, made from the Containerfile. Default: headgate, of this version."""
    engine: str = "headgate"
    """Kind: headgate; or vllm, sglang, tgi, tensorrt_llm, triton, llama_cpp, openai, which need --engine-image."""
    engine_image: str | None = None
    """The engines' image. Default: for Headgate's own engine, the gateway's."""
    engine_arg: Annotated[tuple[str, ...], Parameter(negative="", allow_leading_hyphen=True)] = ()
    """One word of the engine's command line, in order; may be given many times. Default: as the engine wants it."""
    gateways: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 1
    """Number of gateways. With more than one, KEDA has to scale the engines."""
    gpus: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 0
    """GPUs for each engine."""
    keda: Annotated[bool, Parameter(negative="")] = False
    """KEDA scales the engines, and the gateway does not."""

    def parts(self) -> "ManifestValues":
        from headgate.export.kubernetes import ManifestValues, checked

        return checked(
            ManifestValues(
                name=self.name,
                namespace=self.namespace,
                image=self.image or ManifestValues().image,
                engine_image=self.engine_image,
                gateways=self.gateways,
                gpus=self.gpus,
                keda=self.keda,
                engine_kind=self.engine,
                engine_args=self.engine_arg or None,
            )
        )


@export.command(group=CLUSTERS)
def kubernetes(*, flags: ClusterFlags | None = None, config: Config = None) -> None:
    """Manifests for a gateway and its engines: pipe them into `kubectl apply -f -`.

    Parameters
    ----------
    config
        The gateway's YAML file. Default: all defaults.
    """
    from headgate.export import kubernetes as made

    chosen = _load(config)
    print(made.kubernetes(chosen, (flags or ClusterFlags()).parts(), _text(config)), end="")


@export.command(group=CLUSTERS)
def helm(out: Path, *, flags: ClusterFlags | None = None, prometheus: str | None = None, config: Config = None) -> None:
    """The same as a Helm chart, written to a folder.

    Parameters
    ----------
    out
        The chart's folder; made if it is not there.
    prometheus
        Where KEDA reads the gateways' figures.
    config
        The gateway's YAML file. Default: all defaults.
    """
    from headgate.export import keda as scaled
    from headgate.export.helm import write_chart

    chosen = _load(config)
    parts = (flags or ClusterFlags()).parts()
    written = write_chart(chosen, parts, out, _text(config), prometheus or scaled.PROMETHEUS)
    print(f"{len(written)} files in {out}. Try: helm install {parts.name} {out}")


@export.command(group=CLUSTERS)
def keda(*, flags: ClusterFlags | None = None, prometheus: str | None = None, config: Config = None) -> None:
    """A KEDA ScaledObject that scales the engines on the gateways' queue depth.

    Parameters
    ----------
    prometheus
        Where KEDA reads the gateways' figures.
    config
        The gateway's YAML file. Default: all defaults.
    """
    from headgate.export import keda as made

    chosen = _load(config)
    parts = (flags or ClusterFlags()).parts()
    print(made.keda(chosen, parts, prometheus or made.PROMETHEUS), end="")


def _text(path: Path | None) -> str:
    """The file as it is; `_load` has read it before."""
    return "" if path is None else path.read_text(encoding="utf-8-sig")


def _load(path: Path | None) -> GatewayConfig:
    from headgate.config import file as config_file

    return config_file.load(path) if path is not None else GatewayConfig()
