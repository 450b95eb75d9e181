"""Every rule of the results contract fires, and a good folder breaks none."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import results_factory

from tinkerlab.errors import InputError
from tinkerlab.evaluation import results
from tinkerlab.evaluation.checking import check_results

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_results.py"


@pytest.fixture(params=["sft", "rl"])
def folder(request, tmp_path):
    return results_factory.write_folder(tmp_path, request.param)


@pytest.fixture
def sft(tmp_path):
    return results_factory.write_folder(tmp_path, "sft")


def rules(folder):
    return {finding.rule for finding in check_results(folder).findings}


def test_a_good_folder_breaks_no_rule(folder):
    verdict = check_results(folder)
    assert verdict.ok, verdict.findings
    assert verdict.notes == []


def test_a_summary_from_items_without_token_counts_holds_too(tmp_path):
    base, trained = results_factory.sft_records()
    for record in base + trained:
        del record["num_tokens"]
    assert check_results(results_factory.write_folder(tmp_path, "sft", (base, trained))).ok


def swap(records):
    records[3], records[4] = records[4], records[3]


RECORD_FAULTS = {
    "item-missing": lambda records: records.pop(5),
    "item-order": swap,
    "item-duplicated": lambda records: records.append(dict(records[0])),
    "no-items": lambda records: records.clear(),
    "item-field": lambda records: records[2].pop("completion"),
}


@pytest.mark.parametrize("file", [results.BASE_FILE, results.TRAINED_FILE])
@pytest.mark.parametrize("rule", sorted(RECORD_FAULTS))
def test_a_fault_in_either_record_file_is_found(folder, file, rule):
    results_factory.edit_jsonl(folder / file, RECORD_FAULTS[rule])
    assert rule in rules(folder)
    assert not check_results(folder).ok


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("item-mismatch", lambda r: r[1].update(prompt="an easier question")),
        ("item-mismatch", lambda r: r[1].update(completion="ok")),
        ("item-mismatch", lambda r: r[1].update(num_tokens=r[1]["num_tokens"] + 1)),
        ("not-finite", lambda r: r[1].update(nll=math.nan)),
        ("not-finite", lambda r: r[1].update(nll=math.inf)),
        ("item-field", lambda r: r[1].update(nll="0.5")),
        ("item-field", lambda r: r[1].update(nll=True)),
        ("item-field", lambda r: r[1].update(index="1")),
        ("item-range", lambda r: r[1].update(nll=-0.5)),
        ("item-range", lambda r: r[1].update(num_tokens=0)),
        ("item-range", lambda r: r[1].update(num_tokens="9")),
        ("summary-number", lambda r: r[1].update(nll=0.0)),
    ],
)
def test_a_fault_in_an_sft_record_is_found(sft, rule, change):
    results_factory.edit_jsonl(sft / results.TRAINED_FILE, change)
    assert rule in rules(sft)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("item-mismatch", lambda r: r[1].update(ground_truth="42")),
        ("item-range", lambda r: r[1].update(correct=3)),
        ("item-field", lambda r: r[1].update(correct="yes")),
        ("item-field", lambda r: r[1].pop("extracted_answer")),
        ("summary-number", lambda r: r[1].update(correct=not r[1]["correct"])),
    ],
)
def test_a_fault_in_an_rl_record_is_found(tmp_path, rule, change):
    folder = results_factory.write_folder(tmp_path, "rl")
    results_factory.edit_jsonl(folder / results.TRAINED_FILE, change)
    assert rule in rules(folder)


def test_an_edited_item_in_both_files_breaks_the_items_hash(sft):
    for file in (results.BASE_FILE, results.TRAINED_FILE):
        results_factory.edit_jsonl(sft / file, lambda r: r[1].update(completion="easier"))
    assert rules(sft) == {"items-hash"}


@pytest.mark.parametrize("file", [results.BASE_FILE, results.TRAINED_FILE, results.SUMMARY_FILE])
def test_a_missing_file_is_found(folder, file):
    (folder / file).unlink()
    assert rules(folder) & {"file-missing", "summary-missing"}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("summary-number", lambda s: s.update(trained_nll=s["trained_nll"] - 0.01)),
        ("summary-number", lambda s: s["scores"]["difference"].update(high=-1.0)),
        ("summary-number", lambda s: s["scores"]["difference"].update(includes_zero=True)),
        ("summary-number", lambda s: s["scores"].update(verdict="hugely better")),
        ("summary-number", lambda s: s["scores"].pop("per_token")),
        ("summary-number", lambda s: s.update(seed=s["seed"] + 1)),
        ("summary-field", lambda s: s.update(baseline_nll=None)),
        ("summary-field", lambda s: s.pop("wandb_url")),
        ("summary-field", lambda s: s.update(versions=[])),
        ("summary-field", lambda s: s.update(tinker_run_id="")),
        ("summary-field", lambda s: s["dataset"].pop("sha256")),
        ("summary-field", lambda s: s["models"].pop("base")),
        ("task-type", lambda s: s.update(task_type="dpo")),
        ("task-type", lambda s: s.update(task_type=["sft"])),
        ("run-id", lambda s: s.update(tinker_run_id="another-run")),
        ("run-id", lambda s: s["models"].update(trained="/some/folder")),
        ("summary-field", lambda s: s.update(seed=-1)),
        ("items-hash", lambda s: s["dataset"].update(items_sha256="0" * 64)),
        ("items-hash", lambda s: s["dataset"].update(items=3)),
        ("dataset-hash", lambda s: s["dataset"].update(sha256="0" * 64)),
    ],
)
def test_a_fault_in_the_summary_is_found(sft, rule, change):
    results_factory.edit_json(sft / results.SUMMARY_FILE, change)
    assert rule in rules(sft)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_an_unreadable_summary_is_found(sft, text):
    (sft / results.SUMMARY_FILE).write_text(text)
    assert rules(sft) == {"summary-not-json"}


def test_a_line_that_is_no_json_is_found_by_its_number(sft):
    path = sft / results.BASE_FILE
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:20]
    path.write_text("\n".join(lines) + "\n")
    found = [f for f in check_results(sft).findings if f.rule == "line-not-json"]
    assert [f.where for f in found] == ["base_model.jsonl:5"]


def test_an_edited_evaluation_file_is_found_and_an_absent_one_noted(sft):
    data_file = sft.parent / "eval.jsonl"
    data_file.write_text(data_file.read_text() + "{}\n")
    assert rules(sft) == {"dataset-hash"}
    data_file.unlink()
    verdict = check_results(sft)
    assert verdict.ok
    assert "not compared" in verdict.notes[0]


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "checkpoints.jsonl"])
def test_missing_or_empty_logs_are_found(sft, name):
    path = sft / "logs" / "run-1" / name
    path.write_text("")
    assert rules(sft) == {"logs-missing"}
    path.unlink()
    assert rules(sft) == {"logs-missing"}
    shutil.rmtree(sft / "logs")
    assert rules(sft) == {"logs-missing"}


def test_an_example_about_an_unscored_item_is_found(tmp_path):
    example = {"index": 0, "prompt": "another", "base": "a", "trained": "b", "reference": "c"}
    folder = results_factory.write_folder(tmp_path, examples=[example])
    assert rules(folder) == {"examples"}


def test_another_scoring_code_is_noted_not_failed(sft):
    results_factory.edit_json(
        sft / results.SUMMARY_FILE, lambda s: s.update(scoring_code_sha256="0" * 64)
    )
    verdict = check_results(sft)
    assert verdict.ok
    assert "another version" in verdict.notes[0]


def test_a_checkpoint_that_the_logs_do_not_know_is_noted(sft):
    path = sft / "logs" / "run-1" / "checkpoints.jsonl"
    results_factory.edit_jsonl(path, lambda r: r[0].update(sampler_path="tinker://a/b/c"))
    verdict = check_results(sft)
    assert verdict.ok
    assert "lists the checkpoint" in verdict.notes[0]


def test_a_missing_folder_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        check_results(tmp_path / "nowhere")


def test_an_empty_folder_does_not_pass(tmp_path):
    assert not check_results(tmp_path).ok


def run_script(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True
    )


def test_the_script_answers_with_exit_codes_and_one_json_document(sft):
    good = run_script(sft)
    assert good.returncode == 0
    assert good.stdout.startswith("OK:")
    results_factory.edit_jsonl(sft / results.TRAINED_FILE, lambda r: r.pop(5))
    bad = run_script(sft)
    assert bad.returncode == 1
    assert "[item-missing] trained_model.jsonl" in bad.stdout
    as_json = run_script(sft, "--json")
    assert as_json.returncode == 1
    document = json.loads(as_json.stdout)
    assert document["ok"] is False
    assert "item-missing" in {finding["rule"] for finding in document["findings"]}
    missing = run_script(sft / "nowhere")
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1


def test_the_code_that_decides_a_score_is_hashed_and_no_other(tmp_path, monkeypatch) -> None:
    """Editing a picture must not make an evaluation start again; editing a grader must."""
    import shutil

    from repository import ROOT

    from tinkerlab.evaluation import hashing

    library = tmp_path / "tinkerlab"
    for folder in ("data", "evaluation", "grading", "tasks"):
        shutil.copytree(ROOT / "scripts" / "tinkerlab" / folder, library / folder)
    monkeypatch.setattr(hashing, "__file__", str(library / "evaluation" / "hashing.py"))
    before = hashing.code_sha256()
    for harmless in ("side_by_side_page.py", "selection/plot.py", "benchmarks/running.py"):
        (library / "evaluation" / harmless).write_text("# other\n")
        assert hashing.code_sha256() == before, harmless
    suite = hashing.code_sha256("cookbook:gsm8k")
    bridge = library / "evaluation" / "inspect" / "bridge.py"
    bridge.write_text("# other\n")
    assert hashing.code_sha256("cookbook:gsm8k") == suite, "the bridge decides no such score"
    (library / "evaluation" / "benchmarks" / "running.py").write_text("# a third\n")
    assert hashing.code_sha256("cookbook:gsm8k") != suite
    bridged = hashing.code_sha256("inspect:gsm8k")
    bridge.write_text("# a third\n")
    assert hashing.code_sha256("inspect:gsm8k") != bridged
    for decisive in ("evaluation/nll.py", "grading/rules.py", "tasks/rows.py", "data/datums.py"):
        file = library / decisive
        original = file.read_text()
        file.write_text(original + "\n# other\n")
        assert hashing.code_sha256() != before, decisive
        file.write_text(original)
    assert hashing.code_sha256() == before
