"""Whatever stands in a results folder, the checker answers and the report shows or refuses."""

import json

import pytest
import results_factory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tinkerlab.errors import InputError
from tinkerlab.evaluation import results
from tinkerlab.evaluation.checking import check_results
from tinkerlab.report import collect, page

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
FILES = (
    results.SUMMARY_FILE,
    results.BASE_FILE,
    results.TRAINED_FILE,
    results.EXAMPLES_FILE,
    "logs/run-1/metrics.jsonl",
    "logs/run-1/config.json",
    "logs/run-1/checkpoints.jsonl",
    "logs/run-1/data_report.json",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base, trained = results_factory.sft_records(6)
    examples = [
        {"index": r["index"], "prompt": r["prompt"], "base": "a", "trained": "b", "reference": "c"}
        for r in base[:2]
    ]
    made = results_factory.write_folder(
        tmp_path_factory.mktemp("wild"), "sft", (base, trained), steps=3, examples=examples
    )
    side = {"rows": 3, "tokens": 9, "length": {"p50": 2, "max": 3}}
    results.write_json(
        made / "logs/run-1/data_report.json",
        {"statistics": {"train": side, "val": side}, "warnings": [{"message": "m", "fix": "f"}]},
    )
    return made


def paths_in(value, path=()):
    """Every place in a JSON document, the document itself included."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        inner = enumerate(value)
    for key, item in inner:
        yield from paths_in(item, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@pytest.mark.slow  # it draws a page for most of its examples
@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_value_in_any_place_is_answered(folder, data):
    name = data.draw(st.sampled_from(FILES))
    file = folder / name
    original = file.read_bytes()
    lines = [json.loads(line) for line in original.splitlines()] if "jsonl" in name else None
    document = json.loads(original) if lines is None else lines
    path = data.draw(st.sampled_from(sorted(paths_in(document), key=repr)))
    new = replaced(document, path, data.draw(json_values))
    if lines is not None and isinstance(new, list):
        text = "".join(json.dumps(line) + "\n" for line in new)
    else:
        text = json.dumps(new)
    file.write_text(text)
    try:
        verdict = check_results(folder)
        if name in FILES[:3] and path and new != document:
            assert verdict.findings or verdict.notes or _free(path)
        try:
            html = page.render(collect.collect(folder))
        except InputError as error:
            assert str(error)
        else:
            assert html.endswith("</html>")
    finally:
        file.write_bytes(original)


def _free(path) -> bool:
    """Parts of the summary that no rule can prove wrong from the folder alone."""
    return path[0] in {
        "created", "git_commit", "log_path", "versions", "wandb_url", "models",
    } or path[:2] == ("dataset", "path")  # fmt: skip


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(FILES))
def test_any_bytes_in_any_file_are_answered(folder, content, name):
    file = folder / name
    original = file.read_bytes()
    file.write_bytes(content)
    try:
        assert not check_results(folder).ok or name not in FILES[:3]
        try:
            page.render(collect.collect(folder))
        except InputError as error:
            assert str(error)
    finally:
        file.write_bytes(original)
