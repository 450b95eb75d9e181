"""A tokenizer that several threads may use.

The cookbook renders every item's prompt in a thread of its own (``MessageEnv``), all with one
tokenizer. The fast tokenizers of transformers 5.5.4 set an option of theirs on every call and
refuse when another thread is in one: ``RuntimeError: Already borrowed``. The cookbook's runner
counts such an item as answered wrongly; here up to all of 16 items were lost to it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

METHODS = ("encode", "decode", "apply_chat_template", "convert_tokens_to_ids")


def one_at_a_time(tokenizer: Any) -> Any:
    """Let one thread at a time into ``tokenizer``; the same object, for convenience."""
    lock = threading.RLock()

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return method(*args, **kwargs)

        return call

    for name in METHODS:
        if hasattr(tokenizer, name):
            setattr(tokenizer, name, guarded(getattr(tokenizer, name)))
    return tokenizer
