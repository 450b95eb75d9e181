"""The report: complete, self-contained, and nothing in it runs."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import results_factory

from tinkerlab.errors import InputError
from tinkerlab.evaluation import results
from tinkerlab.report import collect, page

SCRIPT = Path(__file__).parents[2] / "scripts" / "report.py"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</pre>"


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text outside of style."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def example(record: dict, **changes: str) -> dict:
    return {
        "index": record["index"],
        "prompt": record["prompt"],
        "reference": record["completion"],
        "base": "an answer",
        "trained": "a better answer",
        "base_stop": "length",
        "trained_stop": "stop",
        **changes,
    }


def make(tmp_path: Path, **kwargs) -> Path:
    base, trained = kwargs.pop("records", None) or results_factory.sft_records()
    examples = [example(record) for record in base[:5]]
    return results_factory.write_folder(
        tmp_path, "sft", (base, trained), examples=examples, **kwargs
    )


def html_of(folder: Path, export: Path | None = None) -> str:
    return page.render(collect.collect(folder, export))


def test_the_page_shows_the_numbers_the_examples_and_the_provenance(tmp_path):
    folder = make(tmp_path)
    summary = json.loads((folder / results.SUMMARY_FILE).read_text())
    text = Elements(html_of(folder)).text
    for wanted in (
        f"{summary['baseline_nll']:.4g}",
        f"{summary['trained_nll']:.4g}",
        summary["scores"]["verdict"],
        summary["dataset"]["sha256"],
        summary["models"]["trained"],
        "results check passed",
        "a better answer",
        "cut at the token limit",
        "learning_rate",
        f"tinker://{results_factory.RUN}/weights/final",
    ):
        assert wanted in text, wanted


def test_the_page_has_three_pictures_that_follow_the_theme(tmp_path):
    html = html_of(make(tmp_path))
    pictures = [attrs for tag, attrs in Elements(html).tags if tag == "svg"]
    assert len(pictures) == 3
    assert all(attrs["aria-label"] for attrs in pictures)
    assert "var(--held-out)" in html
    assert not re.search(r"#0[0-9]0[0-9]0[0-9]", html), "a stand-in colour was left in"
    ids = [attrs["id"] for _, attrs in Elements(html).tags if "id" in attrs]
    assert len(ids) == len(set(ids)), "two pictures share an id"


def test_every_item_is_a_bar(tmp_path):
    count = 37
    folder = make(tmp_path, records=results_factory.sft_records(count))
    html = html_of(folder)
    bars = re.findall(r'style="fill: var\(--(?:better|worse)\)"', html)
    assert len([b for b in bars if b]) >= count


def test_nothing_in_the_page_reaches_out_or_runs(tmp_path):
    html = html_of(make(tmp_path))
    for tag, attrs in Elements(html).tags:
        assert tag not in {"script", "iframe", "object", "link", "base", "form"}
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            if name in {"src", "href", "xlink:href"}:
                assert (value or "").startswith(("#", "data:")), (tag, name, value)
    assert "@import" not in html


def test_what_users_and_models_wrote_is_escaped_everywhere(tmp_path):
    base, trained = results_factory.sft_records()
    for record in (*base, *trained):
        record["prompt"] = EVIL + record["prompt"]
    examples = [example(base[0], base=EVIL, trained=EVIL, reference=EVIL)]
    folder = results_factory.write_folder(tmp_path, "sft", (base, trained), examples=examples)
    logs = folder / "logs" / "run-1"
    results_factory.edit_json(
        logs / "config.json", lambda c: c.update({"train_file": EVIL, EVIL: EVIL})
    )
    results_factory.edit_jsonl(
        logs / "checkpoints.jsonl", lambda rows: rows[0].update(name=EVIL, state_path=EVIL)
    )
    results.write_json(logs / "data_report.json", {"statistics": {EVIL: EVIL}, "warnings": [EVIL]})
    results_factory.edit_json(
        folder / results.SUMMARY_FILE,
        lambda s: (
            s["models"].update(base=EVIL),
            s["dataset"].update(split=EVIL),
            s["versions"].update({EVIL: EVIL}),
            s.update(wandb_url="javascript:" + EVIL),
        ),
    )
    export = tmp_path / "export.json"
    results.write_json(
        export,
        {
            "good": False,
            "problems": [EVIL],
            "notes": [EVIL],
            "folders": {"merged": EVIL, "adapter": EVIL},
        },
    )
    html = html_of(folder, export)
    parsed = Elements(html)
    assert "<script" not in html
    assert not [tag for tag, _ in parsed.tags if tag in {"script", "img"}]
    assert not [name for _, attrs in parsed.tags for name in attrs if name.startswith("on")]
    assert parsed.text.count("alert(1)") >= 10


def test_keys_are_blanked(tmp_path):
    folder = make(tmp_path)
    results_factory.edit_json(
        folder / "logs" / "run-1" / "config.json", lambda c: c.update(note="tml-secretsecret123")
    )
    html = html_of(folder)
    assert "secretsecret" not in html
    assert "tml-***" in html


def test_an_interval_with_zero_is_called_what_it_is(tmp_path):
    folder = make(tmp_path, records=results_factory.sft_records(gain=0.0))
    text = Elements(html_of(folder)).text
    assert "does not show that the training helped" in text


def test_a_worse_model_is_called_worse(tmp_path):
    folder = make(tmp_path, records=results_factory.sft_records(gain=-0.3))
    html = html_of(folder)
    assert '<b class="worse">' in html
    assert "The trained model is WORSE" in Elements(html).text


def test_broken_results_are_announced_at_the_top(tmp_path):
    folder = make(tmp_path)
    results_factory.edit_json(
        folder / results.SUMMARY_FILE, lambda s: s.update(trained_nll=s["trained_nll"] / 2)
    )
    text = Elements(html_of(folder)).text
    assert "These results break" in text
    assert text.index("These results break") < text.index("What was run")
    assert "results check failed" in text


def test_the_export_verdict_is_shown_good_or_bad(tmp_path):
    folder = make(tmp_path)
    export = tmp_path / "export.json"
    distance = {"mean": 2e-7, "largest": 3e-6, "tokens": 90}
    result = {
        "good": False,
        "folders": {"merged": "out dir/m"},
        "weights": {"compared": 272, "changed": 210, "differences": [1]},
        "behaviour": {
            "engine_noise": distance,
            "effect": {**distance, "mean": 0.25},
            "merged": {"distance": distance, "tolerance": {"mean": 4e-7, "largest": 5e-6}},
        },
        "problems": ["layer 3 differs"],
        "notes": ["a note"],
    }
    results.write_json(export, {"checkpoint": "tinker://x", "result": result})
    text = Elements(html_of(folder, export)).text
    for wanted in ("NOT verified", "layer 3 differs", "vllm serve 'out dir/m'", "272", "0.25"):
        assert wanted in text, wanted
    results.write_json(export, {**result, "good": True, "problems": []})
    text = Elements(html_of(folder, export)).text
    assert "NOT verified" not in text
    assert "give the service's logprobs" in text
    assert "Nothing was exported yet" in Elements(html_of(folder)).text


def test_data_statistics_have_a_column_for_each_side(tmp_path):
    folder = make(tmp_path)
    side = {"rows": 104, "tokens": 3712, "trained_tokens": 2000, "length": {"p50": 33, "max": 90}}
    results.write_json(
        folder / "logs" / "run-1" / "data_report.json",
        {
            "statistics": {"train": side, "val": {**side, "rows": 24}},
            "warnings": [{"message": "2 rows are nearly the same", "fix": "look"}],
        },
    )
    text = " ".join(Elements(html_of(folder)).text.split())
    assert "training held out rows 104 24 tokens" in " ".join(
        re.sub(r"<[^>]*>", " ", html_of(folder)).split()
    )
    assert "2 rows are nearly the same" in text


def test_an_rl_folder_is_shown_too(tmp_path):
    text = Elements(html_of(results_factory.write_folder(tmp_path, "rl"))).text
    assert "answered right (higher is better)" in text
    assert "held-out score is highest at step 20 (0.71)" in " ".join(text.split())
    assert "NLL" not in text.replace("train_mean_nll", "")


def test_a_folder_with_nothing_but_records_is_shown(tmp_path):
    import shutil

    folder = results_factory.write_folder(tmp_path, "sft")
    shutil.rmtree(folder / "logs")
    assert "config.json is not among the logs" in html_of(folder)


def test_hundreds_of_steps_are_smoothed(tmp_path):
    html = html_of(make(tmp_path, steps=300))
    assert html.count("stroke: var(--train)") >= 2


@pytest.mark.parametrize("file", [results.SUMMARY_FILE, results.BASE_FILE, results.TRAINED_FILE])
def test_a_folder_that_cannot_be_shown_is_bad_input(tmp_path, file):
    folder = make(tmp_path)
    (folder / file).unlink()
    with pytest.raises(InputError, match=file):
        collect.collect(folder)


def test_different_items_cannot_be_shown(tmp_path):
    folder = make(tmp_path)
    results_factory.edit_jsonl(folder / results.TRAINED_FILE, lambda r: r.pop())
    with pytest.raises(InputError, match=r"check_results\.py"):
        collect.collect(folder)


def test_the_script_writes_the_page_and_says_where(tmp_path):
    folder = make(tmp_path)
    output = tmp_path / "new" / "page.html"
    command = [sys.executable, str(SCRIPT), str(folder), "--output", str(output), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "output": str(output),
        "bytes": output.stat().st_size,
        "results_ok": True,
    }
    missing = subprocess.run([*command[:2], str(tmp_path / "x")], capture_output=True, text=True)
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
