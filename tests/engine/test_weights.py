"""The faster form of the bundled weights: made once, whole or not at all, and never in the way of a start."""

import fcntl
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from headgate.engine.runner import weights
from headgate.engine.runner.llama import Context, Model
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.engine.runner.weights import FORM, cache_folder, kept_as, make, place
from tests.engine.process import TESTED, ask
from tests.ordinary.corpus import shipped

pytestmark = [pytest.mark.model, pytest.mark.timeout(60)]


def cached(folder: Path) -> list[Path]:
    """What lies there, locks aside."""
    return [path for path in folder.iterdir() if path.suffix != ".lock"]


def start(folder: Path, *flags: str) -> str:
    """What an engine with this cache says while it starts; it must get ready and answer."""
    environ = {**os.environ, "HEADGATE_CACHE": str(folder), "COLUMNS": "300", "PYTHONPATH": TESTED}
    command = [sys.executable, "-m", "headgate", "engine", "--port", "0", "--slots", "1", "--context", "256", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        said = ""
        try:
            for line in process.stderr:
                said += line
                if found := re.search(r"Ready on (\S+)", line):
                    assert ask(f"{found[1]}/health/deep")[0] == 200
                    return said
            raise AssertionError(said)
        finally:
            process.kill()


# -- what is made -----------------------------------------------------------------------------------------------


def test_every_slow_tensor_is_in_a_faster_form_and_the_others_are_as_they_were(
    bundled_path: Path, model_path: Path
) -> None:
    old, new = gguf.GGUFReader(bundled_path), gguf.GGUFReader(model_path)
    assert old.fields.keys() == new.fields.keys()
    for before, after in zip(old.tensors, new.tensors, strict=True):
        assert before.name == after.name
        if before.tensor_type.name != "Q4_1":
            assert before.tensor_type == after.tensor_type
            assert np.array_equal(before.data, after.data)
            continue
        coarse = re.fullmatch(r"blk\.([4-9]|1\d|2[0-5])\.ffn_\w+\.weight", before.name) is not None
        assert after.tensor_type.name == ("Q4_0" if coarse else "Q8_0")
    for number, levels in ((2, 254), (50, 14)):
        told, said = (gguf.dequantize(one.tensors[number].data, one.tensors[number].tensor_type) for one in (old, new))
        assert np.abs(told - said).max() <= np.abs(told).max() / levels * 1.01


def test_it_knows_its_language_as_well(bundled_path: Path, model_path: Path) -> None:
    """Perplexity on ordinary texts is at most 5 % worse than that of the weights as they came."""
    losses = []
    for path in (bundled_path, model_path):
        model = Model(path)
        tokenizer = Tokenizer(model, clock=lambda: 0.0)
        context = Context(model, slots=1, n_ctx=256, batch_tokens=256, threads=2)
        told = []
        texts = [text.text for text in shipped() if text.kind == "manual" and len(text.text) > 4000]
        for text in texts[::12][:4]:
            tokens = tokenizer.encode(text)[:256]
            context.trim(0, 0)
            context.tokens[:256], context.positions[:256], context.wanted[:256] = tokens, np.arange(256), 1
            assert context.decode(256) == 0
            logits = context.logits(256)[:-1].astype(np.float64)
            told.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(255), tokens[1:]])
        context.close()
        losses.append(np.concatenate(told).mean())
    assert np.exp(losses[1] - losses[0]) < 1.05  # Q4_0 throughout: 1.16


# -- where it is kept ---------------------------------------------------------------------------------------------


def test_the_folder_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder({"HEADGATE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/headgate")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder({}) == Path("/home/me/.cache/headgate")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OSError, match="home"):
        cache_folder({})


def test_the_name_tells_one_source_from_another(tmp_path: Path) -> None:
    one, other, longer = (tmp_path / name / "W.Q4_1.gguf" for name in "abc")
    data = bytearray(os.urandom(1_000_000))
    for path, changed in ((one, b""), (other, b"x"), (longer, b"")):
        path.parent.mkdir()
        data[500_000 : 500_000 + len(changed)] = changed
        path.write_bytes(bytes(data) + (b"." if path is longer else b""))
    names = {kept_as(path) for path in (one, other, longer)}
    assert len(names) == 3
    assert all(re.fullmatch(rf"W\.{FORM}-[0-9a-f]{{16}}\.gguf", name) for name in names)
    assert place(one, {"HEADGATE_CACHE": "/a"}) == Path("/a") / kept_as(one)


def test_several_that_start_at_once_make_one_file(bundled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / kept_as(bundled_path)
    code = (
        "import sys; from pathlib import Path; from headgate.engine.runner.weights import make\n"
        "make(*map(Path, sys.argv[1:]))"
    )
    environ = {**os.environ, "PYTHONPATH": TESTED}
    makers = [
        subprocess.Popen([sys.executable, "-c", code, str(bundled_path), str(path)], env=environ) for _ in range(3)
    ]
    assert [maker.wait() for maker in makers] == [0, 0, 0]
    assert cached(path.parent) == [path]
    made_at = path.stat().st_mtime_ns
    make(bundled_path, path)
    assert path.stat().st_mtime_ns == made_at


def test_what_a_killed_one_left_is_removed(bundled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / kept_as(bundled_path)
    (tmp_path / f".{path.name}.abc123").write_bytes(b"half of it")
    (tmp_path / "somebody's").write_bytes(b"stays")
    make(bundled_path, path)
    assert sorted(cached(tmp_path)) == sorted([path, tmp_path / "somebody's"])


def test_a_lock_that_is_not_given_back_is_not_waited_for_for_ever(
    bundled_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "LOCK_S", 0.3)
    path = tmp_path / kept_as(bundled_path)
    with (tmp_path / f".{path.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        make(bundled_path, path)
    assert path.exists()


def test_a_file_system_without_locks_will_do(
    bundled_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = tmp_path / kept_as(bundled_path)
    make(bundled_path, path)
    assert cached(tmp_path) == [path]


# -- when it can't be --------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_nothing_behind(bundled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / kept_as(bundled_path)
    code = (
        "import resource, sys; from pathlib import Path; from headgate.engine.runner.weights import make\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000_000,) * 2)\n"
        "try: make(*map(Path, sys.argv[1:]))\n"
        "except OSError as error: print(error)"
    )
    environ = {**os.environ, "PYTHONPATH": TESTED}
    command = [sys.executable, "-c", code, str(bundled_path), str(path)]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert "File too large" in said
    assert cached(tmp_path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 40_000_000


def test_an_engine_that_can_not_write_says_so_and_serves_the_weights_as_they_came(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    said = start(tmp_path / "file" / "cache")
    (line,) = [line for line in said.splitlines() if "weights" in line]
    assert "Q4_1.gguf" in line
    assert f"{FORM} would be faster" in line
    assert "HEADGATE_CACHE" in line


def test_an_engine_makes_it_once_and_a_broken_one_anew(bundled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / kept_as(bundled_path)
    assert ", once, to " in start(tmp_path)
    assert cached(tmp_path) == [path]
    path.write_bytes(path.read_bytes()[:50_000_000])
    again = start(tmp_path)
    assert ", once, to " not in again
    assert "it is made anew at the next start" in again
    assert cached(tmp_path) == []


def test_a_model_that_is_named_is_served_as_it_is(bundled_path: Path, tmp_path: Path) -> None:
    said = start(tmp_path, "--model", str(bundled_path))
    assert FORM not in said
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_made_before_the_first_start(bundled_path: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "HEADGATE_CACHE": str(tmp_path), "PYTHONPATH": TESTED}
    command = [sys.executable, "-m", "headgate.wiring.prepare"]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(tmp_path / kept_as(bundled_path))
    assert ", once, to " not in start(tmp_path)
