"""Saves a tokenizer of a few hundred words, for load tools that want one and can't download any."""


def save_tokenizer(folder: str) -> None:
    import tokenizers
    import transformers

    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"▁w{number}" for number in range(400))]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **marks).save_pretrained(folder)
