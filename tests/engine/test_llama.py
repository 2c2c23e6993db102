import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.engine.runner.llama import Model
from headgate.model.errors import StartupError

pytestmark = [pytest.mark.model, pytest.mark.timeout(60)]


def test_files_that_are_no_weights_are_refused_in_one_line(model_path: Path, tmp_path: Path) -> None:
    whole = model_path.read_bytes()
    broken = {
        "empty": b"",
        "garbage": b"hello" * 100,
        "old": b"GGUF" + (1).to_bytes(4, "little") + b"\0" * 100,
        "header": whole[:20],
        "metadata": whole[:5000],
        "tensors": whole[: len(whole) // 2],
    }
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
    for name in (*broken, "missing", "."):
        with pytest.raises(StartupError) as refused:
            Model(tmp_path / name)
        assert "\n" not in str(refused.value)
        assert str(tmp_path) in str(refused.value)


def test_the_library_is_loaded_on_first_use_with_spinning_tamed() -> None:
    code = """if True:
        import os
        from headgate.engine.runner import llama, llama_runner
        assert "xllamacpp" not in open("/proc/self/maps").read()
        llama.library()
        assert "xllamacpp" in open("/proc/self/maps").read()
        print(os.environ["GOMP_SPINCOUNT"])
        """
    for set_by_user, used in ((None, "1000"), ("7", "7")):
        env = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
        env |= {"PYTHONPATH": os.pathsep.join(sys.path)} | ({"GOMP_SPINCOUNT": set_by_user} if set_by_user else {})
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == used
        assert done.stderr == ""
