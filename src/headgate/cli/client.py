"""Asks a running gateway from the command line: where one request's time went, which were the slowest, what is
wrong."""

import json
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.proxy_probe import Look, ProbeReport
from headgate.config.forms.durations import seconds_of
from headgate.explain.explanation import many, seconds
from headgate.model.errors import StartupError, UsageError
from headgate.model.labels import plain

TIMEOUT_S = 30.0
MOST_BYTES = 64 << 20
BAR = 32
"""Characters for a request's whole duration, on a console that is wide enough."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STYLES = {"critical": "bold red", "warning": "yellow", "note": "cyan"}
_MARKS = {"critical": "✗", "warning": "!", "note": "·"}


# -- what the commands do -----------------------------------------------------------------------------------


def why(
    url: str, request_id: str, key: str | None = None, console: Console | None = None, *, as_json: bool = False
) -> None:
    """Prints where one request's time went, as a waterfall with the causes beside it."""
    answer = AdminClient(url, key).ask(f"/admin/requests/{quote(request_id, safe='')}")
    if as_json:
        print_json(answer)
        return
    console = console or _console()
    console.print(waterfall(answer, max(8, min(BAR, console.width // 4))))


def slow(
    url: str,
    lane: str | None = None,
    last: str = "5m",
    limit: int = 20,
    key: str | None = None,
    *,
    by: str = "e2e",
    console: Console | None = None,
    as_json: bool = False,
) -> None:
    """Prints the slowest requests of the last `last`, each with its reason in one line."""
    query = {"last": f"{duration(last):g}", "limit": str(limit), "by": by, **({"lane": lane} if lane else {})}
    answer = AdminClient(url, key).ask(f"/admin/slow?{urlencode(query)}")
    if as_json:
        print_json(answer)
        return
    console, rows = console or _console(), answer["slow"]
    where = f" in lane {lane}" if lane else ""
    if not rows:
        console.print(Text(f"No request{where} has ended in the last {seconds(answer['last_s'])}."))
        return
    console.print(slow_table(rows))
    of, last_s = many(answer["of"], "request"), seconds(answer["last_s"])
    console.print(Text(f"{len(rows)} of {of}{where} in the last {last_s}, by {by}. More: headgate why ID", "dim"))


def doctor(
    url: str,
    key: str | None = None,
    console: Console | None = None,
    *,
    own: str | None = None,
    probe: Callable[[str, Look], ProbeReport] | None = None,
    as_json: bool = False,
) -> bool:
    """Prints what is wrong, by which figures, and what to do about it. Returns whether the gateway is ready and no
    finding is critical. `own`: the gateway's own address, where `url` is a proxy's; `probe` tests what lies between."""
    # As JSON only the end is printed; what is found on the way is in it.
    console = Console(quiet=True) if as_json else console or _console()
    gateway = AdminClient(own or url, key)
    gateway.ask("/health/live")
    status, answer = gateway.get("/health/ready")
    ready = status == 200
    console.print(Text.assemble(("✓ ", "green"), f"{gateway.url} is there"))
    if ready:
        console.print(Text.assemble(("✓ ", "green"), "it is ready for requests"))
    else:
        console.print(Text.assemble(("✗ ", "bold red"), f"it is not ready: {message(answer, status)}"))
    report = gateway.ask("/admin/doctor")
    found = report.get("findings")
    if not isinstance(found, list) or "figures" not in report:
        raise StartupError(f"{gateway.url} answers, but not as Headgate does: is this the gateway's own address?")
    for line in answered_lines(report["figures"]):
        console.print(line)
    if report.get("ended_early"):
        console.print(ended_line(report["ended_early"]))
    minutes = seconds(report.get("window_s", 300))
    if not found:
        console.print(Text.assemble(("✓ ", "green"), f"nothing to report in the last {minutes}"))
    if ready and probe is not None:
        found = [*found, *_probed(probe(AdminClient(url, None).url, gateway.get), console)]
    if as_json:
        print_json({**report, "url": gateway.url, "ready": ready, "findings": found})
    for finding in found:
        console.print(finding_text(finding))
    return ready and not any(finding["severity"] == "critical" for finding in found)


def answered_lines(figures: dict[str, Any]) -> list[Text]:
    """One line for an outage, and one line per lane with the share of its requests that were answered."""
    lines = []
    if figures.get("outage"):
        lines.append(Text.assemble(("✗ OUTAGE ", "bold red"), "no replica is usable: nothing can be answered"))
    allowed = 1 - figures.get("availability", 0.999)
    for lane in figures.get("lanes", ()):
        name, asked = lane["lane"]["name"], lane.get("asked", 0)
        if not asked:
            lines.append(Text.assemble(("· ", "cyan"), f"{name}: idle"))
            continue
        missed = lane["turned_away"] + lane["failed"]
        well = missed <= allowed * asked
        share = 100 * (asked - missed) / asked
        told = "100" if not missed else f"{min(share, 99.99):.2f}" if share >= 99 else f"{share:.1f}"
        lost = f" ({lane['turned_away']} refused, {lane['failed']} failed)" if missed else ""
        mark = ("✓ ", "green") if well else ("✗ ", "bold red")
        lines.append(Text.assemble(mark, f"{name}: {told} % of {many(asked, 'request')} answered{lost}"))
    return lines


def ended_line(ended: dict[str, dict[str, int]]) -> Text:
    """Which answers were ended early since the start, and what that saved."""
    by = ", ".join(f"{one['answers']} by {name}" for name, one in sorted(ended.items()))
    saved = sum(one["saved_tokens"] for one in ended.values())
    told = f"; {many(saved, 'token')} not decoded" if saved else ""
    return Text.assemble(("· ", "cyan"), f"answers ended early since the start: {by}{told}")


def _probed(told: ProbeReport, console: Console) -> list[dict[str, Any]]:
    for line in told.passed:
        console.print(Text.assemble(("✓ ", "green"), line))
    for line in told.skipped:
        console.print(Text.assemble(("· ", "cyan"), f"not tried: {line}"))
    return told.findings


def duration(text: str) -> float:
    """Converts 90, 90s, 5m or 1h to seconds. Raises UsageError."""
    value = seconds_of(text) or 0.0
    if not 1 <= value <= 7 * 86_400:
        raise UsageError(f"--last: expected a time such as 90s, 5m or 1h, up to 7d; got {text!r}")
    return value


# -- asking ----------------------------------------------------------------------------------------------------


class AdminClient:
    def __init__(self, url: str, key: str | None, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        url = url if "://" in url else f"http://{url}"
        parts = urlsplit(url)
        try:
            sane = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            sane = False
        if not sane:
            raise UsageError(f"--url: expected an address such as http://127.0.0.1:8000, got {url!r}")
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")  # clients' base URLs end in /v1
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        # Never through a proxy from the environment: the gateway is our own, most often on this machine.
        self._opener = build_opener(ProxyHandler({}))

    def ask(self, path: str) -> dict[str, Any]:
        """The JSON answer to a GET. Raises StartupError for an error status."""
        status, answer = self.get(path)
        if status == 401:
            said = message(answer, status)
            raise StartupError(f"{self.url} does not let us look inside: {said}; give an admin key with --key")
        if status == 404 and "error" not in answer:
            raise StartupError(f"{self.url} knows no {path.partition('?')[0]}: is this the gateway's own address?")
        if status >= 400:
            raise StartupError(message(answer, status))
        return answer

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a GET."""
        status, body = self.raw("GET", path)
        parsed = _object(body)
        if parsed is None and status < 400:
            raise StartupError(f"{self.url} answers, but not as Headgate does: is this the gateway's own address?")
        return status, parsed or {}

    def send(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The JSON answer to a change. Raises StartupError for an error status."""
        status, raw = self.raw(method, path, body)
        answer = _object(raw) or {}
        if status >= 400:
            said = message(answer, status)
            raise StartupError(f"{said}; give an admin key with --key" if status == 401 else said)
        return answer

    def raw(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body, whatever the status. Raises StartupError where the gateway can't be reached."""
        posted = {} if body is None else {"content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {**posted, **self._headers, **(headers or {})}, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return answer.status, answer.read(MOST_BYTES)
        except HTTPError as error:
            with error:
                return error.code, error.read(MOST_BYTES)
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            reason = getattr(reason, "strerror", None) or reason
            hint = "is `headgate serve` running there? Its address is given with --url"
            raise StartupError(f"can't reach {self.url}: {reason}; {hint}") from error


def _object(body: bytes) -> dict[str, Any] | None:
    """None: the body is not a JSON object."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def message(answer: dict[str, Any], status: int) -> str:
    error = answer.get("error")
    said = error.get("message") if isinstance(error, dict) else None
    return str(said) if said else f"it answered {status}"


# -- showing -----------------------------------------------------------------------------------------------------


def print_json(answer: object) -> None:
    print(json.dumps(answer, indent=2))


def _console() -> Console:
    return Console(highlight=False)


def waterfall(answer: dict[str, Any], width: int = BAR) -> Group:
    record, told = answer["record"], answer["explanation"]
    total = max(record.get("e2e_s", 0.0), 1e-9)
    title = Text.assemble(("Request ", "dim"), (record["id"], "bold"))
    about = [f"lane {record['lane']}", f"tenant {record['tenant']}", f"model {record['model']}"]
    about += [f"replica {record['replica']}"] if record.get("replica") else []
    about += [f"{record.get('prompt_tokens', 0)} tokens in, {record.get('output_tokens', 0)} out", record["outcome"]]
    first = record.get("ttft_s")
    took = f"{seconds(total)} so far" if answer.get("running") else f"{seconds(total)} in all"
    first_text = "" if first is None else f", first token after {seconds(first)}"
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    main = told["main"]
    for part in told["parts"]:
        worst = part["at_s"] == main["at_s"] and part["stage"] == main["stage"]
        style = "bold red" if worst and part["excess_s"] > 0 else ""
        table.add_row(
            Text(part["stage"].replace("_", " "), style),
            Text(exact(part["took_s"]), style),
            Text(bar(part["at_s"] / total, part["took_s"] / total, width), "red" if style else "cyan"),
            Text(part["cause"], style),
        )
    return Group(
        title,
        Text(" · ".join(about), "dim"),
        Text(f"{took}{first_text}. {told['headline']}."),
        Padding(table, (1, 0, 0, 2)),
    )


def bar(begins: float, share: float, width: int = BAR) -> str:
    """A bar within a line of `width` characters, at the fraction `begins`; any share above zero is visible."""
    begins = min(max(begins, 0.0), 1.0)
    whole, eighths = divmod(round(min(share, 1.0 - begins) * width * 8), 8)
    start = min(int(begins * width), width - 1)
    drawn = "█" * whole + (_EIGHTHS[eighths] if eighths else "")
    if not drawn and share > 0:
        drawn = "▏"
    return (" " * start + drawn)[: width + 1].ljust(width + 1)


def exact(value: float) -> str:
    """A duration with more digits than in a sentence: columns are compared."""
    return (
        f"{value * 1e3:.1f} ms" if value < 0.09995 else f"{value * 1e3:.0f} ms" if value < 0.9995 else f"{value:.2f} s"
    )


def slow_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("id", "left"), ("lane", "left"), ("ago", "right"), ("first", "right"), ("all", "right")):
        folds = name in ("id", "lane")
        table.add_column(name, justify=justify, no_wrap=not folds, overflow="fold")  # type: ignore[arg-type]
    table.add_column("why", overflow="fold", ratio=1)
    for row in rows:
        first = row["ttft_s"]
        table.add_row(
            Text(row["id"]),
            Text(row["lane"]),
            seconds(row["ago_s"]),
            "–" if first is None else exact(first),
            exact(row["e2e_s"]),
            Text(row["headline"]),
        )
    return table


def finding_text(finding: dict[str, Any]) -> Group:
    severity = finding["severity"]
    where = f" in lane {finding['lane']}" if finding.get("lane") else ""
    mark = Text.assemble(
        (f"{_MARKS.get(severity, '·')} {severity}", _STYLES.get(severity, "")),
        f" {finding['figure']}{where}: {finding['cause']}",
    )
    evidence = ", ".join(f"{name} {_figure(name, value)}" for name, value in finding["evidence"].items())
    return Group(
        mark,
        Padding(Text(f"because  {evidence}", "dim"), (0, 0, 0, 4)),
        Padding(Text(f"turn     {finding['knob']}"), (0, 0, 1, 4)),
    )


def _figure(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return exact(value) if name.endswith("_s") else plain(value) if isinstance(value, float) else str(value)
