"""Byte-level BPE tokenizers in the Hugging Face form, built from their parts."""

from __future__ import annotations

from pathlib import Path

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

# The markup that Qwen, SmolLM and many others share: one block per message.
CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_symbols() -> list[str]:
    """Return the 256 printable characters that stand for the bytes 0-255 in byte-level BPE.

    GPT-2's scheme (Radford et al. 2019): a byte that is a visible Latin-1 character stands for
    itself; the others take the code points from 256 on, in order.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    symbols, spare = [], 256
    for byte in range(256):
        if byte in visible:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(spare))
            spare += 1
    return symbols


def save_byte_bpe(
    directory: Path,
    *,
    vocabulary: list[str],
    merges: list[tuple[str, str]],
    special_tokens: list[str],
    split_digits: bool,
    chat_template: str,
    context_length: int,
    bos_token: str | None,
    eos_token: str,
    pad_token: str,
    unk_token: str | None = None,
) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template into ``directory``.

    Args:
        vocabulary: token strings in byte symbols; the position is the id.
        merges: pairs in order of priority.
        special_tokens: members of ``vocabulary`` that text is searched for before anything else.
        split_digits: make every decimal digit a word of its own before the byte-level split.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges)
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if split_digits
        else byte_level
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special_tokens]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=bos_token,
        eos_token=eos_token,
        pad_token=pad_token,
        unk_token=unk_token,
        chat_template=chat_template,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(str(directory))
