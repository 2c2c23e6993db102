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
from headgate.config.gateway import GatewayConfig
from headgate.export import keda
from headgate.export.kubernetes import Manifest, ManifestValues, cluster_text, dump, engine_args, manifests
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
        "values.schema.json": json.dumps(_SCHEMA, indent=2) + "\n",
        "templates/_helpers.tpl": _HELPERS,
        "templates/NOTES.txt": _NOTES,
    }
    marked = _marked(parts)
    for group, made in manifests(config, marked).items():
        files[f"templates/{group}.yaml"] = "---\n".join(_template(it) for it in made)
    scaled = keda.scaled_object(config, marked, "⟦.Values.keda.prometheus | quote⟧")
    scaled["spec"]["minReplicaCount"] = "⟦.Values.keda.min⟧"
    scaled["spec"]["maxReplicaCount"] = "⟦.Values.keda.max⟧"
    files["templates/keda.yaml"] = f"{{{{- if .Values.keda.enabled }}}}\n{_template(scaled)}{{{{- end }}}}\n"
    return files


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
    plain = manifests(config, parts)["engine"][0]["spec"]["template"]["spec"]["containers"][0]
    scale = config.fleet.scale
    made = keda.scaled_object(config, parts)["spec"]
    values: dict[str, Any] = {
        "image": _image(parts.image),
        "gateway": {"replicas": parts.gateways, "resources": parts.gateway_resources},
        "engine": {
            "replicas": parts.engines if parts.engines is not None else scale.least + scale.warm,
            "image": _image(parts.engine_image or ""),
            "args": engine_args(config, parts),
            "resources": plain["resources"],
            "nodeSelector": {},
            "tolerations": [],
            "affinity": {},
        },
        "keda": {
            "enabled": parts.keda,
            "prometheus": prometheus,
            "min": made["minReplicaCount"],
            "max": made["maxReplicaCount"],
        },
        "config": _config_value(config, parts, text),
    }
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
_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["image", "gateway", "engine", "keda", "config"],
    "properties": {
        "image": _object(["repository"], repository={"type": "string", "minLength": 1}, tag=_TEXT),
        "gateway": _object(["replicas"], replicas={"type": "integer", "minimum": 1}, resources=_ANY),
        "engine": _object(
            ["replicas"],
            replicas=_COUNT,
            image=_object([], repository=_TEXT, tag=_TEXT),
            args={"type": "array", "items": _TEXT},
            resources=_ANY,
            nodeSelector=_ANY,
            tolerations={"type": "array"},
            affinity=_ANY,
        ),
        "keda": _object(["enabled"], enabled={"type": "boolean"}, prometheus=_TEXT, min=_COUNT, max=_COUNT),
        "config": _TEXT,
        "global": _ANY,
    },
    "additionalProperties": False,
}
