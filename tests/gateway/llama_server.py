"""llama.cpp's own server, from the xllamacpp wheel, as its users run it: with metrics.

python -m tests.gateway.llama_server MODEL PORT
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def llama_server(model_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = (sys.executable, "-m", "tests.gateway.llama_server", str(model_path), str(port))
    # The default spin count is catastrophic when a core is shared, as it is with the test.
    environment = {**os.environ, "GOMP_SPINCOUNT": "1000"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=ROOT, env=environment)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(model: str, port: int) -> None:
    import xllamacpp

    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before its threads exist, so that none takes them
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.port = port
    params.n_parallel = 2
    params.n_ctx = 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.fit_params = False
    params.ui = False
    server = xllamacpp.Server(params)
    signal.sigwait(signals)
    del server


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
