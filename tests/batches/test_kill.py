"""A gateway that is killed at any moment, and the one that follows: no line is lost, and none has two results."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import openai
import pytest

from tests.batches.scripted import scripted
from tests.batches.site import begin, client, line, over, results, wait_for
from tests.engine.process import headgate

pytestmark = pytest.mark.timeout(90)
LINES = 400


@contextmanager
def gateway(tmp_path: Path, engine: str, **batches: object) -> Iterator[tuple[Popen[str], str]]:
    path = tmp_path / "headgate.yaml"
    told = {"folder": str(tmp_path / "batches"), **batches}
    replicas = [{"url": engine, "slots": 8}]
    path.write_text(json.dumps({"replicas": replicas, "listen": {"port": 0}, "batches": told}))
    with headgate("serve", "--config", str(path)) as started:
        yield started


def test_every_line_has_one_result_however_often_the_gateway_is_killed(tmp_path: Path) -> None:
    rng = random.Random(7)
    with scripted() as engine:
        with gateway(tmp_path, engine.url) as (process, where):
            ai = client(where)
            lines = [line(n, messages=[{"role": "user", "content": f"slow 0.02 {n}"}]) for n in range(LINES)]
            batch = begin(ai, lines)
            process.kill()  # the client has been told of it: it is validated after the restart
        for _ in range(2):
            with gateway(tmp_path, engine.url) as (process, where):
                time.sleep(rng.uniform(0.1, 0.4))
                counts = client(where).batches.retrieve(batch.id).request_counts
                assert counts is not None
                assert counts.completed < LINES
                process.kill()
        with gateway(tmp_path, engine.url) as (_, where):
            ai = client(where)
            done = over(ai, batch.id, 60.0)
            told = [one["custom_id"] for one in results(ai, done.output_file_id)]
        assert done.status == "completed"
        assert Counter(told) == Counter(f"line-{n}" for n in range(LINES))
        assert done.request_counts is not None
        assert done.request_counts.to_dict() == {"total": LINES, "completed": LINES, "failed": 0}
        # What was under way at a kill ran twice at the engine, and nothing else did.
        assert sum(engine.asked[f"slow 0.02 {n}"] - 1 for n in range(LINES)) <= 4 * 16


def test_a_gateway_that_is_asked_to_stop_keeps_what_it_has(tmp_path: Path) -> None:
    with scripted() as engine:
        with gateway(tmp_path, engine.url) as (process, where):
            ai = client(where)
            batch = begin(ai, [line(n, messages=[{"role": "user", "content": f"slow 0.1 {n}"}]) for n in range(200)])
            wait_for(lambda: ai.batches.retrieve(batch.id).request_counts.completed > 5)  # type: ignore[union-attr]
            process.terminate()
            assert process.wait(20) == 0
        before = sum(engine.asked.values())
        with gateway(tmp_path, engine.url) as (_, where):
            ai = client(where)
            ai.batches.cancel(batch.id)
            done = over(ai, batch.id)
            assert done.request_counts is not None
            assert done.request_counts.completed >= before - 20
            assert done.request_counts.total == 200


def test_two_gateways_on_one_folder_run_each_line_once(tmp_path: Path) -> None:
    with scripted() as engine, gateway(tmp_path, engine.url) as (first, one), gateway(tmp_path, engine.url) as (_, two):
        batch = begin(client(two), [line(n, messages=[{"role": "user", "content": f"a {n}"}]) for n in range(50)])
        assert over(client(one), batch.id).status == "completed"
        assert max(engine.asked[f"a {n}"] for n in range(50)) == 1
        batch = begin(client(two), [line(n, messages=[{"role": "user", "content": f"b {n}"}]) for n in range(50)])
        first.kill()  # the other takes over
        first.wait()
        done = over(client(two), batch.id)
        assert done.status == "completed"
        assert len(results(client(two), done.output_file_id)) == 50


def test_what_has_not_run_when_the_window_ends_is_told_as_expired(tmp_path: Path) -> None:
    with scripted() as engine, gateway(tmp_path, engine.url, window_s=2) as (_, where):
        ai = client(where)
        lines = [line(n, messages=[{"role": "user", "content": f"slow {0 if n < 2 else 60} {n}"}]) for n in range(5)]
        done = over(ai, begin(ai, lines).id)
        assert done.status == "expired"
        assert len(results(ai, done.output_file_id)) == 2
        assert {one["error"]["code"] for one in results(ai, done.error_file_id)} == {"batch_expired"}


def test_a_folder_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "batches").write_text("a file, not a folder")
    with (
        scripted() as engine,
        pytest.raises(AssertionError, match=r"batches\.folder: the folder of batches"),
        gateway(tmp_path, engine.url),
    ):
        pass


def test_without_a_folder_batches_are_refused_by_name(tmp_path: Path) -> None:
    with scripted() as engine, gateway(tmp_path, engine.url, folder=None) as (_, where):
        with pytest.raises(openai.APIStatusError, match=r"batches\.folder") as refused:
            client(where).batches.list()
        assert refused.value.status_code == 503
        with pytest.raises(openai.APIStatusError, match=r"batches\.folder"):
            client(where).files.create(file=("a", b"x" * 500_000), purpose="batch")


def test_a_folder_that_is_lost_for_a_while_is_told_and_loses_nothing(tmp_path: Path) -> None:
    with scripted() as engine, gateway(tmp_path, engine.url) as (_, where):
        ai, files = client(where), tmp_path / "batches" / "files"
        batch = begin(ai, [line(n, messages=[{"role": "user", "content": f"slow 0.3 {n}"}]) for n in range(20)])
        wait_for(lambda: engine.running > 0)
        files.rename(tmp_path / "elsewhere")
        with pytest.raises(openai.APIStatusError, match="the folder of batches") as refused:
            ai.files.create(file=("a", b"x"), purpose="batch")
        assert refused.value.status_code == 507
        wait_for(lambda: ai.batches.retrieve(batch.id).request_counts.completed == 20)  # type: ignore[union-attr]
        (tmp_path / "elsewhere").rename(files)
        assert len(results(ai, over(ai, batch.id).output_file_id)) == 20
