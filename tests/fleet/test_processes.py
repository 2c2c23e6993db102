"""Replicas as processes: real ones, though most of them are not engines. What matters is that they live and end."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from headgate.fleet import processes
from headgate.fleet.port import Appeared, Change, FleetError, Spec, Vanished
from headgate.fleet.processes import GIVE_UP_AFTER, ProcessFleet
from headgate.model.clock import monotonic
from headgate.replica import local
from tests.wire.serving import until

WAITS = "import signal; signal.pause()"
FAILS = "raise SystemExit(3)"


class Scene:
    def __init__(self, folder: Path, program: str, most: int = 1024) -> None:
        self.heard: list[Change] = []
        self.program = program
        self.fleet = ProcessFleet(folder, monotonic, spawn=self.spawn, most=most)
        self.fleet.watch(self.heard.append)

    async def spawn(self, flags: Sequence[str], socket: Path, seat: int) -> Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", self.program, *flags, str(socket))

    def pid(self, name: str) -> int:
        pid = self.fleet.pid(name)
        assert pid is not None
        return pid


@contextlib.asynccontextmanager
async def scene(folder: Path, program: str = WAITS, most: int = 1024) -> AsyncIterator[Scene]:
    made = Scene(folder, program, most)
    try:
        yield made
    finally:
        await made.fleet.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_is_started_listed_and_stopped_and_whoever_watches_hears_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as s:
            started = await s.fleet.start(Spec(pool="p", slots=3, tags={"version": "7"}))
            (replica,) = s.fleet.list()
            assert (replica.id, replica.url, replica.slots) == (started.id, started.url, 3)
            assert (replica.kind, replica.tags) == ("headgate", {"version": "7"})
            assert s.heard == [Appeared(replica)]
            late: list[Change] = []
            s.fleet.watch(late.append)
            assert late == s.heard
            pid = s.pid(started.id)
            await s.fleet.stop(started.id, 5.0)
            assert late[-1] == Vanished(started.id, "stopped")
            assert s.fleet.list() == ()
            assert not alive(pid)
            await s.fleet.stop(started.id, 5.0)  # not here any more: no error

    run(test)


def test_one_that_is_killed_is_started_again_under_its_own_id(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as s:
            started = await s.fleet.start(Spec(pool="p"))
            pid = s.pid(started.id)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: len(s.heard) == 3)
            appeared, vanished, again = s.heard
            assert isinstance(vanished, Vanished)
            assert vanished.comes_back
            assert "signal 9" in vanished.why
            assert again == appeared
            assert s.pid(started.id) != pid

    run(test)


def test_one_that_ends_again_and_again_is_given_up_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FIRST_PAUSE_S", 0.01)

    async def test() -> None:
        async with scene(tmp_path, FAILS) as s:
            await s.fleet.start(Spec(pool="p"))
            await until(lambda: s.fleet.list() == ())
            gone = [change for change in s.heard if isinstance(change, Vanished)]
            assert [change.comes_back for change in gone] == [True] * (GIVE_UP_AFTER - 1) + [False]
            pauses = [change.why.rpartition("again in ")[2] for change in gone[:-1]]
            assert pauses == ["0.01 s", "0.02 s", "0.04 s", "0.08 s"]
            assert "exit code 3" in gone[-1].why

    run(test)


def test_one_can_be_stopped_while_it_waits_to_be_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FIRST_PAUSE_S", 60.0)

    async def test() -> None:
        async with scene(tmp_path, FAILS) as s:
            started = await s.fleet.start(Spec(pool="p"))
            await until(lambda: len(s.heard) == 2)
            await s.fleet.stop(started.id, 5.0)
            assert s.fleet.list() == ()

    run(test)


def test_one_that_does_not_listen_is_ended_all_the_same(tmp_path: Path) -> None:
    stubborn = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1], 'w'); signal.pause()"
    )

    async def test() -> None:
        async with scene(tmp_path, stubborn) as s:
            started = await s.fleet.start(Spec(pool="p"))
            await until(lambda: Path(started.url.removeprefix("unix:")).exists())
            pid = s.pid(started.id)
            await s.fleet.stop(started.id, 0.1)
            assert not alive(pid)

    run(test)


def test_there_is_a_most(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, most=1) as s:
            await s.fleet.start(Spec(pool="p"))
            with pytest.raises(FleetError, match=r"lower fleet\.scale\.max"):
                await s.fleet.start(Spec(pool="p"))

    run(test)


def test_a_process_that_cannot_be_had_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async def none(flags: Sequence[str], socket: Path, seat: int) -> Process:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def test() -> None:
        fleet = ProcessFleet(tmp_path, monotonic, spawn=none)
        with pytest.raises(FleetError, match="Resource temporarily unavailable; lower"):
            await fleet.start(Spec(pool="p"))
        assert fleet.list() == ()

    run(test)


@pytest.mark.timeout(60)
def test_no_engine_outlives_whoever_started_it_however_that_ends(tmp_path: Path) -> None:
    """Two of them, started by a process that is then killed with -9."""
    starter = (
        "import asyncio, pathlib, sys\n"
        "from headgate.replica.local import spawn\n"
        "async def main():\n"
        "    flags = ['--emulate', 'h100-llama3-8b']\n"
        "    for number in range(2):\n"
        "        process = await spawn(flags, pathlib.Path(sys.argv[1]) / f'{number}.sock')\n"
        "        print(process.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )

    async def test() -> None:
        parent = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            starter,
            str(tmp_path),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[2])},
        )
        assert parent.stdout is not None
        pids = [int(await parent.stdout.readline()) for _ in range(2)]
        await until(lambda: all((tmp_path / f"{number}.sock").exists() for number in range(2)))
        assert all(alive(pid) for pid in pids)
        parent.kill()
        await parent.wait()
        await until(lambda: not any(alive(pid) and not is_zombie(pid) for pid in pids))

    run(test)


def is_zombie(pid: int) -> bool:
    """It has ended, and its exit status was not read: where tests run as children of process 1 it may never be."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
