"""The task that an agent is given: a recipe, and what it must know about where it works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinkerlab.agents.clis import PLUGIN
from tinkerlab.errors import InputError

RECIPES = PLUGIN / "templates" / "recipes"
LONGEST = 1_000_000  # bytes

HEAD = """\
Do a whole fine-tune with the Tinker API in this folder, from data to checked results, following
the task at the end. You work alone: nobody answers questions, so decide and go on.

- {skill}
- "scripts/" and "templates/" in the task mean {plugin}/scripts and {plugin}/templates. `python`
  has every package that they need. Write nothing there; all that you make stays in this folder.
- {model}
- {service}
- Be done within {minutes:.0f} minutes; what runs then is stopped. Choose steps and samples to fit.
- At the end `python {plugin}/scripts/check_results.py results` must say OK: base and trained model
  on the same held-out items, in results/ of this folder. Results that show no gain are fine, if
  true. Never edit a number by hand.
- Never print, write or commit a key or any other secret.

The task:

"""


@dataclass(frozen=True)
class Task:
    """What the agent is to do.

    Attributes:
        model: the base model to train; None for the recipe's own.
        hosted: whether a key for the service is passed.
    """

    text: str
    model: str | None
    hosted: bool
    minutes: float

    def prompt(self, agent: str) -> str:
        """The whole text for one of ``clis.AGENTS``."""
        skill = (
            "Load the skill /tinker:research first; when something fails, /tinker:debug."
            if agent == "claude"
            else f"Read {PLUGIN}/skills/research/SKILL.md first; when something fails,"
            f" {PLUGIN}/skills/debug/SKILL.md. ${{CLAUDE_PLUGIN_ROOT}} in them is {PLUGIN}."
        )
        model = (
            f"Train {self.model}: set base_model to it wherever the task has another."
            if self.model
            else "Train the base model that the task names."
        )
        service = (
            "TINKER_API_KEY is set: train on the Tinker service, and keep it cheap."
            if self.hosted
            else "There is no TINKER_API_KEY: do everything on a rehearsal, with"
            f" `python {PLUGIN}/scripts/rehearse.py run --store store -- COMMAND`; a hosted"
            " model's name needs --alias there."
        )
        head = HEAD.format(
            skill=skill, model=model, service=service, plugin=PLUGIN, minutes=self.minutes
        )
        return head + self.text.replace("${CLAUDE_PLUGIN_ROOT}", str(PLUGIN))


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.md"))


def recipe_file(name: str) -> Path:
    """The guide of a recipe.

    Raises:
        InputError: there is none of that name.
    """
    if name not in recipe_names():
        raise InputError(f"--recipe {name}: choose one of {', '.join(recipe_names())}")
    return RECIPES / f"{name}.md"


def read(file: Path) -> str:
    """The text of a task.

    Raises:
        InputError: it can't be read, is empty, or too long to be a task.
    """
    try:
        content = file.expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"--prompt {file}: {error.strerror}") from None
    if len(content) > LONGEST:
        raise InputError(f"--prompt {file}: over {LONGEST:,} bytes; name the file in a short one")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"--prompt {file}: not UTF-8 text") from None
    if not text.strip():
        raise InputError(f"--prompt {file}: it is empty")
    return text
