"""What every script shares: exit codes, ``--json``, messages on stderr, key redaction.

Exit codes: 0 fine, 1 a problem was found, 2 bad usage or bad input, 130 interrupted.
stdout carries the result (with ``--json`` exactly one JSON document); everything else,
progress included, goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tinkerlab.errors import CheckFailed, InputError

EXIT_OK = 0
EXIT_FOUND = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

# Tinker API keys start with "tml-", Hugging Face tokens with "hf_"; a JWT with "eyJ". The
# package tml-renderers is no key. Logs hold keys of other services too, and bearer tokens.
_SECRET = re.compile(
    r"\b(tml-(?!renderers\b)|hf_|eyJ)[A-Za-z0-9_\-.]{6,}"
    r"|\b(sk-|ghp_|github_pat_|Bearer )[A-Za-z0-9_\-.]{16,}"
)


def redact(text: str) -> str:
    """Blank every API key, hub token and JWT in ``text``, keeping its recognisable prefix."""
    return _SECRET.sub(lambda match: f"{match[1] or match[2]}***", text)


def say(message: str) -> None:
    """Print one progress or status line on stderr."""
    print(redact(message), file=sys.stderr, flush=True)


def emit_json(document: Any) -> None:
    """Print the one JSON document of a ``--json`` run on stdout.

    Raises:
        ValueError: a NaN or an infinity, which JSON has no word for.
    """
    print(redact(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)), flush=True)


def run(main: Callable[[Sequence[str] | None], int]) -> NoReturn:
    """Run a script's ``main`` and turn its outcome into an exit code.

    ``InputError`` and ``CheckFailed`` become one line on stderr; any other exception keeps
    its traceback, because it is a defect that a report should show.
    """
    try:
        code = main(None)
        sys.stdout.flush()
    except InputError as error:
        say(f"error: {error}")
        code = EXIT_BAD_INPUT
    except CheckFailed as error:
        say(f"failed: {error}")
        code = EXIT_FOUND
    except KeyboardInterrupt:
        say("interrupted")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout (head, a closed pager) left; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_OK
    raise SystemExit(code)
