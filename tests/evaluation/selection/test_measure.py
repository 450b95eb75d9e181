"""--evaluate on a service that really trains and samples: every checkpoint, the base model once."""

import json

import pytest

from tinkerlab.errors import InputError
from tinkerlab.evaluation import results

WORDS = ("red", "blue", "green", "black")
# Right where the reply holds an even number of characters: about half of them, for any model.
EVEN = "def score(completion, answer):\n    return len(completion) % 2 == 0\n"


@pytest.fixture(scope="module")
def real_run(rehearsal, tmp_path_factory):
    """Six steps of sl_trainer.py on a tiny model: checkpoints after 2, 4 and 6, all evaluated."""
    import sl_trainer

    folder = tmp_path_factory.mktemp("select")
    chats = [{"prompt": f"Word {i}?", "completion": WORDS[i % 4] * (1 + i % 3)} for i in range(40)]
    data = folder / "chats.jsonl"
    data.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    settings = {
        "base_model": rehearsal.model,
        "train_file": data,
        "run_name": "select",
        "log_path": folder / "run",
        "num_steps": 6,
        "save_every": 2,
        "eval_every": 2,
        "train_batch_size": 4,
        "lora_rank": 4,
        "learning_rate": 1e-2,
        "val_fraction": 0.2,
        "allow_contamination": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
            patch.setenv(name, rehearsal.env[name])
        assert sl_trainer.main([f"{key}={value}" for key, value in settings.items()]) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def service(rehearsal, monkeypatch):
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


def nobody_answers(monkeypatch):
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")


def test_the_nll_of_every_held_out_row(real_run, choose, tmp_path, monkeypatch):
    output = tmp_path / "out"
    code, document = choose(real_run, "--evaluate", "--output", output)
    assert code == 0
    assert document["decided_by"] == "loss"
    names = [row["name"] for row in document["checkpoints"]]
    assert names == ["000002", "000004", "final"]
    logged = {
        row["step"]: row["test/nll"]
        for row in map(json.loads, (real_run / "metrics.jsonl").read_text().splitlines())
        if "test/nll" in row
    }
    for row in document["checkpoints"]:
        told = row["scores"]
        # What the trainer measured with the same weights, by a forward pass of its own.
        assert told["test/nll"] == {"score": logged[row["step"]], "at_step": row["step"]}
        (measured,) = (value for key, value in told.items() if key.startswith("NLL of"))
        assert measured["score"] == pytest.approx(logged[row["step"]], abs=1e-4)
        assert measured["low"] < measured["score"] < measured["high"]
    (evaluation,) = document["evaluations"]
    assert evaluation["base_score"] == pytest.approx(logged[0], abs=1e-4)
    # 8 held-out rows under three checkpoints, and once under the base model.
    log = (output / "nll" / "scores.jsonl").read_text().splitlines()
    assert len({json.loads(line)["item"] for line in log}) * 4 == len(log)

    nobody_answers(monkeypatch)
    assert choose(real_run, "--evaluate", "--output", output)[1] == document


def test_replies_of_every_checkpoint(real_run, choose, tmp_path, monkeypatch):
    tasks, grader, output = tmp_path / "tasks.jsonl", tmp_path / "even.py", tmp_path / "out"
    rows = [{"prompt": f"Word {i}?", "answer": "red"} for i in range(10)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    grader.write_text(EVEN)
    how = ("--evaluate", "--data", tasks, "--grader", f"{grader}:score", "--max-tokens", 8)
    code, document = choose(real_run, *how, "--output", output)
    assert code in (0, 1)  # ten replies of a random model may be worse than the base model's
    assert document["decided_by"] == "application"
    folders = {path.parent.name: path.parent for path in output.glob("*/scores.json")}
    assert set(folders) == {"base-model", "000002", "000004", "final"}
    (evaluation,) = document["evaluations"]
    assert evaluation["items"] == 10
    for name, file in (("base-model", results.BASE_FILE), ("final", results.TRAINED_FILE)):
        records = results.read_jsonl(folders[name] / file)
        share = sum(len(record["completion"]) % 2 == 0 for record in records) / 10
        if name == "base-model":
            assert evaluation["base_score"] == pytest.approx(share)
        else:
            score = document["checkpoints"][-1]["scores"]["tasks.jsonl (even.py:score)"]["score"]
            assert score == pytest.approx(share)
    # The base model replied in its own folder alone.
    for name, folder in folders.items():
        log = map(json.loads, (folder / "attempts.jsonl").read_text().splitlines())
        assert len({row["model"] for row in log}) == 1, name

    # Complete, the same command asks nobody; of one that is missing, only that is sampled.
    nobody_answers(monkeypatch)
    assert choose(real_run, *how, "--output", output)[1] == document
    # Another question is refused before anything is evaluated.
    with pytest.raises(InputError, match="holds another selection"):
        choose(real_run, *how, "--limit", 5, "--output", output)
    # The folders are what --results takes.
    _, again = choose(real_run, "--results", output, "--output", tmp_path / "again")
    assert again["chosen"] == document["chosen"]


def test_an_interrupted_evaluation_goes_on(real_run, choose, tmp_path):
    tasks, output = tmp_path / "tasks.jsonl", tmp_path / "out"
    tasks.write_text(json.dumps({"prompt": "Word?", "answer": "red"}) + "\n")
    how = ("--evaluate", "--data", tasks, "--grader", "exact", "--max-tokens", 4)
    _, document = choose(real_run, *how, "--output", output)
    # As after a kill between the replies and the results of the last checkpoint.
    (output / "final" / "scores.json").unlink()
    (output / "selection.json").unlink()
    (output / "eval-report.md").unlink()
    (output / "eval-report.png").unlink()
    before = (output / "final" / "attempts.jsonl").read_bytes()
    _, resumed = choose(real_run, *how, "--output", output)
    assert resumed["chosen"] == document["chosen"]
    assert (output / "final" / "attempts.jsonl").read_bytes() == before


def test_what_evaluate_needs(real_run, make_run, choose, tmp_path):
    with pytest.raises(InputError, match=r"give --data SOURCE"):
        choose(real_run, "--evaluate", "--grader", "exact", "--output", tmp_path / "a")
    with pytest.raises(InputError, match=r"give --grader SPEC"):
        choose(real_run, "--evaluate", "--data", "x.jsonl", "--output", tmp_path / "a")
    with pytest.raises(InputError, match=r"the same reply 4 times"):
        choose(
            *(real_run, "--evaluate", "--data", "x.jsonl", "--grader", "exact"),
            *("--samples", 4, "--temperature", 0, "--output", tmp_path / "a"),
        )
    for temperature in ("-1", "nan", "inf"):
        with pytest.raises(InputError, match=r"--temperature and --seed must be numbers"):
            choose(
                *(real_run, "--evaluate", "--data", "x.jsonl", "--grader", "exact"),
                *("--temperature", temperature, "--output", tmp_path / "a"),
            )
    run = make_run((3.0, 2.0))
    records = (run / "checkpoints.jsonl").read_text().replace("sampler_path", "other")
    (run / "checkpoints.jsonl").write_text(records)
    with pytest.raises(InputError, match=r"none of the checkpoints .* has a sampler_path"):
        choose(run, "--evaluate", "--output", tmp_path / "a")


def test_an_rl_run_brings_its_own_tasks_and_reward(make_run, tmp_path):
    """Those that it held out, as it samples them; an option wins over each."""
    from tinkerlab.evaluation.selection.checkpoints import checkpoints_of, read_run
    from tinkerlab.evaluation.selection.measure import Options, make_plans

    tasks = tmp_path / "rl.jsonl"
    rows = [{"prompt": f"{i} + 1?", "answer": i + 1} for i in range(50)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "reward": "numeric",
        "dataset": str(tasks),
        "max_tokens": 7,
        "eval_temperature": 0.0,
        "stop": ["\n"],
        "seed": 3,
        "max_eval_tasks": 4,
    }
    run = read_run(make_run(config=config))
    found, _ = checkpoints_of(run)
    base, *plans = make_plans(run, found, Options(), tmp_path / "out")
    assert (base.base_model, base.checkpoint) == ("tiny:llama", None)
    assert [plan.checkpoint for plan in plans] == [c.sampler_path for c in found]
    for plan in (base, *plans):
        assert (plan.grader, plan.split, len(plan.tasks)) == ("numeric", "test", 4)
        assert plan.sampling == base.sampling
    assert (base.sampling.max_tokens, base.sampling.seed, base.sampling.stop) == (7, 3, ("\n",))
    other, *_ = make_plans(
        run, found, Options(data=str(tasks), grader="exact", max_tokens=9), tmp_path / "out"
    )
    assert (other.grader, other.split, len(other.tasks)) == ("exact", "all", 50)
    assert other.sampling.max_tokens == 9
