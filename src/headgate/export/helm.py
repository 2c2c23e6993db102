"""Renders a Helm chart: the manifests of kubernetes.py, with template expressions for what differs between clusters.

Chart and manifests have one source: the manifests are made with marks such as ⟦.Values.engine.replicas⟧ in them, and
the marks become template expressions. So the two can't drift apart.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate import __version__
from headgate.config.fleet import PoolConfig
from headgate.config.gateway import GatewayConfig
from headgate.export import keda
from headgate.export.engine_pools import engine_pools
from headgate.export.kubernetes import (
    Manifest,
    ManifestValues,
    cluster_text,
    dump,
    engine_args,
    engine_count,
    manifests,
)
from headgate.model.errors import UsageError

_IMAGE = '⟦printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote⟧'
_ENGINE_IMAGE = '⟦include "headgate.engineImage" . | quote⟧'
_HELPERS = """\
{{- define "headgate.engineImage" -}}
{{- $own := .Values.engine.image -}}
{{- $tag := $own.tag | default .Values.image.tag | default .Chart.AppVersion -}}
{{- printf "%s:%s" ($own.repository | default .Values.image.repository) $tag -}}
{{- end -}}
"""
_FIXED = """\
{{- if and (not .Values.keda.enabled) (gt (int .Values.gateway.replicas) 1) }}
  replicas: {{ .Values.engine.replicas }}
{{- end }}
"""
_OPTIONAL = """\
      {{- with .Values.engine.KEY }}
      KEY:
        {{- toYaml . | nindent 8 }}
      {{- end }}
"""
_NOTES = """\
Headgate {{ .Chart.AppVersion }} is being started. Clients in this cluster reach it at

  http://{{ .Release.Name }}.{{ .Release.Namespace }}.svc/v1

From your machine:

  kubectl -n {{ .Release.Namespace }} port-forward svc/{{ .Release.Name }} 8000:80
  headgate doctor --url http://127.0.0.1:8000
{{- if and (gt (int .Values.gateway.replicas) 1) (not .Values.keda.enabled) }}

With more than one gateway none of them scales the engines: set keda.enabled, or engine.replicas by hand.
{{- end }}
"""


def write_chart(
    config: GatewayConfig, parts: ManifestValues, folder: Path, text: str = "", prometheus: str = keda.PROMETHEUS
) -> list[Path]:
    """Writes the chart and returns its files. Raises StartupError for a folder that holds anything but such a chart."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "Chart.yaml").is_file():
        raise UsageError(f"{folder} is not empty and no chart: give --out another folder")
    written = []
    for name, data in chart(config, parts, text, prometheus).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data)
        written.append(path)
    return written


def chart(
    config: GatewayConfig, parts: ManifestValues, text: str = "", prometheus: str = keda.PROMETHEUS
) -> dict[str, str]:
    """The chart's files: path within the chart → text."""
    about = {
        "apiVersion": "v2",
        "name": "headgate",
        "description": "Headgate and its engines: language models with a predictable latency distribution",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": ">=1.25.0-0",
    }
    files = {
        "Chart.yaml": dump(about),
        "values.yaml": _values(config, parts, text, prometheus),
        "values.schema.json": json.dumps(_schema(config), indent=2) + "\n",
        "templates/_helpers.tpl": _HELPERS,
        "templates/NOTES.txt": _NOTES,
    }
    marked = _marked(parts)
    for group, made in manifests(config, marked).items():
        pool = group.removeprefix("engine-") if group.startswith("engine-") else ""
        files[f"templates/{group}.yaml"] = _of_pool("---\n".join(_template(it) for it in made), pool)
    scaled = "---\n".join(_scaled(config, marked, pool) for pool in engine_pools(config))
    files["templates/keda.yaml"] = f"{{{{- if .Values.keda.enabled }}}}\n{scaled}{{{{- end }}}}\n"
    return files


def _scaled(config: GatewayConfig, marked: ManifestValues, pool: PoolConfig) -> str:
    made = keda.scaled_object(config, marked, "⟦.Values.keda.prometheus | quote⟧", pool)
    made["spec"]["minReplicaCount"] = "⟦.Values.keda.min⟧"
    made["spec"]["maxReplicaCount"] = "⟦.Values.keda.max⟧"
    return _of_pool(_template(made), pool.name)


def _of_pool(text: str, pool: str) -> str:
    """The template with a pool's own values in place of those that a single pool has."""
    if not pool:
        return text
    own = f'(index .Values.pools "{pool}")'
    text = text.replace(".Values.keda.min", f"{own}.min").replace(".Values.keda.max", f"{own}.max")
    return text.replace(".Values.engine.", f"{own}.")


def _marked(parts: ManifestValues) -> ManifestValues:
    """The same values as marks. `gateways` and `keda` are decided when the chart is installed, so the chart has all
    that either may need: the role allows scaling, and the config's scaled_here is an expression."""
    return replace(
        parts,
        name="⟦.Release.Name⟧",
        namespace=None,
        image=_IMAGE,
        engine_image=_ENGINE_IMAGE,
        gateways=1,
        keda=False,
        gateway_resources="⟦toYaml .Values.gateway.resources | nindent 12⟧",
        engine_resources="⟦toYaml .Values.engine.resources | nindent 12⟧",
        engine_args=("⟦range .Values.engine.args⟧",),
        config="⟦tpl .Values.config . | nindent 4⟧",
    )


def _template(manifest: Manifest) -> str:
    kind, component = manifest["kind"], manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    if kind == "Deployment" and component == "gateway":
        manifest["spec"]["replicas"] = "⟦.Values.gateway.replicas⟧"
    if kind == "Deployment" and component == "engine":
        manifest["spec"]["template"]["spec"].pop("nodeSelector", None)  # it is among the values
    text = dump(manifest)
    # A list that values may add to, and a block of text, need more than an expression in place of a value.
    text = re.sub(
        r"^( *)- '?⟦range \.Values\.engine\.args⟧'?\n",
        r"\1{{- range .Values.engine.args }}\n\1- {{ . | quote }}\n\1{{- end }}\n",
        text,
        flags=re.M,
    )
    text = text.replace("headgate.yaml: ⟦", "headgate.yaml: |⟦- ")
    if kind == "Deployment" and component == "engine":
        text = text.replace("spec:\n  selector:", f"spec:\n{_FIXED}  selector:", 1)
        extra = "".join(_OPTIONAL.replace("KEY", key) for key in ("nodeSelector", "tolerations", "affinity"))
        text = text.rstrip("\n") + "\n" + extra
    return re.sub(r"'?⟦(- )?(.*?)⟧([a-z-]*)'?", lambda it: f"{{{{{it[1] or ' '}{it[2]} }}}}{it[3]}", text)


def _values(config: GatewayConfig, parts: ManifestValues, text: str, prometheus: str) -> str:
    made, pools = manifests(config, parts, text), engine_pools(config)
    values: dict[str, Any] = {
        "image": _image(parts.image),
        "gateway": {"replicas": parts.gateways, "resources": parts.gateway_resources},
        "engine": {"image": _image(parts.engine_image or "")},
        "keda": {"enabled": parts.keda, "prometheus": prometheus},
    }
    found = {}
    for pool in pools:
        (engine, *_) = made[f"engine-{pool.name}" if pool.name else "engine"]
        pod, scaled = engine["spec"]["template"]["spec"], keda.scaled_object(config, parts, pool=pool)["spec"]
        own = {
            "replicas": engine_count(parts, pool),
            "args": engine_args(config, parts, pool),
            "resources": pod["containers"][0]["resources"],
            "nodeSelector": pod.get("nodeSelector", {}),
            "tolerations": [],
            "affinity": {},
        }
        found[pool.name] = (own, {"min": scaled["minReplicaCount"], "max": scaled["maxReplicaCount"]})
    if config.fleet.pools:
        values["pools"] = {name: {**own, **bounds} for name, (own, bounds) in found.items()}
    else:
        ((own, bounds),) = found.values()
        values["engine"] = {"replicas": own["replicas"], **values["engine"], **own}
        values["keda"] |= bounds
    values["config"] = _config_value(config, parts, text)
    head = "# Values of the Headgate chart. `config` is the gateway's own file, see headgate.example.yaml.\n"
    return head + dump(values)


def _image(text: str) -> dict[str, str]:
    repository, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:  # a port, not a tag
        repository, tag = text, ""
    return {"repository": repository, "tag": "" if tag == __version__ else tag}


def _config_value(config: GatewayConfig, parts: ManifestValues, text: str) -> str:
    """The gateway's file as a template: what depends on the release is an expression; other text that looks like an
    expression is escaped."""
    inside = cluster_text(config, replace(parts, name="⟦.Release.Name⟧", gateways=1, keda=False), text)
    inside = inside.replace("{{", '⟦"{{"⟧')
    scaled = "⟦and (not .Values.keda.enabled) (eq (int .Values.gateway.replicas) 1)⟧"
    inside = re.sub(r"(scaled_here: )true", rf"\1{scaled}", inside)
    return re.sub(r"⟦(.*?)⟧", lambda it: f"{{{{ {it[1]} }}}}", inside)


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_TEXT, _COUNT, _ANY = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "object"}
_POOL = {
    "replicas": _COUNT,
    "args": {"type": "array", "items": _TEXT},
    "resources": _ANY,
    "nodeSelector": _ANY,
    "tolerations": {"type": "array"},
    "affinity": _ANY,
}


def _schema(config: GatewayConfig) -> dict[str, Any]:
    """The schema of the chart's values: engine settings of the only pool, or those of each under its name."""
    names = [pool.name for pool in config.fleet.pools]
    image = _object([], repository=_TEXT, tag=_TEXT)
    engine = _object([], image=image) if names else _object(["replicas"], image=image, **_POOL)
    bounds = {} if names else {"min": _COUNT, "max": _COUNT}
    each = _object(["replicas"], **_POOL, min=_COUNT, max=_COUNT)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["image", "gateway", "engine", "keda", "config", *(["pools"] if names else [])],
        "properties": {
            "image": _object(["repository"], repository={"type": "string", "minLength": 1}, tag=_TEXT),
            "gateway": _object(["replicas"], replicas={"type": "integer", "minimum": 1}, resources=_ANY),
            "engine": engine,
            **({"pools": _object(names, **dict.fromkeys(names, each))} if names else {}),
            "keda": _object(["enabled"], enabled={"type": "boolean"}, prometheus=_TEXT, **bounds),
            "config": _TEXT,
            "global": _ANY,
        },
        "additionalProperties": False,
    }
