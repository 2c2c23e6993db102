"""The bundled weights as a Hugging Face folder, for vLLM: dequantized, with the tokenizer rebuilt of the GGUF's own.

python benchmarks/vllm_model.py FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from headgate.wiring.common import bundled_model

CONTROL = 3
"""Type of a token that stands for no text."""
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def convert(folder: Path) -> Path:
    """Makes the folder, unless it is there."""
    if (folder / "tokenizer_config.json").is_file():
        return folder
    reader = GGUFReader(bundled_model())
    said = {name: field.contents() for name, field in reader.fields.items()}
    folder.mkdir(parents=True, exist_ok=True)
    _weights(reader, said, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32",
        "vocab_size": said["llama.vocab_size"], "hidden_size": said["llama.embedding_length"],
        "intermediate_size": said["llama.feed_forward_length"], "num_hidden_layers": said["llama.block_count"],
        "num_attention_heads": said["llama.attention.head_count"],
        "num_key_value_heads": said["llama.attention.head_count_kv"],
        "max_position_embeddings": said["llama.context_length"], "rope_theta": said["llama.rope.freq_base"],
        "rms_norm_eps": said["llama.attention.layer_norm_rms_epsilon"], "tie_word_embeddings": True,
        "bos_token_id": said["tokenizer.ggml.bos_token_id"], "eos_token_id": said["tokenizer.ggml.eos_token_id"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _tokenizer(said, folder)
    return folder


def _weights(reader: Any, said: dict[str, Any], path: Path) -> None:
    """Writes one file in the safetensors format: the length of a JSON header, the header, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, at = [], 0
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
        name = WHOLE.get(tensor.name)
        if name is None:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{LAYER[part]}.weight"
            if part in ("attn_q", "attn_k"):
                heads = said["llama.attention.head_count" if part == "attn_q" else "llama.attention.head_count_kv"]
                # llama.cpp interleaves what Hugging Face keeps in halves.
                pairs = data.reshape(heads, data.shape[0] // heads // 2, 2, *data.shape[1:])
                data = pairs.swapaxes(1, 2).reshape(data.shape)
        raw = np.ascontiguousarray(data).tobytes()
        header[name] = {"dtype": "F16", "shape": list(data.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.writelines(parts)


def _tokenizer(said: dict[str, Any], folder: Path) -> None:
    tokens, kinds = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    added = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == CONTROL
    ]  # fmt: skip
    made = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": said["tokenizer.ggml.merges"],
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(made))
    special = {
        name: tokens[said[f"tokenizer.ggml.{kind}_token_id"]]
        for name, kind in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"))
    }
    config = {
        **special, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": said["llama.context_length"],
        "chat_template": said["tokenizer.chat_template"], "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    print(convert(Path(sys.argv[1])))
