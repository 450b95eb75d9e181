"""The shared, frozen base model: loaded once, in float32, with every LoRA site patched in."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinkerlab.rehearsal.engine import lora, recompute
from tinkerlab.rehearsal.errors import UserError
from tinkerlab.rehearsal.models.registry import ModelSource


class BaseModel:
    """A causal language model that any number of adapters and threads share.

    Attributes:
        name: what users call it.
        directory: its Hugging Face folder.
        hf: the transformers model (eval mode, float32, no gradients on its own weights).
        config: its text configuration.
        context_length: most tokens in one sequence.
        vocab_size: rows of the embedding; a token id must be below it.
        eos_token_ids: tokens that end a completion.
        sites: every place where LoRA can sit.
    """

    supports_mixed_batches = True  # rows of one batch may use different adapters, experts too

    def __init__(self, name: str, directory: Path, hf: Any) -> None:
        self.name = name
        self.directory = directory
        self.hf = hf.eval().requires_grad_(False)
        self.config = hf.config.get_text_config()
        self.sites = lora.install(hf)
        recompute.install(hf)
        self.context_length = int(getattr(self.config, "max_position_embeddings", 0) or 2048)
        self.vocab_size = int(hf.get_input_embeddings().weight.shape[0])
        self.eos_token_ids = _eos_token_ids(hf)
        self._tokenizer: Any = None
        self._lock = threading.Lock()
        self._decoder: Any = getattr(hf, hf.base_model_prefix, None)
        self._check_head()

    @classmethod
    def load(cls, source: ModelSource) -> BaseModel:
        """Load the folder of ``source``.

        Raises:
            UserError: transformers can't load it, or LoRA can't be put into it.
        """
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # this program reports its own progress
        try:
            hf = AutoModelForCausalLM.from_pretrained(
                str(source.directory), dtype=torch.float32, local_files_only=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"can't load the model {source.name!r}: {error}") from error
        return cls(source.name, source.directory, hf)

    @property
    def tokenizer(self) -> Any:
        """The model's own tokenizer, loaded on the first use."""
        with self._lock:
            if self._tokenizer is None:
                from transformers import AutoTokenizer

                self._tokenizer = AutoTokenizer.from_pretrained(
                    str(self.directory), local_files_only=True
                )
            return self._tokenizer

    def hidden_states(self, tokens: Tensor, **kwargs: Any) -> Tensor:
        """Run the decoder: int64 ``[rows, columns]`` -> ``[rows, columns, hidden]``.

        Rows may be padded on the right with any token: attention is causal, so what stands
        behind a position never reaches it, and no mask is needed.
        """
        kwargs.setdefault("use_cache", False)
        return self._decoder(input_ids=tokens, **kwargs).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Unembed ``[..., hidden]`` into ``[..., vocabulary]``, as the model's head does."""
        logits = self.hf.get_output_embeddings()(hidden)
        scale = getattr(self.config, "logit_scale", None)  # Cohere
        if scale is not None:
            logits = logits * scale
        divisor = getattr(self.config, "logits_scaling", None)  # Granite
        if divisor is not None:
            logits = logits / divisor
        cap = getattr(self.config, "final_logit_softcapping", None)  # Gemma 2
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    @torch.no_grad()
    def _check_head(self) -> None:
        """Make sure that decoder + :meth:`logits` are the whole model.

        An architecture that does more between the two would train and sample wrongly without
        a word; four tokens at start show it.
        """
        tokens = torch.arange(1, 5).clamp(max=self.vocab_size - 1).unsqueeze(0)
        expected = self.hf(input_ids=tokens, use_cache=False).logits
        if self._decoder is not None:
            got = self.logits(self.hidden_states(tokens))
            if got.shape == expected.shape and torch.allclose(got, expected, 1e-4, 1e-4):
                return
        raise UserError(
            f"the model {self.name!r} ({type(self.hf).__name__}) has a head that the rehearsal"
            " doesn't know; use a Llama-, Qwen-, gpt-oss- or DeepSeek-like model"
        )


def _eos_token_ids(hf: Any) -> frozenset[int]:
    """The end-of-sequence tokens of the model's configs (one, several or none)."""
    found: set[int] = set()
    for config in (hf.config, getattr(hf, "generation_config", None)):
        eos = getattr(config, "eos_token_id", None)
        found.update(eos if isinstance(eos, (list, tuple)) else [] if eos is None else [eos])
    return frozenset(int(token) for token in found)
