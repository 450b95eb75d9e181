"""Versions that are known to break something, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from tinkerlab.diagnosis.findings import Severity

# What the versions of a Tinker environment are; the rest of a `pip freeze` is not looked at.
PACKAGES = (
    "tinker",
    "tinker-cookbook",
    "transformers",
    "pydantic",
    "torch",
    "protobuf",
    "huggingface-hub",
    "tml-renderers",
    "tokenizers",
    "numpy",
)
REQUIRED = ("tinker", "tinker-cookbook")
PRE_RELEASES_WARNED = ("tinker", "tinker-cookbook", "transformers", "pydantic", "protobuf", "torch")


@dataclass(frozen=True)
class KnownBad:
    """A version range that breaks something.

    Attributes:
        bad: version specifier (PEP 440), pre-releases included.
        when: further packages that must be there in these versions; all, or the rule is silent.
    """

    package: str
    bad: str
    cause: str
    says: str
    fix: str
    source: str
    when: tuple[tuple[str, str], ...] = ()
    severity: Severity = "problem"


KNOWN_BAD = (
    KnownBad(
        "pydantic",
        ">=2.13.0a1,<=2.13.0rc99",
        "pydantic-beta",
        "this pydantic pre-release serializes long token lists so slowly that a step takes minutes",
        "pip install 'pydantic>=2.13.0' (a stable release: 2.13.0 and later are fast)",
        "tinker #27, #20",
    ),
    KnownBad(
        "transformers",
        "==5.3.0",
        "transformers-deepseek-tokenizer",
        "this transformers loads DeepSeek V2 and V3 tokenizers with the wrong class",
        "pip install transformers==5.5.4",
        "huggingface/transformers #44801",
    ),
    KnownBad(
        "transformers",
        "==5.4.*,!=5.3.0",
        "transformers-excluded",
        "tinker-cookbook excludes this transformers: special-token ids of some tokenizers shift",
        "pip install transformers==5.5.4",
        "requirements of tinker-cookbook 0.5.8 and 0.6.1; fw-ai/cookbook #450",
    ),
    KnownBad(
        "transformers",
        ">=5.5.0,<5.5.4",
        "transformers-excluded",
        "tinker-cookbook excludes this transformers",
        "pip install transformers==5.5.4",
        "requirements of tinker-cookbook 0.5.8 and 0.6.1",
    ),
    KnownBad(
        "transformers",
        "==5.6.*",
        "transformers-excluded",
        "tinker-cookbook excludes this transformers",
        "pip install transformers==5.5.4",
        "requirements of tinker-cookbook 0.6.1",
    ),
    KnownBad(
        "transformers",
        ">5.5.4",
        "transformers-too-new",
        "tinker-cookbook 0.5 does not permit this transformers",
        "pip install transformers==5.5.4",
        "requirements of tinker-cookbook 0.5.8",
        when=(("tinker-cookbook", "<0.6"),),
    ),
    KnownBad(
        "transformers",
        "<4.57.6",
        "transformers-too-old",
        "tinker-cookbook needs a newer transformers",
        "pip install transformers==5.5.4",
        "requirements of tinker-cookbook 0.5.8 and 0.6.1",
        when=(("tinker-cookbook", ">=0.5"),),
    ),
    KnownBad(
        "tinker-cookbook",
        "<0.5.8",
        "cookbook-downgraded",
        "an old tinker-cookbook: pip takes the newest whose requirements it can meet, and says"
        " nothing about it, so names and defaults differ from what pages describe",
        "pip install 'tinker-cookbook==0.5.8' and read why it refuses (`pip check`)",
        "observed with pip on Python 3.11: 0.6.1 needs tml-renderers>=0.4.1",
        when=(("tinker", ">=0.34"),),
    ),
    KnownBad(
        "tml-renderers",
        "<0.4.1",
        "renderers-too-old",
        "tinker-cookbook 0.6 needs tml-renderers 0.4.1 or newer",
        "pip install 'tml-renderers>=0.4.1', or stay with tinker-cookbook==0.5.8",
        "requirements of tinker-cookbook 0.6.1",
        when=(("tinker-cookbook", ">=0.6"),),
    ),
    KnownBad(
        "tinker",
        "<0.34",
        "tinker-too-old",
        "this SDK is older than tinker-cookbook needs; the service may refuse it as well",
        "pip install --upgrade tinker",
        "requirements of tinker-cookbook 0.5.8",
        when=(("tinker-cookbook", ">=0.5.8"),),
    ),
    KnownBad(
        "torch",
        "<2.10",
        "torch-too-old",
        "tinker-cookbook needs torch 2.10 or newer",
        "pip install 'torch>=2.10'",
        "requirements of tinker-cookbook 0.5.8",
        when=(("tinker-cookbook", ">=0.5.8"),),
    ),
    KnownBad(
        "huggingface-hub",
        "<1.5.0",
        "hub-too-old",
        "transformers 5.5 needs huggingface-hub 1.5 or newer",
        "pip install 'huggingface-hub>=1.5'",
        "requirements of transformers 5.5.4",
        when=(("transformers", ">=5.5,<5.6"),),
    ),
)
