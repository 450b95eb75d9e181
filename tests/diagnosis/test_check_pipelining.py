"""check_pipelining.py: its rules, what it must leave alone, its input and its output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diagnosis.lint_faults import CASES, FAULTS, HEAD, NEIGHBOURS
from diagnosis.lint_styles import STYLES

import check_pipelining
from tinkerlab.diagnosis.lint.check import RULES, check
from tinkerlab.diagnosis.lint.program import follow
from tinkerlab.diagnosis.lint.sources import read_source
from tinkerlab.errors import InputError

# A second finding that a fault may bring with it: old forms are also deprecated.
ALSO = {"deprecated-async", "deprecated-call"}
REPORTS = CASES / "reports"


def causes(path: Path) -> list[str]:
    return [finding.cause for finding in check([path]).findings]


def script(tmp_path: Path, code: str, name: str = "train.py") -> Path:
    path = tmp_path / name
    path.write_text(code)
    return path


@pytest.mark.parametrize(("cause", "code"), FAULTS)
def test_each_way_of_writing_a_fault_is_named_and_nothing_else(tmp_path, cause, code):
    said = causes(script(tmp_path, HEAD + code))
    assert cause in said
    assert set(said) <= {cause} | ALSO


@pytest.mark.parametrize("code", NEIGHBOURS)
def test_the_same_written_rightly_is_left_alone(tmp_path, code):
    assert causes(script(tmp_path, HEAD + code)) == []


@pytest.mark.parametrize("style", STYLES)
def test_healthy_scripts_of_every_style_are_left_alone(tmp_path, style):
    assert set(causes(script(tmp_path, STYLES[style]))) <= ALSO


def test_there_are_scripts_to_judge():
    assert len(FAULTS) >= 130
    assert len(NEIGHBOURS) >= 45


def test_every_rule_fires_on_one_of_these_scripts(tmp_path):
    silent = {rule.__name__ for rule in RULES}
    for _, code in FAULTS:
        source = read_source(script(tmp_path, HEAD + code))
        program = follow(source.path, source.tree, source.lines)
        silent -= {rule.__name__ for rule in RULES if any(True for _ in rule(program))}
    assert silent == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("coroutine_result", {"coroutine-result"}),
        ("loss_attribute", {"loss-attribute", "wait-before-submit"}),
        ("sequential_samples", {"sequential-samples"}),
        ("stale_sampler", {"stale-sampler"}),
        ("tensor_in_loss_config", {"tensor-in-loss-config"}),
    ],
)
def test_scripts_from_public_reports(tmp_path, name, expected):
    code = (REPORTS / f"{name}.txt").read_text()
    assert expected <= set(causes(script(tmp_path, code)))


def test_the_rewrite_uses_the_scripts_own_names(tmp_path):
    code = """
def go(my_trainer, rows, adam_settings):
    for row in rows:
        my_trainer.forward_backward(row, "cross_entropy").result()
        my_trainer.optim_step(adam_settings).result()
"""
    (finding,) = check([script(tmp_path, code)]).findings
    assert "my_trainer.forward_backward(row, 'cross_entropy')" in finding.fix
    assert "my_trainer.optim_step(adam_settings)" in finding.fix
    assert finding.where.endswith("train.py:4")
    assert finding.evidence[0] == 'my_trainer.forward_backward(row, "cross_entropy").result()'


WAITS = """
import tinker
def train(tc: tinker.TrainingClient, batch, adam):
    tc.forward_backward(batch, "cross_entropy").result(){comment}
    tc.optim_step(adam).result()
"""


@pytest.mark.parametrize(
    ("comment", "silenced"),
    [
        ("  # tinker: ignore[wait-before-submit]", True),
        ("  # tinker: ignore", True),
        ("  # tinker: ignore[stale-sampler]", False),
        ("  # tinker: ignore[stale-sampler, wait-before-submit]", True),
    ],
)
def test_a_comment_silences_a_finding(tmp_path, comment, silenced):
    diagnosis = check([script(tmp_path, WAITS.format(comment=comment))])
    assert (not diagnosis.findings) == silenced
    assert any("silenced" in note for note in diagnosis.notes) == silenced


def test_a_notebook_is_read_cell_by_cell(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# not code\n"]},
        {"cell_type": "code", "source": ["%pip install tinker\n", "import tinker\n"]},
        {
            "cell_type": "code",
            "source": [
                "tc = tinker.ServiceClient().create_lora_training_client(base_model='m').result()\n",
                "out = await tc.forward_backward(DATA, 'cross_entropy')\n",
                "await tc.optim_step(ADAM)\n",
            ],
        },
    ]
    path = script(tmp_path, json.dumps({"cells": cells, "nbformat": 4}), "train.ipynb")
    (finding,) = check([path]).findings
    assert finding.cause == "wait-before-submit"
    assert finding.where.endswith("train.ipynb cell 3:2")


def test_a_folder_is_searched_and_the_environment_in_it_left_out(tmp_path):
    script(tmp_path, WAITS.format(comment=""))
    (tmp_path / ".venv").mkdir()
    script(tmp_path / ".venv", WAITS.format(comment=""), "library.py")
    diagnosis = check([tmp_path])
    assert diagnosis.checked["files"] == 1
    assert len(diagnosis.findings) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (b"\x7fELF\0\0\0", "binary"),
        (b"\xff\xfe\xfa", "text"),
        (b"def train(:\n    pass\n", "train.py:1"),
        (b"x = 1\nfor batch in", "train.py:2"),
        (b"(" * 3000, "does not parse"),
        (b"x = " + b"1 + " * 700 + b"1\n", "deep"),
    ],
)
def test_what_is_no_script_is_one_line(tmp_path, content, said):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        check_pipelining.main([str(path)])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_another_kind_is_one_line(tmp_path):
    # JSON lines parse as Python, and would be found healthy.
    path = script(tmp_path, '{"messages": []}\n', "data.jsonl")
    with pytest.raises(InputError, match="neither a Python script"):
        check_pipelining.main([str(path)])


@pytest.mark.parametrize("name", ["missing.py", "empty_folder"])
def test_a_path_without_scripts_is_one_line(tmp_path, name):
    (tmp_path / "empty_folder").mkdir()
    with pytest.raises(InputError, match=name):
        check_pipelining.main([str(tmp_path / name)])


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', '{"cells": []}'])
def test_a_broken_notebook_is_one_line(tmp_path, text):
    with pytest.raises(InputError, match="notebook"):
        check_pipelining.main([str(script(tmp_path, text, "train.ipynb"))])


def test_json_holds_the_verdict_and_the_findings(tmp_path, capsys):
    path = script(tmp_path, WAITS.format(comment=""))
    assert check_pipelining.main([str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["findings"][0]["cause"] == "wait-before-submit"
    assert document["checked"]["calls_of_the_SDK"] == 2


def test_warnings_alone_leave_the_exit_code_at_zero(tmp_path, capsys):
    code = HEAD + "async def f(tc: tinker.TrainingClient):\n    await tc.save_state_async('x')\n"
    assert check_pipelining.main([str(script(tmp_path, code))]) == 0
    assert capsys.readouterr().out.startswith("WARNING: ")


def test_a_file_without_the_sdk_says_so(tmp_path, capsys):
    assert check_pipelining.main([str(script(tmp_path, "print(1)\n"))]) == 0
    assert "no call of the Tinker SDK" in capsys.readouterr().out


def test_a_function_that_calls_itself_comes_to_an_end(tmp_path):
    code = """
import tinker
def walk(tc: tinker.TrainingClient, tree):
    for part in tree:
        walk(tc, part)
        other(tc, part)
def other(tc, tree):
    for part in tree:
        walk(tc, part)
        tc.forward_backward(part, "cross_entropy")
"""
    assert causes(script(tmp_path, code)) == []
