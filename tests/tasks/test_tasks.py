"""Sources of tasks: rows in every shape, splits that share nothing, refusals by line."""

import json

import pytest

from tinkerlab.errors import InputError
from tinkerlab.tasks import Task, load_tasks, without_shared


@pytest.fixture
def write(tmp_path):
    def make(*rows, name="rows.jsonl"):
        file = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        file.write_text("\n".join(lines) + "\n")
        return file

    return make


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("row", "prompt", "answer", "fields"),
    [
        ({"prompt": "q", "answer": "a", "level": 2}, [user("q")], "a", {"level": 2}),
        ({"input": "q", "output": 3}, [user("q")], 3, {}),
        ({"question": "q", "answer": ["a", "b"]}, [user("q")], ["a", "b"], {}),
        (  # DeepMath-103K; its traces are left out
            {"question": "q", "final_answer": "7", "topic": "t", "r1_solution_1": "long"},
            [user("q")],
            "7",
            {"topic": "t"},
        ),
        (  # AIME 2024, MATH-500: the working stays at hand, and is not the answer
            {"problem": "q", "solution": "so \\boxed{33}", "answer": "033", "year": "2024"},
            [user("q")],
            "033",
            {"solution": "so \\boxed{33}", "year": "2024"},
        ),
        ({"problem": "q", "solution": "so \\boxed{33}"}, [user("q")], "so \\boxed{33}", {}),
        (  # DAPO-Math-17k, as verl reads it
            {
                "prompt": [user("q")],
                "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
            },
            [user("q")],
            "34",
            {"reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}},
        ),
        ({"prompt": "q"}, [user("q")], None, {}),
        ({"instruction": "Do", "input": "this", "output": "a"}, [user("Do\n\nthis")], "a", {}),
        ({"instruction": "Do", "input": "", "output": "a"}, [user("Do")], "a", {"input": ""}),
        (
            {"messages": [{"role": "system", "content": "s"}, user("q")], "answer": "a"},
            [{"role": "system", "content": "s"}, user("q")],
            "a",
            {},
        ),
        (
            {"messages": [user("q"), {"role": "assistant", "content": "a"}]},
            [user("q")],
            "a",
            {},
        ),
    ],
)
def test_rows(write, row, prompt, answer, fields):
    (task,) = load_tasks(write(row))
    assert (list(task.prompt), task.answer, dict(task.row)) == (prompt, answer, fields)
    assert task.place == "rows.jsonl line 1"


PARTS = {
    "full": {
        "task_id": 602,
        "text": "Write a python function to find the first repeated character.",
        "code": "def first(s):\n    return next(c for i, c in enumerate(s) if c in s[:i])",
        "test_list": ["assert first('abca') == 'a'", "assert first('abb') == 'b'"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    "sanitized": {
        "source_file": "Benchmark.ipynb",
        "task_id": 602,
        "prompt": "Write a python function to find the first repeated character.",
        "code": "def first(s):\n    return next(c for i, c in enumerate(s) if c in s[:i])",
        "test_imports": ["import math"],
        "test_list": ["assert first('abca') == 'a'", "assert first('abb') == 'b'"],
    },
}


@pytest.mark.parametrize("part", PARTS)
def test_mbpp_rows_name_their_function_and_keep_tests_back(write, part):
    (task,) = load_tasks(write(PARTS[part]))
    assert "first('abca')" in task.question and "first('abb')" not in task.question
    assert "first repeated character" in task.question
    assert task.answer == PARTS[part]["code"]
    assert task.row["test_list"] == PARTS[part]["test_list"]
    assert task.row["test_setup_code"] == ("import math" if part == "sanitized" else "")


def test_mbpp_shows_what_its_tests_use(write):
    tests = ["assert total(numbers) == 6", "assert total([]) == 0"]
    row = {**PARTS["full"], "test_setup_code": "numbers = [1, 2, 3]", "test_list": tests}
    (task,) = load_tasks(write(row))
    assert "numbers = [1, 2, 3]\nassert total(numbers) == 6\n" in task.question


def test_tests_of_ones_own_leave_the_prompt_alone(write):
    (task,) = load_tasks(write({"prompt": "Write square.", "test_list": ["assert square(2) == 4"]}))
    assert (task.question, task.answer) == ("Write square.", None)


@pytest.mark.parametrize(
    ("row", "phrase"),
    [
        ({"problem": "q", "answer": 1, "final_answer": 2}, '"answer" and "final_answer" could'),
        ('{"prompt": "q"', "line 2: not JSON"),
        ("[1]", "line 2: must be a JSON object, not a list"),
        ({"text": "q"}, "line 2: no prompt"),
        ({"prompt": ""}, 'line 2: "prompt" is empty'),
        ({"prompt": 3}, 'line 2: "prompt" must be text'),
        ({"prompt": "q", "question": "r"}, '"prompt" and "question" could both be the prompt'),
        ({"prompt": "q", "answer": 1, "output": 2}, '"answer" and "output" could both'),
        ({"messages": []}, "empty list"),
        ({"messages": [{"role": "human", "content": "q"}]}, "did you mean 'user'"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "no message before"),
        ('{"prompt": "q", "answer": NaN}', "NaN has no meaning"),
    ],
)
def test_rows_that_are_no_tasks_are_named_by_line(write, row, phrase):
    with pytest.raises(InputError, match=phrase) as caught:
        load_tasks(write({"prompt": "fine"}, row))
    assert "\n" not in str(caught.value)
    assert "1 of 2 lines" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "phrase"),
    [(b"", "is empty"), (b"\n \n", "is empty"), (b"\xff\xfe\x00", "not UTF-8")],
)
def test_files_that_hold_nothing(tmp_path, content, phrase):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=phrase):
        load_tasks(file)


def test_places_that_are_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.jsonl"):
        with pytest.raises(InputError, match="data file"):
            load_tasks(path)


def test_train_and_test_share_no_prompt_in_any_order(write):
    rows = [{"prompt": f"What is {i}?", "answer": i} for i in range(60)]
    repeats = [{"prompt": f"  what is {i}?", "answer": i} for i in range(20)]
    file = write(*rows, *repeats)
    notes = []
    train = load_tasks(file, "train", seed=1, say=notes.append)
    test = load_tasks(file, "test", seed=1)
    assert not {t.key for t in train} & {t.key for t in test}
    assert (len(train), len(test)) == (55, 5)
    assert "20 of 80 rows left out: their prompts are repeated" in notes
    shuffled = write(*repeats, *reversed(rows), name="shuffled.jsonl")
    assert {t.key for t in load_tasks(shuffled, "test", seed=1)} == {t.key for t in test}
    assert {t.key for t in load_tasks(file, "test", seed=2)} != {t.key for t in test}
    assert len(load_tasks(file)) == 60


def test_a_limit_keeps_a_seeded_part_in_file_order(write):
    file = write(*({"prompt": f"What is {i}?", "answer": i} for i in range(40)))
    notes = []
    found = load_tasks(file, "all", 7, say=notes.append)
    assert [t.answer for t in found] == sorted(t.answer for t in found)
    assert found == load_tasks(file, "all", 7)
    assert notes == ["7 of 40 rows of split all used (as asked for)"]
    assert {t.key for t in load_tasks(file, "all", 3)} < {t.key for t in found}


def test_repeated_prompts_with_another_answer_are_said(write):
    notes = []
    (task,) = load_tasks(
        write({"prompt": "q", "answer": 1}, {"prompt": "q", "answer": 2}), say=notes.append
    )
    assert task.answer == 1
    assert "rows.jsonl line 2 (first rows.jsonl line 1)" in notes[1]


def test_one_task_cannot_be_split(write):
    with pytest.raises(InputError, match="1 different prompt can't be split"):
        load_tasks(write({"prompt": "q"}), "train")


def test_sources_of_ones_own_are_kept_apart():
    held_out = [Task([user("a")]), Task([user("b")])]
    notes = []
    train = without_shared([Task([user("A ")]), Task([user("c")])], held_out, notes.append)
    assert [t.question for t in train] == ["c"]
    assert notes == ["1 of 2 rows left out: they are held out"]


def test_generated_tasks_are_the_same_again_and_split_by_content():
    spec = "reasoning_gym:chain_sum:max_terms=2,max_digits=1"
    notes = []
    train = load_tasks(spec, "train", say=notes.append)
    test = load_tasks(spec, "test")
    assert not {t.key for t in train} & {t.key for t in test}
    assert len(train) + len(test) == 200  # 10 * 10 * 2 different questions
    assert "only" in notes[0]
    assert [t.question for t in load_tasks(spec, "train", 5)] == [t.question for t in train[:5]]
    assert load_tasks(spec, "train", 5, seed=1)[0].question != train[0].question
    assert train[0].row["num_terms"] == 2
    for task in train[:20]:
        left, sign, right = task.row["expression"].split()
        assert int(task.answer) == int(left) + (int(right) if sign == "+" else -int(right))


def test_neighbouring_seeds_do_not_share_generated_tasks():
    first, second = (load_tasks("reasoning_gym:chain_sum", "all", 100, seed) for seed in (0, 1))
    assert len({t.key for t in first} & {t.key for t in second}) < 20


@pytest.mark.parametrize(
    ("spec", "options", "phrase"),
    [
        ("reasoning_gym:chain_sums", None, "did you mean chain_sum"),
        ("reasoning_gym:", None, "no generator ''"),
        ("reasoning_gym:chain_sum:max_term=3", None, "did you mean max_terms"),
        ("reasoning_gym:chain_sum", {"seed": 3}, "no option 'seed'"),
        ("reasoning_gym:chain_sum:max_terms=0", None, "must be >= min_terms"),
        ("reasoning_gym:chain_sum:max_terms", None, "write name=value"),
        ("hf:", None, "names no dataset"),
        ("hf:no-such/dataset", None, "can't be read"),
        ("human_eval", {"a": 1}, "takes no options"),
    ],
)
def test_sources_that_cannot_be_had_are_one_line(spec, options, phrase):
    with pytest.raises(InputError, match=phrase) as caught:
        load_tasks(spec, options=options)
    assert "\n" not in str(caught.value)


def test_unknown_splits_and_limits():
    with pytest.raises(InputError, match="no split 'eval'"):
        load_tasks("human_eval", "eval")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1"):
        load_tasks("human_eval", limit=0)


def test_human_eval():
    tasks = load_tasks("human_eval")
    assert len(tasks) == 164
    assert tasks[0].row["entry_point"] in tasks[0].question


def test_a_prompt_that_repeats_a_message_is_no_second_prompt(tmp_path):
    """Rows of HuggingFaceH4/no_robots have both."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
    ]
    row = {"prompt": "Why?", "prompt_id": "1", "messages": messages, "category": "Chat"}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (task,) = load_tasks(file)
    assert (task.prompt, task.answer) == (messages[:2], "Because.")
    assert task.row == {"prompt_id": "1", "category": "Chat"}
    file.write_text(json.dumps({**row, "prompt": "Another?"}) + "\n")
    with pytest.raises(InputError, match='"messages" and "prompt" could both be the prompt'):
        load_tasks(file)


def test_hub_rows_become_tasks(monkeypatch):
    import datasets

    asked = []

    def load(name, config, split, streaming):
        asked.append((name, config, split, streaming))
        return ({"question": f"q{i}", "answer": f"work\n#### {i}"} for i in range(1000))

    monkeypatch.setattr(datasets, "load_dataset", load)
    train = load_tasks("hf:openai/gsm8k:main@test", "train", 20)
    assert asked == [("openai/gsm8k", "main", "test", True)]
    test = load_tasks("hf:openai/gsm8k:main@test", "test", 20)
    assert len(train) == len(test) == 20
    assert not {t.key for t in train} & {t.key for t in test}
