"""The soak's gateway and engines, and what is done to them: deaths, freezes, new configs.

Four C mocks of the kit, one of which refuses what is more than it has room for; three doubles that misbehave
(soak_doubles.py); the gateway on a core of its own, with tenants, keys, limits, lanes and a journal.
"""

import asyncio
import hashlib
import http.client
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gateway_peers import COMPILED, MOCKED, Site, headgate_with
from benchmarks.kit import Command, Kit, Processes, ask, free_port, started, wait_until_serving
from benchmarks.peers import ROOT

MOCKS, SLOTS, ROOM = 4, 48, 12
"""The last mock has less room than the gateway believes."""
KILL_EVERY_S, DOWN_S = 7.0, (0.5, 3.0)
FREEZE_EVERY_S, FROZEN_S = 23.0, 3.0
CHANGE_EVERY_S = 5.0
DOUBLES = ("full", "rude", "embeds")
TENANTS = ("alice", "bob", "carol", "dave", "nightly")
JOURNAL_BYTES = 64 << 20


class Engine:
    """A process that is killed and started again, always at the same port."""

    def __init__(self, name: str, command: Callable[[int], Command], core: int) -> None:
        self.name = name
        self.port = free_port()
        self._command = command
        self._core = core
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> str:
        return "embed" if self.name == "embeds" else "mock"

    def start(self) -> None:
        self.process = self._stack.enter_context(started(self._command(self.port), self._core)).first

    def stop(self) -> None:
        self._stack.close()


@dataclass(slots=True)
class Stage:
    """All that runs meanwhile."""

    port: int
    folder: Path
    mocks: list[Engine]
    doubles: dict[str, Engine]
    keys: dict[str, str]
    admin: str
    keep: int
    """Records in the gateway's ring."""
    gateway: Processes = field(init=False)

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    def config(self, rng: random.Random, spare: bool = True) -> dict[str, Any]:
        """One of many: limits and bounds differ each time, and one replica may not be in it."""
        engines = [*self.mocks, *self.doubles.values()]
        replicas: list[dict[str, Any]] = [{"id": one.name, "url": one.url, "model": one.model} for one in engines]
        for replica in replicas[: len(self.mocks)]:
            replica["slots"] = SLOTS
        hashes = {name: [hashlib.sha256(key.encode()).hexdigest()] for name, key in self.keys.items()}
        tenants: dict[str, dict[str, Any]] = {name: {"key_sha256": digest} for name, digest in hashes.items()}
        tenants["alice"] |= {"tier": "premium", "weight": 4, "trusted": True}
        tenants["bob"] |= {"requests_per_min": rng.choice((1_000, 3_000))}
        tenants["carol"] |= {"tokens_per_min": rng.choice((300_000, 600_000))}
        tenants["nightly"] |= {"default_lane": "batch"}
        return {
            "listen": {"port": self.port},
            "lanes": {
                "slow": {"wait_bound_s": rng.choice((1.0, 2.0))},
                "batch": {"slow_client": "spool"},
                "agents": {"priority": 1, "ttft_target_s": 1, "gap_target_s": 0.2, "weight": rng.choice((1, 2))},
            },
            "tenants": tenants,
            "admin_keys": [hashlib.sha256(self.admin.encode()).hexdigest()],
            "replicas": replicas if spare else replicas[1:],
            # Shorter than by default, so that each of them is met often in a few minutes.
            "timeouts": {"first_token_s": 5, "stall_s": 2, "slow_client_grace_s": 0.5, "no_replica_wait_s": 2},
            "observe": {"keep": self.keep},
            **MOCKED,
            "record": {"path": str(self.journal), "rotate_bytes": JOURNAL_BYTES, "files": 2},
        }

    @property
    def config_file(self) -> Path:
        return self.folder / "headgate.yaml"

    def write(self, text: str) -> None:
        """Moved into place: the gateway never sees half a file."""
        aside = self.folder / "headgate.new"
        aside.write_text(text)
        aside.replace(self.config_file)

    def metrics(self) -> dict[str, float]:
        """Sums by name, whatever their labels."""
        sums: Counter[str] = Counter()
        for name, value in re.findall(r"^(\w+)(?:{.*})? (\S+)$", ask(self.port, "GET", "/metrics")[1], re.MULTILINE):
            sums[name] += float(value)  # type: ignore[assignment]
        return dict(sums)

    def memory_mb(self) -> tuple[float, float, float]:
        """Resident, proportional and unshared, of the gateway's process."""
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", self._rollup(), re.MULTILINE))
        unshared = int(found["Private_Clean"]) + int(found["Private_Dirty"])
        return int(found["Rss"]) / 1024, int(found["Pss"]) / 1024, unshared / 1024

    def _rollup(self) -> str:
        return Path(f"/proc/{self.gateway.first.pid}/smaps_rollup").read_text()

    def connections(self) -> int:
        """Clients' connections that the gateway has open."""
        mine = f":{self.port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(mine) and row[3] in ("01", "08") for row in rows)

    def ledger(self) -> dict[str, float]:
        """All that must be zero when no request is under way: as /metrics says it, as the kernel does, and as the
        gateway's own ledger does, each where it is kept."""
        seen = self.metrics()
        names = ("waiting", "running", "replica_requests", "replica_tokens")
        left = {name: seen.get(f"headgate_{name}", 0.0) for name in names}
        left |= {"connections": float(self.connections())}
        status, said = ask(self.port, "GET", "/admin/ledger", key=self.admin)
        return left | ({f"ledger: {name}": held for name, held in json.loads(said).items()} if status == 200 else {})


@contextmanager
def staged(kit: Kit, folder: Path, cores: tuple[int, int], keep: int) -> Iterator[Stage]:
    """The gateway ready to serve, and everything gone afterwards."""
    ours, rest = cores
    with ExitStack() as stack:
        mocks = [Engine(f"mock-{index}", _mock(kit, index), rest) for index in range(MOCKS)]
        doubles = {manner: Engine(manner, _double(manner), rest) for manner in DOUBLES}
        for engine in (*mocks, *doubles.values()):
            stack.callback(engine.stop)
            engine.start()
        keys = {name: f"sk-{name}-{os.urandom(12).hex()}" for name in TENANTS}
        port, admin = free_port(), f"sk-admin-{os.urandom(12).hex()}"
        stage = Stage(port, folder, mocks, doubles, keys, admin, keep)
        stage.write(json.dumps(stage.config(random.Random(0))))
        command = headgate_with(Site(port, (), folder, keys["alice"]), ["--config", str(stage.config_file)])
        stage.gateway = stack.enter_context(started(command, ours))
        wait_until_serving(stage.gateway.first, port, keys["alice"])
        yield stage


def _mock(kit: Kit, index: int) -> Callable[[int], Command]:
    def command(port: int) -> Command:
        plain = kit.replica(port)
        return plain if index < MOCKS - 1 else Command([*plain.argv, "--maxconc", str(ROOM)])

    return command


def _double(manner: str) -> Callable[[int], Command]:
    script = ROOT / "benchmarks" / "soak_doubles.py"
    return lambda port: Command([sys.executable, str(script), str(port), "--manner", manner])


def compiled_copy(gateway: Processes) -> bool:
    """Whether it runs compiled modules, and those of the copy that was meant."""
    return f"{COMPILED.resolve()}/headgate__mypyc" in Path(f"/proc/{gateway.first.pid}/maps").read_text()


# -- what is done to them --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trouble:
    stage: Stage
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    done: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    """What the doubles say they did wrong or refused, by name."""
    unexpected: list[str] = field(default_factory=list)
    """Changes that were answered otherwise than they should have been."""

    async def run(self, until: float) -> None:
        """Returns when it is over, and every engine is there again."""
        await asyncio.gather(self._kill(until), self._freeze(until), self._change(until))

    async def _kill(self, until: float) -> None:
        while await _sleep(KILL_EVERY_S, until):
            engine = self.rng.choice([*self.stage.mocks, *self.stage.doubles.values()])
            if engine.name in DOUBLES:
                await self.hear(engine)
            engine.process.kill()
            await asyncio.to_thread(engine.stop)
            self.done["engines killed"] += 1
            await asyncio.sleep(self.rng.uniform(*DOWN_S))
            engine.start()

    async def hear(self, double: Engine) -> None:
        """It counts from its start on."""
        _, said = await asyncio.to_thread(ask, double.port, "GET", "/counts")
        self.told[double.name] += sum(json.loads(said).values())

    async def _freeze(self, until: float) -> None:
        while await _sleep(FREEZE_EVERY_S, until):
            engine = self.rng.choice(self.stage.mocks)
            process = engine.process
            process.send_signal(signal.SIGSTOP)
            self.done["engines frozen"] += 1
            await asyncio.sleep(FROZEN_S)
            process.send_signal(signal.SIGCONT)  # nothing, where it was killed meanwhile

    async def _change(self, until: float) -> None:
        turn = 0
        while await _sleep(CHANGE_EVERY_S, until):
            await CHANGES[turn % len(CHANGES)](self)
            turn += 1
        await self.takes_a_file()

    async def _ask(self, name: str, method: str, path: str, body: object = None, status: int = 200) -> None:
        try:
            got, said = await asyncio.to_thread(ask, self.stage.port, method, path, body, self.stage.admin)
        except (OSError, http.client.HTTPException) as error:
            got, said = 0, repr(error)
        self.done[name] += 1
        if got != status:
            self.unexpected.append(f"{name}: {method} {path} answered {got} instead of {status}: {said[:200]}")

    async def takes_a_file(self) -> None:
        self.stage.write(json.dumps(self.stage.config(self.rng)))
        await self._ask("configs taken", "POST", "/admin/reload", {})

    async def takes_one_replica_less(self) -> None:
        self.stage.write(json.dumps(self.stage.config(self.rng, spare=False)))
        await self._ask("configs taken", "POST", "/admin/reload", {})

    async def refuses_a_wrong_file(self) -> None:
        self.stage.write('{"tenants": {"alice": {"wieght": 3}}}')
        await self._ask("wrong configs refused", "POST", "/admin/reload", {}, 400)
        self.stage.write(json.dumps(self.stage.config(self.rng)))

    async def hears_a_signal(self) -> None:
        self.stage.write(json.dumps(self.stage.config(self.rng)))
        self.stage.gateway.first.send_signal(signal.SIGHUP)
        self.done["configs taken"] += 1

    async def sets_a_tenant(self) -> None:
        body = {"dave": {"key_sha256": [hashlib.sha256(self.stage.keys["dave"].encode()).hexdigest()], "weight": 2}}
        await self._ask("tenants and lanes set", "POST", "/admin/tenants", body)

    async def sets_a_lane(self) -> None:
        await self._ask("tenants and lanes set", "POST", "/admin/lanes", {"slow": {"wait_bound_s": 1.5}})

    async def parks_a_replica(self) -> None:
        await self._ask("replicas parked", "POST", "/admin/replicas/mock-1/park", {})
        await asyncio.sleep(1.0)
        await self._ask("replicas parked", "POST", "/admin/replicas/mock-1/activate", {})

    async def drops_a_replica(self) -> None:
        await self._ask("replicas dropped", "DELETE", "/admin/replicas/mock-2")


CHANGES: tuple[Callable[[Trouble], Any], ...] = (
    Trouble.takes_a_file,
    Trouble.takes_one_replica_less,
    Trouble.refuses_a_wrong_file,
    Trouble.hears_a_signal,
    Trouble.sets_a_tenant,
    Trouble.sets_a_lane,
    Trouble.takes_a_file,
    Trouble.parks_a_replica,
    Trouble.drops_a_replica,
)


async def _sleep(seconds: float, until: float) -> bool:
    """Whether there is any time left afterwards."""
    await asyncio.sleep(max(0.0, min(seconds, until - time.monotonic())))
    return time.monotonic() < until
