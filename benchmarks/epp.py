"""What the endpoint picker costs behind a real Envoy: CPU per request, by prompt and mode.

    python benchmarks/epp.py            three minutes; writes results/epp.json and .md

Envoy asks `headgate epp`, which runs the compiled copy if there is one, and sends to two mock replicas of the kit
(HEADGATE_KIT, else ../shared/kit). Requests come one after the other on a few connections; CPU is that of the picker's
process, read before and after. Direct requests to the gateway without Envoy stand beside it.
"""

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.kit import compiled  # noqa: E402
from benchmarks.local_fleet import modules  # noqa: E402
from benchmarks.peers import ROOT  # noqa: E402
from benchmarks.report import machine  # noqa: E402
from tests.export.proxies import envoy, eventually, free_port  # noqa: E402

PROMPTS = {"small": 40, "220 KB": 220_000}
BOUNDS_MS = {("lean", "small"): 0.8, ("lean", "220 KB"): 2.0}
AIMS_MS = {("lean", "small"): 0.3, ("lean", "220 KB"): 1.0}
CONNECTIONS = 8


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(argv: list[str], **more: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(connection: http.client.HTTPConnection, size: int) -> None:
    text = "MOCK:ttft=0,itl=0,n=8,size=6, " + "word " * (size // 5)
    body = json.dumps({"model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": 16})
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {data[:200]!r}")


def load(port: int, size: int, requests: int) -> None:
    failed: list[Exception] = []

    def some() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            for _ in range(requests // CONNECTIONS):
                ask(connection, size)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=some) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def measure(full: bool, requests: int) -> list[dict[str, object]]:
    from headgate.config.file import parse
    from headgate.export.envoy_picker import envoy_with_picker

    mocks, port, picker, front = (free_port(), free_port()), free_port(), free_port(), free_port()
    folder = Path(tempfile.mkdtemp())
    kit = compiled(Path(os.environ.get("HEADGATE_KIT", ROOT.parent / "shared" / "kit")), folder)
    urls = [f"http://127.0.0.1:{mock}" for mock in mocks]
    config = parse(json.dumps({"replicas": [{"url": url, "slots": 64} for url in urls]}), "x")
    path = folder / "headgate.yaml"
    path.write_text(json.dumps({"replicas": [{"url": url, "slots": 64} for url in urls], "listen": {"port": port}}))
    env = {**os.environ, "PYTHONPATH": str(modules())}
    argv = [sys.executable, "-m", "headgate", "epp", "--config", str(path), "--grpc-port", str(picker)]
    rows: list[dict[str, object]] = []
    with (
        running([str(kit.mockd), str(mocks[0])]),
        running([str(kit.mockd), str(mocks[1])]),
        running(argv, env=env) as ours,
        envoy(folder, envoy_with_picker(config, f"127.0.0.1:{picker}", front, full)),
    ):

        def answers(at: int) -> bool:
            try:
                ask(http.client.HTTPConnection("127.0.0.1", at, timeout=5), 40)
            except (OSError, RuntimeError, http.client.HTTPException):
                return False
            return True

        eventually(lambda: answers(front), within_s=60.0)
        for name, size in PROMPTS.items():
            many = requests if size < 1000 else max(CONNECTIONS, requests // 20)
            for where, at in (("full" if full else "lean", front), ("gateway itself", port)):
                load(at, size, many // 4)
                before, began = cpu_s(ours.pid), time.monotonic()
                load(at, size, many)
                each = (cpu_s(ours.pid) - before) / many * 1e3
                rate = many / (time.monotonic() - began)
                rows.append({"mode": where, "prompt": name, "cpu_ms": each, "requests_s": rate, "requests": many})
                print(f"{where}, {name}: {each:.3f} ms a request, {rate:.0f}/s", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "epp.json")
    args = parser.parse_args()
    rows = [*measure(False, args.requests), *measure(True, args.requests)]
    lines = [
        "# Endpoint picker",
        "",
        "Written by `benchmarks/epp.py`. CPU of the picker's process behind a real Envoy, ms a request.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in machine().items()]
    lines += ["", "| mode | prompt | CPU ms | bound | aim | requests/s |", "|---|---|--:|--:|--:|--:|"]
    wrong = False
    for row in rows:
        key = (str(row["mode"]), str(row["prompt"]))
        bound, each = BOUNDS_MS.get(key), float(str(row["cpu_ms"]))
        wrong = wrong or (bound is not None and each > bound)
        verdict = "" if bound is None else f"≤ {bound} {'pass' if each <= bound else '**missed**'}"
        lines.append(
            f"| {key[0]} | {key[1]} | {each:.3f} | {verdict} | {AIMS_MS.get(key, '')} | {row['requests_s']:.0f} |"
        )
    args.out.write_text(json.dumps(rows, indent=1) + "\n")
    args.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
