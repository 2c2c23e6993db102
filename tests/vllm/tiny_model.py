"""A model that need not be downloaded: random weights, a vocabulary of words, a chat template, and an adapter.

python tests/vllm/tiny_model.py FOLDER, with the Python that has vLLM (and so torch, transformers and safetensors).
"""

import json
import sys
from importlib import import_module
from pathlib import Path

WORDS = [f"▁w{number}" for number in range(400)]
CHATML = (
    "{% for m in messages %}<s> {{ m['role'] }} : {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant : {% endif %}"
)


def make(folder: Path) -> None:
    torch, transformers, tokenizers = map(import_module, ("torch", "transformers", "tokenizers"))
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    adapter = folder / "poet"
    adapter.mkdir()
    wanted = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps({**wanted, "task_type": "CAUSAL_LM"}))
    tensors = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(8, 128, dtype=torch.bfloat16)
        tensors[f"{name}.lora_B.weight"] = torch.randn(128, 8, dtype=torch.bfloat16)
    import_module("safetensors.torch").save_file(tensors, adapter / "adapter_model.safetensors")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
