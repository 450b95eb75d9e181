"""fetch_data.py on local data sets, which ``datasets`` streams as it streams those of the Hub."""

import hashlib
import json
from pathlib import Path

import pytest

from tinkerlab.data import load_rows
from tinkerlab.errors import InputError
from tinkerlab.tasks import fetching


def fetch(*arguments) -> int:
    import fetch_data as script

    return script.main([*map(str, arguments)])


def read(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def dataset(rows, split="train"):
    Path("local").mkdir(exist_ok=True)
    Path(f"local/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def no_robots(number):
    """The columns of HuggingFaceH4/no_robots."""
    prompt = f"Write a line about {number}."
    messages = [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": f"A line about {number}."},
    ]
    row = {"prompt": prompt, "prompt_id": f"{number:064x}", "messages": messages}
    return {**row, "category": "Generation"}


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_rows_are_written_as_published_up_to_the_limit(capsys):
    dataset([no_robots(i) for i in range(30)])
    dataset([no_robots(i) for i in range(90, 94)], "test")
    assert fetch("./local@train", "--limit", 20, "--output", "out/train.jsonl", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert read("out/train.jsonl") == [no_robots(i) for i in range(20)]
    content = Path("out/train.jsonl").read_bytes()
    assert document["sha256"] == hashlib.sha256(content).hexdigest()
    assert (document["rows"], document["format"], document["left_out"]) == (20, "messages", {})
    assert len(load_rows("out/train.jsonl").rows) == 20
    assert fetch("hf:./local@test", "--output", "test.jsonl") == 0
    assert "4 rows of" in capsys.readouterr().out
    assert read("test.jsonl")[0] == no_robots(90)


def test_columns_are_renamed():
    dataset([{"q": f"How many are {i}?", "a": f"It is {i}."} for i in range(3)])
    named = ("--columns", "prompt=q,completion=a", "--output", "out.jsonl")
    assert fetch("./local", *named) == 0
    assert read("out.jsonl")[1] == {"prompt": "How many are 1?", "completion": "It is 1."}
    assert load_rows("out.jsonl").format == "prompt/completion"


def test_rows_that_nothing_could_read_are_left_out_counted_and_told(capsys):
    dataset([no_robots(1), {**no_robots(2), "messages": []}, no_robots(3)])
    assert fetch("./local", "--output", "out.jsonl") == 1
    assert read("out.jsonl") == [no_robots(1), no_robots(3)]
    assert "left out: 1 rows" in capsys.readouterr().out


def test_a_streamed_row_may_have_null_for_what_it_lacks():
    """Arrow gives every row every column: a field of one message is null in the others."""
    rows = [no_robots(1), no_robots(2)]
    rows[0]["messages"][1]["name"] = None
    rows[1]["messages"][1]["name"] = "Ann"
    dataset(rows)
    fetch("./local", "--output", "out.jsonl")
    assert len(load_rows("out.jsonl").rows) == 2


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("./local", "--limit", 0), "--limit must be at least 1"),
        (("./local", "--columns", "prompt"), "write NEW=OLD"),
        (("./local", "--columns", "prompt=question"), "has no column 'question'"),
        (("./local@validation",), "can't be read"),
        (("no-such/dataset",), "can't be read"),
        (("./numbers",), "no row that a trainer can read"),
        (("",), "names no dataset"),
    ],
)
def test_what_cannot_be_had_is_one_line(arguments, phrase):
    dataset([no_robots(1)])
    Path("numbers").mkdir()
    Path("numbers/train.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    with pytest.raises(InputError, match=phrase) as caught:
        fetch(*arguments, "--output", "out.jsonl")
    assert "\n" not in str(caught.value)
    assert not Path("out.jsonl").exists()


def test_a_dataset_of_other_columns_is_given_up_early():
    """Not read to its end, which on the Hub may take hours."""
    read = 0

    def long(spec):
        nonlocal read
        for read in range(1, 3 * fetching.TRIED):
            yield {"x": read}

    with pytest.raises(InputError, match="among its first 2000"):
        fetching.fetch("d", Path("out.jsonl"), 5, {}, print, long)
    assert read == fetching.TRIED


@pytest.mark.parametrize(
    ("output", "phrase"), [("local", "is a folder"), ("local/train.jsonl/x.jsonl", "is a file")]
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(output, phrase):
    dataset([no_robots(1)])
    with pytest.raises(InputError, match=phrase):
        fetch("no-such/dataset", "--output", output, "--overwrite")


def test_a_file_that_is_there_is_kept_unless_told_otherwise():
    dataset([no_robots(1)])
    Path("out.jsonl").write_text("mine\n")
    with pytest.raises(InputError, match="exists; choose another"):
        fetch("./local", "--output", "out.jsonl")
    assert Path("out.jsonl").read_text() == "mine\n"
    assert fetch("./local", "--output", "out.jsonl", "--overwrite") == 0
    assert read("out.jsonl") == [no_robots(1)]
