"""Starts, shows and ends rollouts from the command line."""

from typing import Any
from urllib.parse import quote

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.client import AdminClient, exact, print_json
from headgate.explain.explanation import seconds
from headgate.model.errors import StartupError

_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end", "queue": "queue wait", "output": "output tokens",
          "quality": "mean score"}  # fmt: skip


def act(
    url: str,
    key: str | None,
    name: str,
    verb: str,
    body: dict[str, Any],
    console: Console | None = None,
    *,
    as_json: bool = False,
) -> None:
    answer = AdminClient(url, key).send("POST", f"/admin/rollout/{quote(name, safe='')}/{verb}", body)
    if as_json:
        print_json(answer)
        return
    step = answer["step"]
    stage = step["stage"].replace("_", " ")
    (console or Console(highlight=False)).print(f"{name} is {stage}, at {step['share']:.0%}: {step['reason']}")


def status(
    url: str, key: str | None, name: str | None, console: Console | None = None, *, as_json: bool = False
) -> None:
    models = AdminClient(url, key).ask("/admin/rollout")["models"]
    console = console or Console(highlight=False)
    known = [model["name"] for model in models]
    if name is not None and name not in known:
        raise StartupError(f"no model {name} with versions; there is {', '.join(known) or 'none in its config'}")
    if as_json:
        print_json([model for model in models if name in (None, model["name"])])
        return
    if not models:
        console.print("No model has versions: give some under `models` in the gateway's config.")
    for model in models:
        if name in (None, model["name"]):
            console.print(shown(model))


def shown(model: dict[str, Any]) -> Group:
    parts: list[Any] = [Text.assemble((model["name"], "bold"), f"  {_stage(model)}")]
    versions = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("version", "model", "share", "running", "waiting"):
        named = title in ("version", "model")
        versions.add_column(title, justify="left" if named else "right", no_wrap=not named, overflow="fold")
    for version in model["versions"]:
        room = f"{version['running']} of {version['room']}" if version["room"] else "no replica"
        versions.add_row(
            version["name"], version["model"], f"{version['share']:.1%}", room, str(version["waiting"])
        )  # fmt: skip
    parts.append(Padding(versions, (0, 0, 0, 2)))
    verdict = model["verdict"]
    if verdict is not None:
        sure = f" ({verdict['confidence']:.1%} sure)" if verdict["confidence"] > 0 else ""
        parts.append(Padding(Text(f"{verdict['state']}: {verdict['reason']}{sure}"), (0, 0, 0, 2)))
    if model["rows"]:
        parts.append(Padding(_compared(model["rows"]), (0, 0, 0, 2)))
    scores = model.get("scores")
    if scores is not None:
        told = f"scores: {scores['canary']} of the new version, {scores['baseline']} of the old"
        told += f", {scores['unknown']} of requests not known here" if scores["unknown"] else ""
        parts.append(Padding(Text(told, "dim"), (0, 0, 0, 2)))
        scorer = scores.get("scorer")
        if scorer is not None:
            told = f"scorer: {scorer['scored']} pairs scored, {scorer['failed']} failed, {scorer['left_out']} left out"
            told += f"; last: {scorer['last_error']}" if scorer["last_error"] else ""
            parts.append(Padding(Text(told, "red" if scorer["failed"] else "dim"), (0, 0, 0, 2)))
    shadow = model["shadow"]
    if shadow is not None:
        told = f"{shadow['copied']} copied, {shadow['left_out']} left out, {shadow['failed']} failed"
        parts.append(Padding(Text(told, "dim"), (0, 0, 0, 2)))
    for step in model["history"][-3:]:
        told = f"{step['stage'].replace('_', ' ')} at {step['share']:.0%}: {step['reason']}"
        parts.append(Padding(Text(told, "dim"), (0, 0, 0, 2)))
    return Group(*parts)


def _stage(model: dict[str, Any]) -> str:
    stage = str(model["stage"]).replace("_", " ")
    if model["candidate"] is None or model["stage"] == "stable":
        return stage
    told = f"{model['candidate']} {stage}, {model['share']:.0%}"
    if model["since_s"] is not None:
        told += f" for {seconds(model['since_s'])}"
    if model["soak_left_s"]:
        told += f", {seconds(model['soak_left_s'])} of the soak left"
    if model["requests"]:
        told += f"; {model['samples']} of its requests seen, {model['requests']} in all"
    return told


def _compared(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "old", "new", "ratio", "worse?", "fine?"):
        table.add_column(title, justify="right" if title else "left")
    for row in rows:
        figure, old, new = row["figure"], row["baseline"], row["canary"]
        if old is None or new is None:
            continue
        percentile = f" p{row['percentile']}" if row["percentile"] else ""
        ratio = f"{new / old:.2f}" if old > 0 else "–"
        fine = "" if row["fine"] is None else f"{row['fine']:.1%}"
        table.add_row(
            f"{_WORDS.get(figure, figure)}{percentile}",
            _figure(figure, old),
            _figure(figure, new),
            ratio,
            f"{row['worse']:.1%}",
            fine,
        )
    return table


def _figure(figure: str, value: float) -> str:
    if figure == "quality":
        return f"{value:.3f}"
    return f"{value:.2%}" if figure == "error" else f"{value:.0f}" if figure == "output" else exact(value)
