"""The same Batcher on a real GPU: how long steps take, and what running streams notice of a long prompt.

Llama-3-8B's shape with random weights in bf16, in this process: no gateway, no sockets. The engine is the one of
`headgate engine --model FOLDER`. The bounds come from what was measured on an H200 before: by plain PyTorch in a CUDA
graph over contiguous KV, by transformers' continuous batching, and by the sum of vLLM's kernels.
"""

import argparse
import gc
import itertools
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
if not any(Path(folder, "headgate").is_dir() for folder in sys.path[1:]):
    sys.path.insert(1, str(HERE.parent / "src"))

import torch  # noqa: E402
from benchmarks.report import Report, Row, Samples, Verdict, judge, machine, verdict_grid  # noqa: E402
from rich.console import Console  # noqa: E402

from headgate.config.engine import EngineConfig  # noqa: E402
from headgate.engine.engine import EngineRequest, SequenceOutput  # noqa: E402
from headgate.engine.torch.loading import look_at, torch_engine  # noqa: E402
from headgate.engine.torch.torch_runner import TorchRunner  # noqa: E402
from headgate.machine.step_features import StepFeatures, shape  # noqa: E402
from headgate.model.clock import monotonic  # noqa: E402
from headgate.model.lane import LANES  # noqa: E402
from headgate.model.sampling import Sampling  # noqa: E402
from headgate.model.sequence import Sequence  # noqa: E402
from headgate.model.step import Step  # noqa: E402
from headgate.policy.dispatch.intake import classify  # noqa: E402

LLAMA3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336, "rope_theta": 500_000.0,
    "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
SMALL = LLAMA3_8B | {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 512, "max_position_embeddings": 32_768, "head_dim": 64}
PEAK = 790e12
"""FLOP/s of a large bf16 matrix product of random numbers on an H200."""
GAP_TARGET_S = 0.050
LONG, SHORT = 16_384, 100
STREAMS = 32

ROWS = (
    *(
        Row(f"decode step of the engine, {batch} × 1 k, ms", f"decode.{batch}.step_ms", None, "≤", limit, aim)
        for batch, limit, aim in ((1, 5.5, 4.69), (32, 7.5, 6.6), (128, 12.0, 10.6))
    ),
    *(Row(f"… the GPU's part, {batch} × 1 k, ms", f"decode.{batch}.gpu_ms", None) for batch in (1, 32, 128)),
    Row("Python's share of a decode step, 32 × 1 k", "python.32.share", None, "≤", 0.10, 0.03),
    Row("gap of 32 streams while a 16 k prompt arrives, p99, ms", "gaps.p99_ms", None, "≤", 50.0),
    Row("… largest, ms", "gaps.most_ms", None, "≤", 75.0),
    Row("that prompt's TTFT over its TTFT alone", "long.beside_ms", "long.alone_ms", "≤", 2.0, 1.5),
    Row("TTFT of 100 tokens behind three 16 k prompts, ms", "behind.ttft_ms", None, "≤", 150.0, 100.0),
    Row("prefill of 8 k at once, share of the matrix peak", "prefill.whole.share", None, "≥", 0.65, 0.75),
    Row("prefill of 8 k by the engine, share of the matrix peak", "prefill.engine.share", None),
    Row("512 prompt tokens, ms", "prefill.512.ms", None, "≤", 18.0, 15.0),
)


class Bench:
    """An engine, and what it said when."""

    def __init__(self, config: dict[str, Any], console: Console, **engine: Any) -> None:
        self.console = console
        self.samples: Samples = defaultdict(list)
        self.steps: list[tuple[StepFeatures, float, float]] = []
        self.came: dict[int, list[float]] = defaultdict(list)
        self.ended: dict[int, threading.Event] = {}
        self.failed: list[str] = []
        self.rng = random.Random(1)
        self._ids = itertools.count(1)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as at:
            Path(at, "config.json").write_text(json.dumps(config))
            given = EngineConfig(model=Path(at), **engine)
            folder = look_at(Path(at), given, frozenset(engine))
            self.shape = folder.shape
            self.engine, _ = torch_engine(
                folder, None, clock=monotonic, sink=self._sink, ids=self._ids, rng=random.Random(1)
            )
        assert isinstance(self.engine.runner, TorchRunner)
        self.runner: TorchRunner = self.engine.runner
        self.engine.report_steps_to(self._step)
        self.engine.start()
        gc.collect()
        gc.freeze()  # as the engine's own process does when it is ready
        console.print(f"  loaded and recorded in {time.monotonic() - began:.1f} s")

    def _sink(self, said: list[SequenceOutput]) -> None:
        now = time.monotonic()
        for one in said:
            self.came[one.sequence_id] += [now] * len(one.tokens)
            if one.error is not None:
                self.failed.append(one.error.message)
            if one.finish is not None or one.error is not None:
                self.ended[one.sequence_id].set()

    def _step(self, step: Step, began: float, took_s: float, ran_s: float) -> None:
        self.steps.append((shape(step), took_s, ran_s))

    def ask(self, prompt: int, output: int) -> int:
        """Submits a request of random tokens, in the lane that its size has; returns its number."""
        tokens = [self.rng.randrange(self.shape.vocabulary) for _ in range(prompt)]
        now, lane = monotonic(), LANES[classify(uncached_tokens=prompt, streaming=True, says_batch=False)]
        one = Sequence(
            id=next(self._ids),
            tokens=tokens,
            prompt_len=prompt,
            max_output=output,
            arrived=now,
            lane=lane.name,
            priority=lane.priority,
            first_token_by=now + lane.ttft_target_s,
            gap_target_s=GAP_TARGET_S,
            sampling=Sampling(temperature=0.0),
        )
        self.ended[one.id] = threading.Event()
        self.engine.submit(EngineRequest(one))
        return one.id

    def wait(self, *numbers: int) -> None:
        for number in numbers:
            if not self.ended[number].wait(60):
                raise TimeoutError(f"request {number} did not end: {self.engine.failed}")
        if self.failed:
            raise RuntimeError(self.failed[0])

    def ttft_ms(self, number: int, asked: float) -> float:
        return 1e3 * (self.came[number][0] - asked)

    @contextmanager
    def streams(self, count: int, prompt: int, output: int) -> Iterator[list[int]]:
        """This number of streams, all decoding."""
        numbers = [self.ask(prompt, output) for _ in range(count)]
        until = time.monotonic() + 40
        while any(len(self.came[number]) < 4 for number in numbers):
            time.sleep(0.005)
            if self.failed or self.engine.failed is not None or time.monotonic() > until:
                raise RuntimeError(f"not all streams began: {self.engine.failed}, {self.failed[:1]}")
        yield numbers

    def stop(self) -> None:
        self.engine.stop()


def on_gpu(run: Callable[[], object], times: int) -> float:
    """Milliseconds of the GPU for each run, the median of five rounds."""
    for _ in range(3):
        run()
    found: list[float] = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / times)
    return statistics.median(found)


# -- figures -----------------------------------------------------------------------------------------------------


def decode(bench: Bench, batch: int) -> None:
    """The engine's steps while all streams decode, and the GPU's part: the same steps launched back to back."""
    bench.steps.clear()
    with bench.streams(batch, 960, 400) as numbers:
        bench.wait(*numbers)
    kept = [
        (took_s, ran_s)
        for done, took_s, ran_s in bench.steps
        if done.decodes == batch and not done.prefill and 1000 * batch < done.context < 1100 * batch
    ]
    steps = [took_s for took_s, _ in kept]
    step_ms = 1e3 * statistics.median(steps)
    replay = bench.runner._replays._kept[next(
        size for size in sorted(bench.runner._replays._kept, key=lambda one: one.singles)
        if size.singles >= batch and not size.chunked
    )]  # fmt: skip
    with torch.inference_mode():
        replay.work.positions[:batch] = 1024
        replay.work.slots[:batch] = torch.arange(batch, device=replay.numbers.device)
        gpu_ms = on_gpu(lambda: bench.runner._drawing._operations.best_of(replay.run()), 20)
    samples = bench.samples
    samples[f"decode.{batch}.step_ms"], samples[f"decode.{batch}.gpu_ms"] = [step_ms], [gpu_ms]
    samples[f"decode.{batch}.steps_ms"] = [round(1e3 * one, 3) for one in steps]
    # While the GPU runs ahead, what Python does beside it costs nothing: its share is the time that the GPU is idle.
    samples[f"python.{batch}.share"] = [max(0.0, 1 - gpu_ms / step_ms)]
    samples[f"python.{batch}.busy_ms"] = [1e3 * statistics.median(took - ran for took, ran in kept)]
    ahead = bench.runner.used_ahead / max(1, bench.runner.launched_ahead)
    busy_ms = samples[f"python.{batch}.busy_ms"][0]
    said = f"step {step_ms:.2f} ms, GPU {gpu_ms:.2f} ms, Python {busy_ms:.2f} ms"
    bench.console.print(f"  decode {batch}: {said}, {ahead:.0%} of steps launched ahead used")


def decodes(bench: Bench, batches: tuple[int, ...]) -> None:
    for batch in batches:
        decode(bench, batch)


def flops(bench: Bench, tokens: int, before: int = 0) -> float:
    """Operations for the tokens of a prompt, of which only the last needs logits."""
    shape = bench.shape
    products = shape.parameters - 2 * shape.vocabulary * shape.hidden
    attention = 4 * shape.layers * shape.heads * shape.head
    return 2.0 * tokens * products + attention * (tokens * before + tokens * tokens / 2)


def prefill(bench: Bench) -> None:
    samples = bench.samples
    for name, tokens, before in (("512", 512, 0), ("512@8k", 512, 8192), ("whole", 8192, 0), ("2048@8k", 2048, 8192)):
        # Another long prompt's pages, so that what is read is not all one page.
        row = _row(bench, tokens, before)
        with torch.inference_mode():
            replay = bench.runner._replays.of([], [row])
            ms = on_gpu(replay.run, 5)
        share = flops(bench, tokens, before) / (ms / 1e3) / PEAK
        samples[f"prefill.{name}.ms"], samples[f"prefill.{name}.share"] = [ms], [share]
        bench.console.print(f"  prefill {name}: {ms:.2f} ms, {share:.0%} of the peak")
    found = []
    for _ in range(3):
        bench.steps.clear()
        bench.wait(bench.ask(8192, 1))
        found.append(sum(took_s for _, took_s, _ in bench.steps))
    took_s = statistics.median(found)
    samples["prefill.engine.ms"] = [1e3 * took_s]
    samples["prefill.engine.share"] = [flops(bench, 8192) / took_s / PEAK]
    bench.console.print(f"  prefill 8 k by the engine: {1e3 * took_s:.1f} ms, {samples['prefill.engine.share'][0]:.0%}")


def _row(bench: Bench, tokens: int, before: int) -> Any:
    from headgate.model.step import Row as StepRow

    tables = bench.runner._model.cache.tables
    wide = min(tables.shape[1], (tokens + before) // 16 + 1)
    with torch.inference_mode():
        tables[-2, :wide] = torch.randperm(bench.runner._ledger.pages - 1, device=tables.device)[:wide].int() + 1
    ids = [bench.rng.randrange(bench.shape.vocabulary) for _ in range(tokens + before)]
    one = Sequence(
        id=0, tokens=ids, prompt_len=len(ids), max_output=1, arrived=0.0, lane="fast", priority=1, first_token_by=0.0,
        gap_target_s=1.0,
    )  # fmt: skip
    return StepRow(one, bench.runner.slots - 1, before, tokens, True)


def gaps(bench: Bench) -> None:
    samples, found = bench.samples, []
    for _ in range(4):
        began = time.monotonic()
        number = bench.ask(LONG, 4)
        bench.wait(number)
        samples["long.alone_ms"].append(bench.ttft_ms(number, began))
    del samples["long.alone_ms"][0]  # the first taught the Batcher how long such steps take
    for _ in range(5):
        with bench.streams(STREAMS, 900, 700) as numbers:
            began = time.monotonic()
            number = bench.ask(LONG, 4)
            bench.wait(number)
            first = bench.came[number][0]
            samples["long.beside_ms"].append(1e3 * (first - began))
            for one in numbers:
                stamps = bench.came[one]
                found += [1e3 * (b - a) for a, b in itertools.pairwise(stamps) if b > began and a < first]
            for one in numbers:
                bench.engine.cancel(one)
            while bench.engine.batcher.running:
                time.sleep(0.01)
    found.sort()
    samples["gaps.p99_ms"], samples["gaps.most_ms"] = [found[int(0.99 * len(found))]], [found[-1]]
    samples["gaps.p50_ms"] = [statistics.median(found)]
    said = ", ".join(f"{name} {samples[f'gaps.{name}_ms'][0]:.1f}" for name in ("p50", "p99", "most"))
    alone, beside = (f"{statistics.median(samples[f'long.{name}_ms']):.0f}" for name in ("alone", "beside"))
    bench.console.print(f"  16 k: alone {alone} ms, beside {beside} ms; gaps {said} ms")


def behind(bench: Bench) -> None:
    for _ in range(5):
        long = [bench.ask(LONG, 2) for _ in range(3)]
        time.sleep(0.03)
        began = time.monotonic()
        short = bench.ask(SHORT, 2)
        bench.wait(*long, short)
        bench.samples["behind.ttft_ms"].append(bench.ttft_ms(short, began))
    bench.console.print(f"  100 tokens behind three of 16 k: {bench.samples['behind.ttft_ms']} ms")


def check(console: Console) -> float:
    """The fused kernels, in bf16 and in graphs, beside plain PyTorch on the same weights: what a small model says."""
    from headgate.engine.torch.plain import PlainOperations

    bench = Bench(SMALL, console, slots=32, context=4096, kv_tokens=32_768)
    bench.stop()
    model, worst = bench.runner._model, 0.0
    plain = type(model)(
        model.shape, model.weights, model.cache, PlainOperations(model.shape, model.weights, model.cache)
    )
    for tokens, before in ((100, 0), (512, 64), (700, 900)):
        for start, count in ((0, before), (before, tokens)):
            if not count:
                continue
            row = _row(bench, before + tokens, 0)
            row = type(row)(row.sequence, row.slot, start, count, True)
            with torch.inference_mode():
                replay = bench.runner._replays.of([], [row])
                mine = replay.run()[replay.size.singles].float().clone()
                size = type(replay.size)(0, count, -(-count // model.operations.tile), 1)
                from headgate.engine.torch.replay import Replay
                from headgate.engine.torch.work import lay_out

                other = Replay(plain, size)
                lay_out(numbers := torch.zeros(size.numbers, dtype=torch.int32).numpy(), size, [], [row],
                        model.operations.tile, model.cache.nowhere)  # fmt: skip
                other.numbers.copy_(torch.from_numpy(numbers))
                theirs = other.run()[0].float()
            worst = max(worst, float((mine - theirs).norm() / theirs.norm()))
    console.print(f"  fused and plain differ by {worst:.2%}")
    if not worst < 0.03:
        raise SystemExit("the fused kernels do not compute what plain PyTorch does")
    return worst


def products(samples: Samples, console: Console) -> None:
    """The matrix products by themselves: time, and bytes of weights a second."""
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    samples["peak.tflops"] = [2 * 8192**3 / on_gpu(lambda: square @ square, 5) / 1e9]
    console.print(f"  8192³: {samples['peak.tflops'][0]:.0f} TFLOP/s")
    for name, out, inner in (("qkv", 6144, 4096), ("out", 4096, 4096), ("gate_up", 28_672, 4096),
                             ("down", 4096, 14_336), ("head", 128_256, 4096)):  # fmt: skip
        several = [
            torch.randn(out, inner, device="cuda", dtype=torch.bfloat16) * 0.02
            for _ in range(max(1, 2**30 // (out * inner * 2)))
        ]
        for rows in (1, 32, 128):
            x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
            graph = torch.cuda.CUDAGraph()
            torch.nn.functional.linear(x, several[0])
            with torch.cuda.graph(graph):
                for _ in range(3):
                    for weight in several:
                        torch.nn.functional.linear(x, weight)
            ms = on_gpu(graph.replay, 2) / len(several) / 3
            samples[f"product.{name}.{rows}.us"] = [1e3 * ms]
            console.print(f"  {name} × {rows}: {1e3 * ms:.1f} µs, {out * inner * 2 / ms / 1e9:.2f} TB/s")


STAGES: dict[str, Callable[[Bench], None]] = {
    "decode": lambda bench: decodes(bench, (1, 32, 128)),
    "prefill": prefill,
    "gaps": gaps,
    "behind": behind,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stage", choices=["check", "products", *STAGES], action="append", help="else all")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.json")
    parser.add_argument("--note")
    args = parser.parse_args()
    sys.setswitchinterval(0.0005)  # as in the engine's own process
    console, stages = Console(highlight=False, width=150), args.stage or ["check", "products", *STAGES]
    samples: Samples = {}
    if "check" in stages:
        samples["check.difference"] = [check(console)]
        gc.collect()
    if "products" in stages:
        products(samples, console)
        torch.cuda.empty_cache()
    if any(stage in STAGES for stage in stages):
        bench = Bench(LLAMA3_8B, console)
        for name in stages:
            if name in STAGES:
                console.print(name)
                STAGES[name](bench)
        bench.stop()
        samples |= bench.samples
    verdicts: list[Verdict] = [judge(row, samples) for row in ROWS]
    console.print(verdict_grid(verdicts).table("The engine on a GPU"))
    facts = {**machine(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "peak TFLOP/s": PEAK / 1e12}
    facts |= {"note": args.note} if args.note else {}
    Report("The engine on a GPU", "benchmarks/gpu.py", facts, verdicts, samples, ()).keep(args.out)
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
