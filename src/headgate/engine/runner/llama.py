"""Calls llama.cpp: a thin, typed layer over its C API, which makes no choices.

The library is the extension module inside the xllamacpp wheel, which exports every `llama_*` symbol. Struct layouts
belong to one build of it: `library()` compares the defaults it reads through them with those of that build, and refuses
another. ctypes releases the GIL around every call.
"""

import ctypes as C
import importlib.util
import os
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headgate.config.engine import EngineConfig, KvType
from headgate.model.errors import StartupError, UsageError

BUILD = "2026.10.11549"
F16, Q4_0, Q4_1, Q8_0 = 1, 2, 3, 8
"""ggml_type: 16 bits; 32 weights of 4 bits and a scale, of 4 bits with a scale and a least value, of 8 bits and a
scale."""
KV_TYPES: Final[dict[KvType, tuple[int, float]]] = {"f16": (F16, 2.0), "q8_0": (Q8_0, 34 / 32), "q4_0": (Q4_0, 18 / 32)}
"""llama.cpp's number of the type, and bytes per value: a block of 32 values has a 2-byte scale."""
CONTROL_TOKEN = 1 << 3 | 1 << 0
"""llama_token_attr CONTROL or UNKNOWN: only a trusted author's text may become this token."""
_LOG_ERROR, _LOG_CONTINUED = 4, 5

i32, i64, u32 = C.c_int32, C.c_int64, C.c_uint32
f32, ptr, size, flag = C.c_float, C.c_void_p, C.c_size_t, C.c_bool


class ModelParams(C.Structure):
    _fields_ = (
        *[(name, ptr) for name in ("devices", "tensor_buft_overrides")],
        *[(name, i32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")],
        *[(name, ptr) for name in ("tensor_split", "progress_callback", "progress_data", "kv_overrides")],
        *[(name, flag) for name in ("vocab_only", "check_tensors", "use_extra_bufts")],
        *[(name, flag) for name in ("no_host", "no_alloc", "load_mtp")],
    )


class ContextParams(C.Structure):
    _fields_ = (
        *[(name, u32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")],
        *[(name, u32) for name in ("n_outputs_max", "n_outputs_max_per_seq")],
        *[(name, i32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")],
        *[(name, i32) for name in ("pooling_type", "attention_type", "flash_attn_type")],
        *[(name, f32) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor")],
        *[(name, f32) for name in ("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")],
        ("yarn_orig_ctx", u32),
        ("defrag_thold", f32),
        *[(name, ptr) for name in ("cb_eval", "cb_eval_user_data")],
        *[(name, i32) for name in ("type_k", "type_v")],
        ("moe_cache_size", size),
        *[(name, ptr) for name in ("abort_callback", "abort_callback_data")],
        *[(name, flag) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload")],
        *[(name, flag) for name in ("swa_full", "kv_unified")],
        ("samplers", ptr),
        ("n_samplers", size),
        ("ctx_other", ptr),
    )


class Batch(C.Structure):
    _fields_ = (
        ("n_tokens", i32),
        *[(name, ptr) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")],
    )


class GgufParams(C.Structure):
    _fields_ = (("no_alloc", flag), ("context", ptr))


_LogCallback = C.CFUNCTYPE(None, C.c_int, C.c_char_p, ptr)

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_log_set": (None, [ptr, ptr]),
    "llama_backend_init": (None, []),
    "llama_supports_gpu_offload": (flag, []),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (ptr, [C.c_char_p, ModelParams]),
    "llama_model_free": (None, [ptr]),
    "llama_model_get_vocab": (ptr, [ptr]),
    "llama_model_n_ctx_train": (i32, [ptr]),
    "llama_model_n_layer": (i32, [ptr]),
    "llama_model_n_embd": (i32, [ptr]),
    "llama_model_n_head": (i32, [ptr]),
    "llama_model_n_head_kv": (i32, [ptr]),
    "llama_model_size": (C.c_uint64, [ptr]),
    "llama_model_has_encoder": (flag, [ptr]),
    "llama_model_is_recurrent": (flag, [ptr]),
    "llama_model_is_hybrid": (flag, [ptr]),
    "llama_model_meta_val_str": (i32, [ptr, C.c_char_p, C.c_char_p, size]),
    "llama_model_chat_template": (C.c_char_p, [ptr, C.c_char_p]),
    "llama_vocab_n_tokens": (i32, [ptr]),
    "llama_vocab_get_attr": (i32, [ptr, i32]),
    "llama_vocab_get_text": (C.c_char_p, [ptr, i32]),
    "llama_vocab_get_add_bos": (flag, [ptr]),
    "llama_vocab_is_eog": (flag, [ptr, i32]),
    "llama_vocab_bos": (i32, [ptr]),
    "llama_vocab_eos": (i32, [ptr]),
    "llama_tokenize": (i32, [ptr, C.c_char_p, i32, ptr, i32, flag, flag]),
    "llama_token_to_piece": (i32, [ptr, i32, C.c_char_p, i32, i32, flag]),
    "llama_adapter_lora_init": (ptr, [ptr, C.c_char_p]),
    "llama_set_adapters_lora": (i32, [ptr, ptr, size, ptr]),
    "llama_init_from_model": (ptr, [ptr, ContextParams]),
    "llama_free": (None, [ptr]),
    "llama_get_memory": (ptr, [ptr]),
    "llama_decode": (i32, [ptr, Batch]),
    "llama_get_logits": (C.POINTER(f32), [ptr]),
    "llama_memory_seq_rm": (flag, [ptr, i32, i32, i32]),
    "llama_memory_seq_cp": (None, [ptr, i32, i32, i32, i32]),
    "llama_state_seq_get_size": (size, [ptr, i32]),
    "llama_state_seq_get_data": (size, [ptr, ptr, size, i32]),
    "llama_state_seq_set_data": (size, [ptr, ptr, size, i32]),
    "gguf_init_from_file": (ptr, [C.c_char_p, GgufParams]),
    "gguf_free": (None, [ptr]),
    "gguf_get_n_tensors": (i64, [ptr]),
    "gguf_get_tensor_name": (C.c_char_p, [ptr, i64]),
    "gguf_get_tensor_type": (i32, [ptr, i64]),
    "gguf_get_tensor_ne": (C.POINTER(i64), [ptr, i64]),
    "gguf_get_tensor_offset": (size, [ptr, i64]),
    "gguf_get_tensor_size": (size, [ptr, i64]),
    "gguf_get_data_offset": (size, [ptr]),
    "gguf_get_alignment": (size, [ptr]),
    "gguf_set_tensor_type": (None, [ptr, C.c_char_p, i32]),
    "gguf_set_val_u32": (None, [ptr, C.c_char_p, u32]),
    "gguf_get_meta_size": (size, [ptr]),
    "gguf_get_meta_data": (None, [ptr, ptr]),
    "dequantize_row_q4_1": (None, [ptr, ptr, i64]),
    "ggml_quantize_chunk": (size, [i32, ptr, ptr, i64, i64, i64, ptr]),
}


class Library:
    """The loaded library, and the last errors it logged."""

    def __init__(self, path: Path) -> None:
        # The default spins a waiting thread for milliseconds: on a shared core one run took 28 s for 24 tokens. libgomp
        # reads this when it is loaded, so it has to be set before.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        try:
            self.c: Any = C.CDLL(str(path))
        except OSError as error:
            raise StartupError(f"llama.cpp can't be loaded ({error}); install libgomp1") from error
        self.path = path
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self._errors: deque[str] = deque(maxlen=4)
        self._log = _LogCallback(self._on_log)  # kept here: C holds only its address
        self.c.llama_log_set(C.cast(self._log, ptr), None)
        self.c.llama_backend_init()
        self._check_layout()

    def why(self) -> str:
        """Returns llama.cpp's last errors, and forgets them."""
        text = "; ".join(line for line in (line.strip() for line in self._errors) if line)
        self._errors.clear()
        return text or "llama.cpp gave no reason"

    def _on_log(self, level: int, text: bytes | None, _: object) -> None:
        line = (text or b"").decode("utf-8", "replace")
        if level == _LOG_ERROR:
            self._errors.append(line)
        elif level == _LOG_CONTINUED and self._errors:
            self._errors[-1] += line

    def _check_layout(self) -> None:
        context, model = self.c.llama_context_default_params(), self.c.llama_model_default_params()
        sizes = (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max)
        types = (context.type_k, context.type_v, context.rope_scaling_type, context.pooling_type)
        rest = (context.n_samplers, context.ctx_other, model.use_extra_bufts, model.vocab_only)
        if (sizes, types, rest) != ((512, 2048, 512, 1), (1, 1, -1, -1), (0, None, True, False)):
            raise StartupError(f"this llama.cpp build is not the expected one: install xllamacpp=={BUILD}")


@cache
def library() -> Library:
    """Loads the library on first use, not at import: a command that needs no model must not wait for 100 MB."""
    spec = importlib.util.find_spec("xllamacpp")
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () for path in Path(folder).glob("xllamacpp*.so")]
    if not found:
        raise StartupError(f"llama.cpp is not installed: pip install xllamacpp=={BUILD}")
    return Library(found[0])


def check_gguf(path: Path) -> None:
    """Raises StartupError unless `path` begins like a GGUF file that llama.cpp reads."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise StartupError(f"can't read {path}: {error.strerror}; give the path of a GGUF file") from error
    if head[:4] != b"GGUF":
        raise StartupError(f"{path} is not a GGUF file; convert the weights with convert_hf_to_gguf.py")
    version = int.from_bytes(head[4:8], "little")
    if version not in (2, 3):
        raise StartupError(f"{path} has GGUF version {version}, but 2 or 3 is needed; convert it again")


class Model:
    """Weights and vocabulary in memory, until the last reference to the Model is gone: a context and a thread that is
    tokenizing both hold one, so neither can be left with freed memory."""

    def __init__(
        self,
        path: Path,
        *,
        vocab_only: bool = False,
        gpu_layers: int = EngineConfig.gpu_layers,
        kv_type: KvType = EngineConfig.kv_type,
    ) -> None:
        """`gpu_layers`: layers that a GPU computes and keeps. `kv_type`: precision of the KV memory of its contexts."""
        check_gguf(path)
        self._library = library()
        self.c = self._library.c
        if gpu_layers and not self.c.llama_supports_gpu_offload():
            raise UsageError(
                "--gpu-layers: this build of llama.cpp has no GPU; install an xllamacpp that is built for CUDA, ROCm, "
                "Vulkan or Metal, or leave the flag out"
            )
        params = self.c.llama_model_default_params()
        params.vocab_only, params.n_gpu_layers = vocab_only, gpu_layers
        self.gpu_layers, self.kv_type = gpu_layers, kv_type
        self.handle: int | None = self.c.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise StartupError(f"{path} can't be loaded ({self._library.why()}); it may be truncated: fetch it again")
        # Not at exit: another thread may be in the middle of a step, and the memory goes anyway.
        weakref.finalize(self, self.c.llama_model_free, self.handle).atexit = False
        self.path = path
        self.vocab: int = self.c.llama_model_get_vocab(self.handle)
        self.n_vocab: int = self.c.llama_vocab_n_tokens(self.vocab)
        self.size: int = self.c.llama_model_size(self.handle)
        self.n_ctx_train: int = self.c.llama_model_n_ctx_train(self.handle)

    def meta(self, key: str) -> str | None:
        buffer = C.create_string_buffer(256)
        found = self.c.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if found >= 0 else None

    def chat_template(self) -> str | None:
        text: bytes | None = self.c.llama_model_chat_template(self.handle, None)
        return None if text is None else text.decode("utf-8", "replace")

    @property
    def trimmable(self) -> bool:
        """True if a sequence's state can be cut back to an earlier token: not with recurrent layers or an encoder."""
        return not any(
            ask(self.handle)
            for ask in (
                self.c.llama_model_is_recurrent,
                self.c.llama_model_is_hybrid,
                self.c.llama_model_has_encoder,
            )
        )

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache keeps for one token, over all layers."""
        heads = self.c.llama_model_n_head(self.handle)
        default = self.c.llama_model_n_embd(self.handle) // max(1, heads)
        architecture = self.meta("general.architecture")
        key, value = (int(self.meta(f"{architecture}.attention.{name}_length") or default) for name in ("key", "value"))
        layers: int = self.c.llama_model_n_layer(self.handle)
        kv_heads: int = self.c.llama_model_n_head_kv(self.handle)
        return layers * kv_heads * (key + value)

    def adapter(self, path: Path) -> int:
        """Loads a LoRA adapter and returns its handle; the adapter is freed with the model."""
        check_gguf(path)
        handle: int | None = self.c.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not handle:
            raise StartupError(f"{path} is no adapter for this model ({self._library.why()})")
        return handle


class Context:
    """A model's KV slots, and the one batch that is filled and decoded again and again.

    `tokens`, `positions`, `slots` and `wanted` are the batch's own memory: filling it is slice assignment.
    """

    def __init__(self, model: Model, *, slots: int, n_ctx: int, batch_tokens: int, threads: int) -> None:
        self._model = model
        self.c = model.c
        self._n_vocab = model.n_vocab
        params = self.c.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx, slots
        params.n_batch = params.n_ubatch = batch_tokens
        params.n_threads = params.n_threads_batch = threads
        # Flash attention with a Q8_0 cache makes outputs independent of chunk size and of batch neighbours; with an F16
        # cache they were not.
        kv_type = KV_TYPES[model.kv_type][0]
        params.flash_attn_type, params.type_k, params.type_v = 1, kv_type, kv_type
        params.offload_kqv = model.gpu_layers > 0
        params.kv_unified, params.no_perf = False, True
        self.handle: int | None = self.c.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise StartupError(
                f"llama.cpp can't make a context of {n_ctx} tokens ({library().why()}); use fewer or smaller slots"
            )
        self._memory = self.c.llama_get_memory(self.handle)
        self.tokens, self.positions, self.slots = (np.zeros(batch_tokens, np.int32) for _ in range(3))
        self.wanted = np.zeros(batch_tokens, np.int8)
        self._ones = np.ones(batch_tokens, np.int32)
        self._slot_of = self.slots.ctypes.data + 4 * np.arange(batch_tokens, dtype=np.uint64)
        self._batch: Any = Batch()
        self._batch.token, self._batch.pos = self.tokens.ctypes.data, self.positions.ctypes.data
        self._batch.n_seq_id, self._batch.seq_id = self._ones.ctypes.data, self._slot_of.ctypes.data
        self._batch.logits = self.wanted.ctypes.data

    def decode(self, count: int) -> int:
        """Computes the first `count` tokens of the batch; returns 0 on success."""
        self._batch.n_tokens = count
        code: int = self.c.llama_decode(self.handle, self._batch)
        return code

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Returns the logits of the tokens marked in `wanted`, in batch order. A view: valid until the next decode."""
        address = self.c.llama_get_logits(self.handle)
        return np.ctypeslib.as_array(address, (rows, self._n_vocab))

    def trim(self, slot: int, length: int) -> bool:
        done: bool = self.c.llama_memory_seq_rm(self._memory, slot, length, -1)
        return done

    def copy(self, source: int, slot: int) -> None:
        """Copies a whole slot: llama.cpp aborts the process on a part of one. The data moves at the next decode."""
        self.c.llama_memory_seq_cp(self._memory, source, slot, -1, -1)

    def save(self, slot: int) -> NDArray[np.uint8]:
        state = np.empty(self.c.llama_state_seq_get_size(self.handle, slot), np.uint8)
        written: int = self.c.llama_state_seq_get_data(self.handle, state.ctypes.data, state.size, slot)
        return state[:written]

    def load(self, slot: int, state: NDArray[np.uint8]) -> bool:
        read: int = self.c.llama_state_seq_set_data(self.handle, state.ctypes.data, state.size, slot)
        return read > 0

    def apply(self, adapters: Sequence[int]) -> None:
        count = len(adapters)
        handles, scales = (ptr * count)(*adapters), (f32 * count)(*[1.0] * count)
        if self.c.llama_set_adapters_lora(self.handle, handles, count, scales):
            raise StartupError(f"the LoRA adapters can't be applied ({library().why()})")

    def close(self) -> None:
        if self.handle:
            self.c.llama_free(self.handle)
            self.handle = None
