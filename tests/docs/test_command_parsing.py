"""The checker of commands that can't be run is itself right."""

from __future__ import annotations

import pytest
from command_parsing import NotParsed, check_shell

GOOD = [
    "python scripts/eval_offline.py --run runs/rl --output results/ | head",
    "FLAG=1 python ${CLAUDE_PLUGIN_ROOT}/scripts/sl_trainer.py --config a.yaml seed=3 > log.txt",
    "python scripts/rehearse.py run --store s -- \\\n    python scripts/sl_trainer.py a=1 --dry-run",
    "python scripts/export_model.py check-adapter exported/adapter --engine vllm",
    "python train.py",
    "tinker --format json checkpoint list",
    "tinker checkpoint --help",
    "make -C ${CLAUDE_PLUGIN_ROOT} install VENV=x && source x/bin/activate",
    "python -m tinker_cookbook.recipes.chat_sl.train model_name=Qwen/Qwen3-8B",
    "# nothing but words",
]
BAD = [
    ("python scripts/no_such.py", "there is no scripts/no_such.py"),
    ("python scripts/eval_offline.py --run runs/rl", "--output"),
    ("python scripts/eval_offline.py --output x --samples many", "invalid int value"),
    ("python scripts/eval_offline.py --output x --no-such-flag", "--no-such-flag"),
    ("python scripts/rehearse.py run -- python scripts/sl_trainer.py --nothing", "--nothing"),
    ("python scripts/export_model.py check-adapter x --engine none", "invalid choice"),
    ("tinker checkpoint list --format json", "--format"),
    ("tinker checkpoints list", "checkpoints"),
    ("make nothing", "no nothing"),
    ("python -m tinker_cookbook.recipes.no_such", "there is no module"),
    ("python -m tinker_cookbook.recipes.chat_sl.train no_such_key=1", "no_such_key"),
    ("vllm serve model", "nothing here knows the options of vllm"),
    ("ls && python scripts/no_such.py", "no_such.py"),
]


@pytest.mark.parametrize("text", GOOD)
def test_right_commands_pass(text: str) -> None:
    check_shell(text)


@pytest.mark.parametrize(("text", "complaint"), BAD)
def test_wrong_commands_are_named(text: str, complaint: str) -> None:
    with pytest.raises(NotParsed, match=complaint.replace(".", r"\.")):
        check_shell(text)
