"""select_checkpoint.py on runs and results whose right choice follows by hand."""

import json
from pathlib import Path

import pytest

from tinkerlab.errors import InputError

OTHER_RUN = "tinker://run-2/sampler_weights/final"
FALLING = (3.0, 2.0, 1.5, 1.2, 1.0)


def warned(document, cause):
    return [line for line in document["warnings"] if line.startswith(cause)]


def test_the_lowest_logged_loss_of_an_overfitting_run(make_run, choose):
    run = make_run((3.0, 2.0, 1.5, 1.9, 2.4), FALLING)
    code, document = choose(run)
    assert code == 0
    assert document["chosen"]["name"] == "000020"
    assert document["decided_by"] == "loss"
    assert document["verdict"] == "take 000020 (step 20 of 40)"
    assert any("no interval is available" in reason for reason in document["because"])
    assert "rises from 1.5 (step 20) to 2.4" in warned(document, "overfitting")[0]
    # Three nats before training, 1.5 now: 1.5 gained.
    assert document["checkpoints"][1]["to_base"]["mean"] == pytest.approx(1.5)
    report = (run / "selection" / "eval-report.md").read_text()
    assert report.splitlines()[2].startswith("**Take 000020 (step 20 of 40)**: `tinker://run-1/")
    assert (run / "selection" / "eval-report.png").read_bytes().startswith(b"\x89PNG")


def test_a_healthy_run_is_not_warned_of_overfitting(make_run, choose):
    _, document = choose(make_run(FALLING, FALLING))
    assert document["chosen"]["name"] == "final"
    assert not warned(document, "overfitting")


def test_a_clear_winner_of_the_application_evals(make_run, make_results, choose):
    # The loss says "final"; the task, which decides, says 000020.
    run = make_run(FALLING, FALLING)
    make_results("base", 20)
    for name, count in (("000010", 40), ("000020", 90), ("000030", 60), ("final", 50)):
        parent = make_results(name, count).parent
    code, document = choose(run, "--results", parent)
    assert (code, document["chosen"]["name"]) == (0, "000020")
    assert document["decided_by"] == "application"
    assert document["not_told_apart"] == ["000020"]
    row = document["checkpoints"][1]["scores"]["tasks.jsonl (exact)"]
    assert row["score"] == pytest.approx(0.9)
    # The normal interval of 90 of 100 is 0.841 to 0.959; the bootstrap's is close to it.
    assert row["low"] == pytest.approx(0.841, abs=0.02)
    assert row["high"] == pytest.approx(0.959, abs=0.02)
    assert document["checkpoints"][1]["to_base"]["mean"] == pytest.approx(0.7)
    assert any("tell it apart from each of them" in reason for reason in document["because"])
    assert any("trained too long: 000030, final are worse" in line for line in document["warnings"])


def test_a_tie_within_noise_takes_the_earlier(make_run, make_results, choose):
    run = make_run((3.0, 1.001, 1.0, 1.0, 1.0))
    make_results("base", 20)
    make_results("000010", 40)
    # 82 and 84 right, of other items: six differ one way and four the other.
    make_results("000020", 82)
    make_results("000030", 84, first=4)
    parent = make_results("final", 83).parent
    _, document = choose(run, "--results", parent)
    assert document["best_score"] == "000030"
    assert document["chosen"]["name"] == "000020"
    assert document["not_told_apart"] == ["000020", "000030", "final"]
    told = " ".join(document["because"])
    assert "these 3 are not told apart by 100 items: 000020, 000030 and final" in told
    statuses = [row["status"] for row in document["checkpoints"]]
    assert statuses == ["behind", "chosen", "tied", "tied"]
    assert "Winner's curse" in (run / "selection" / "eval-report.md").read_text()
    (purpose, command), *_ = document["commands"].items()
    assert "on items that chose nothing" in purpose
    assert (
        "--checkpoint tinker://run-1/sampler_weights/000020" in command
        and "--grader exact" in command
    )


def test_a_clearly_higher_loss_breaks_a_tie(make_run, make_results, choose):
    # No item tells them apart, but 000010 has hardly learned: 2.9 nats against 1.0.
    run = make_run((3.0, 2.9, 1.02, 1.0, 1.0))
    for name in ("000010", "000020", "000030", "final"):
        parent = make_results(name, 10, of=12).parent
    _, document = choose(run, "--results", parent)
    assert document["chosen"]["name"] == "000020"
    assert "held-out loss is 2.9 against 1" in document["checkpoints"][0]["why"]
    assert any("fewer than 20 the intervals are too narrow" in w for w in document["warnings"])


def test_forgetting_rules_a_checkpoint_out(make_run, make_results, choose):
    run = make_run()
    make_results("base", 20)
    for name, count in (("000010", 50), ("000020", 60), ("000030", 75), ("final", 90)):
        make_results(name, count)
    for name, count in (("000010", 70), ("000020", 69), ("000030", 40), ("final", 30)):
        make_results(name, count, base=70, suite="cookbook:gsm8k", parent="public")
    places = (run.parent / "results", run.parent / "public")
    code, document = choose(run, "--results", *places)
    assert (code, document["chosen"]["name"]) == (0, "000020")
    assert [row["status"] for row in document["checkpoints"]] == ["behind", "chosen", "out", "out"]
    assert document["checkpoints"][2]["below_base_on"] == ["cookbook:gsm8k"]
    (line,) = warned(document, "forgetting")
    assert "000030 -0.300" in line and "final -0.400" in line and "000020" not in line
    # 000030 falls by 0.3, at least by 0.19; final, the best, by 0.4, at least by 0.28.
    (price,) = warned(document, "this has its price: final")
    drop = price.rpartition("--max-drop ")[2].split()[0]
    assert float(drop) == pytest.approx(0.28, abs=0.03)
    # Who can live with that says so.
    _, allowed = choose(run, "--results", *places, "--max-drop", drop, "--output", run / "allowed")
    assert allowed["chosen"]["name"] == "final"


def test_nothing_is_recommended_when_all_are_worse_than_the_base(make_run, make_results, choose):
    run = make_run(FALLING)
    make_results("base", 90)
    for name in ("000010", "000020", "000030", "final"):
        parent = make_results(name, 50).parent
    code, document = choose(run, "--results", parent)
    assert (code, document["chosen"]) == (1, None)
    assert document["verdict"] == "take none of the 4 checkpoints"
    assert "every one of the 4 checkpoints" in document["because"][0]
    assert "stay with the base model" in document["because"][0]
    assert "**Take none of the 4 checkpoints**" in (run / "selection/eval-report.md").read_text()


def test_a_loss_that_only_rises_recommends_nothing(make_run, choose):
    code, document = choose(make_run((1.0, 1.2, 1.5, 1.9, 2.4), FALLING))
    assert (code, document["chosen"]) == (1, None)


RL = {"key": "test/env/all/correct", "train_key": "env/all/reward/total"}


def rl_config(items: int) -> dict:
    return {"config": {"reward": "exact", "resolved": {"held_out_tasks": items}}}


def test_a_reward_that_rises_while_held_out_accuracy_falls(make_run, choose):
    run = make_run((0.5, 0.7, 0.6, 0.4, 0.2), (0.1, 0.3, 0.5, 0.7, 0.9), **RL, **rl_config(200))
    _, document = choose(run)
    assert document["chosen"]["name"] == "000010"
    assert "the reward is gamed" in warned(document, "reward-up-eval-down")[0]


def test_a_reward_that_rises_while_held_out_accuracy_is_flat(make_run, choose):
    run = make_run(
        (0.50, 0.51, 0.50, 0.49, 0.51), (0.1, 0.3, 0.5, 0.7, 0.9), **RL, **rl_config(200)
    )
    _, document = choose(run)
    assert "not shown to be above the base model" in warned(document, "reward-alone-rises")[0]
    assert document["chosen"]["name"] == "000010"  # nothing is gained by any: the earliest


def test_a_reward_that_pays_is_not_accused(make_run, choose):
    run = make_run((0.2, 0.4, 0.6, 0.8, 0.9), (0.1, 0.3, 0.5, 0.7, 0.9), **RL, **rl_config(200))
    _, document = choose(run)
    assert not warned(document, "reward")


def test_the_noise_of_a_logged_share_follows_from_its_items(make_run, choose):
    """0.60 and 0.65: of 40 items that is noise, of 4000 it is not.

    By hand, for one comparison of three: z = 2.394 at 1 - 0.05/3, and
    z * sqrt((0.6 * 0.4 + 0.65 * 0.35) / n) is 0.259 for 40 items, 0.0259 for 4000.
    """
    shares = (0.1, 0.60, 0.65, 0.65, 0.65)
    _, few = choose(make_run(shares, **RL, **rl_config(40)))
    assert few["chosen"]["name"] == "000010"
    assert few["checkpoints"][0]["to_best"]["low"] == pytest.approx(-0.05 - 0.2589, abs=1e-3)
    _, many = choose(make_run(shares, **RL, **rl_config(4000), folder="many"))
    assert many["chosen"]["name"] == "000020"


def test_benchmarks_alone_decide(make_run, make_results, choose):
    run = make_run(FALLING)
    for suite, counts in (("a", (40, 60, 61, 60)), ("inspect:b", (50, 80, 81, 80))):
        names = ("000010", "000020", "000030", "final")
        for name, count in zip(names, counts, strict=True):
            make_results(name, count, base=20, suite=suite, parent=f"public/{suite[0]}")
    _, document = choose(run, "--results", run.parent / "public")
    assert document["decided_by"] == "benchmarks"
    # 000030 is one item of each ahead of 000020. The mean counts both benchmarks alike, and the
    # loss, 1.2 against 1.5, is far enough apart to speak: 1.0 wins.
    assert document["not_told_apart"] == ["000020", "000030", "final"]
    assert document["chosen"]["name"] == "final"
    assert document["told_apart_by"] == "200 items of 2 evaluations"


def test_results_of_another_model_are_named_and_left_out(make_run, make_results, choose):
    run = make_run(FALLING)
    for name in ("000010", "final"):
        make_results(name, 50)
    other = make_results("other", 99, model=OTHER_RUN)
    _, document = choose(run, "--results", other.parent)
    assert document["left_out"] == [f"{other}: of {OTHER_RUN}, which is no checkpoint of this run"]
    assert document["chosen"]["name"] == "final"  # tied with 000010, whose loss is 2 against 1
    assert "## Left out (1)" in (run / "selection/eval-report.md").read_text()
    unmeasured = [row["status"] for row in document["checkpoints"]][1:3]
    assert unmeasured == ["not measured", "not measured"]
    with pytest.raises(InputError, match=r"none of the results is about .*run-2/sampler"):
        choose(run, "--results", other, "--output", run / "second")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"question": "other question"}, "items"),
        ({"sampling": {"max_tokens": 99}}, "sampling"),
        ({"grader": {"spec": "numeric"}}, "grader"),
    ],
)
def test_other_items_or_settings_are_not_ranked_together(
    changes, told, make_run, make_results, choose
):
    run = make_run(FALLING)
    make_results("000010", 50)
    parent = make_results("final", 60, **changes).parent
    with pytest.raises(InputError, match=rf"not comparable.*\(other {told}\).*000010 on 100 items"):
        choose(run, "--results", parent)


def test_a_benchmark_measured_in_two_ways_is_refused(make_run, make_results, choose):
    """Even where it does not decide: each way would have its own base model."""
    run = make_run(FALLING)
    for name in ("000010", "final"):
        make_results(name, 50, parent="results/app")
    make_results("000010", 50, suite="s", base=50, parent="results/s")
    make_results("final", 50, suite="s", base=50, question="other", parent="results/s")
    with pytest.raises(InputError, match=r"not comparable.*other items"):
        choose(run, "--results", run.parent / "results")


def test_benchmarks_as_run_benchmarks_leaves_them(make_run, tmp_path, choose):
    """Written by the code that writes them, one folder for each checkpoint."""
    from tinkerlab.evaluation.suite_results import SuiteItem, SuiteRun, write

    def items(count, failed=()):
        return [
            SuiteItem(f"{i}", f"q{i}", "a", "reply", i < count, error="x" if i in failed else None)
            for i in range(60)
        ]

    def benchmark(name, count, failed=(), **settings):
        path = f"tinker://run-1/sampler_weights/{name}"
        how = SuiteRun(
            suite="cookbook:gsm8k",
            models={"base": "tiny:llama", "trained": path},
            base_model="tiny:llama",
            renderer="role_colon",
            source="openai/gsm8k",
            settings={"models": {"trained": path}, "sampling": {"temperature": 0.6}, **settings},
        )
        found = {"base": items(30), "trained": items(count, failed)}
        write(tmp_path / "public" / name / "gsm8k", how, found)

    run = make_run()
    for name, count in (("000010", 31), ("000020", 50), ("000030", 50), ("final", 5)):
        benchmark(name, count)
    code, document = choose(run, "--results", tmp_path / "public")
    assert (code, document["decided_by"], document["chosen"]["name"]) == (0, "benchmarks", "000020")
    assert document["checkpoints"][3]["below_base_on"] == ["cookbook:gsm8k"]
    assert document["evaluations"][0]["base_score"] == 0.5
    # One failed request leaves other items than the others have: told, with the remedy.
    benchmark("final", 5, failed={7})
    with pytest.raises(InputError, match=r"other items.* 1 items failed .*asks them again"):
        choose(run, "--results", tmp_path / "public", "--overwrite")
    benchmark("final", 5, tinker_cookbook="another")
    with pytest.raises(InputError, match="other suite settings"):
        choose(run, "--results", tmp_path / "public", "--overwrite")


def test_where_the_grader_lies_makes_no_difference(make_run, make_results, choose):
    run = make_run()
    for name, path in (("000010", "/a/g.py"), ("final", "g.py")):
        grader = {"spec": f"{path}:score", "path": path, "sha256": "aa", "timeout": 10.0}
        parent = make_results(name, 50, grader=grader).parent
    _, document = choose(run, "--results", parent)
    assert len(document["evaluations"]) == 1
    assert document["chosen"]["name"] == "000010"


def test_two_application_evals_count_alike(make_run, make_results, choose):
    """0.9 of 20 items and 0.5 of 200 are 0.7; pooled they would be 0.536."""
    run = make_run()
    for name, small, large in (("000010", 2, 40), ("final", 18, 100)):
        make_results(name, small, of=20, parent="results/small")
        make_results(name, large, of=200, parent="results/large", question="other")
    _, document = choose(run, "--results", run.parent / "results")
    assert document["chosen"]["name"] == "final"
    # (0.1 + 0.2) / 2 against (0.9 + 0.5) / 2.
    assert document["checkpoints"][0]["to_best"]["mean"] == pytest.approx(-0.55)


def test_the_very_same_selection_may_be_written_again(make_run, make_results, choose):
    run = make_run(FALLING)
    parent = make_results("final", 50).parent
    _, first = choose(run)
    page = (run / "selection/eval-report.md").read_bytes()
    assert choose(run)[1] == first
    assert (run / "selection/eval-report.md").read_bytes() == page
    with pytest.raises(InputError, match=r"holds another selection .*--overwrite"):
        choose(run, "--results", parent)
    assert (run / "selection/eval-report.md").read_bytes() == page
    assert choose(run, "--results", parent, "--overwrite")[0] == 0


def test_a_run_that_went_on_is_another_selection(make_run, choose):
    run = make_run(FALLING)
    choose(run)
    page = (run / "selection/eval-report.md").read_bytes()
    more = {"name": "later", "step": 60, "sampler_path": "tinker://run-1/sampler_weights/later"}
    with (run / "checkpoints.jsonl").open("a") as file:
        file.write(json.dumps(more) + "\n")
    with pytest.raises(InputError, match="holds another selection"):
        choose(run)
    assert (run / "selection/eval-report.md").read_bytes() == page
    assert choose(run, "--overwrite")[0] == 0


def test_a_page_of_the_users_is_not_overwritten(make_run, choose):
    run = make_run(FALLING)
    (run / "selection").mkdir()
    (run / "selection/eval-report.md").write_text("mine")
    with pytest.raises(InputError, match="holds another selection"):
        choose(run)
    assert (run / "selection/eval-report.md").read_text() == "mine"


def test_bad_input(make_run, make_results, choose, tmp_path):
    with pytest.raises(InputError, match=r"--run .*nowhere: no such folder"):
        choose(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no checkpoints\.jsonl with checkpoints in it"):
        choose(tmp_path / "empty")
    bare = make_run(folder="bare")
    with pytest.raises(InputError, match=r"nothing to choose by: metrics\.jsonl is missing"):
        choose(bare)
    unevaluated = make_run((), FALLING, folder="unevaluated")
    with pytest.raises(InputError, match=r"no held-out metric is logged near a checkpoint"):
        choose(unevaluated)
    with pytest.raises(InputError, match=r"--results .*gone: no such folder"):
        choose(bare, "--results", tmp_path / "gone")
    with pytest.raises(InputError, match="holds no evaluation"):
        choose(bare, "--results", tmp_path / "empty")
    with pytest.raises(InputError, match="--grader is for --evaluate"):
        choose(bare, "--grader", "exact")
    with pytest.raises(InputError, match="--max-drop must not be negative"):
        choose(bare, "--max-drop", -1)
    folder = make_results("final", 5)
    records = (folder / "trained_model.jsonl").read_text().replace('"correct":0', '"correct":NaN')
    records = records.replace('"correct": 0', '"correct": NaN')
    (folder / "trained_model.jsonl").write_text(records)
    with pytest.raises(InputError, match="no finite score"):
        choose(bare, "--results", folder)


def test_an_unfinished_evaluation_is_named(make_run, make_results, choose):
    run = make_run(FALLING)
    parent = make_results("final", 50).parent
    (parent / "half").mkdir()
    (parent / "half" / "attempts.jsonl").write_text("{}\n")
    _, document = choose(run, "--results", parent)
    assert document["left_out"] == [f"{parent / 'half'}: this evaluation is not finished"]


def test_the_terminal_says_the_verdict_first(make_run, capsys):
    import select_checkpoint as script

    run = make_run((3.0, 2.0, 1.5, 1.9, 2.4), FALLING)
    assert script.main(["--run", str(run)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "take 000020 (step 20 of 40)"
    assert shown[1] == "  tinker://run-1/sampler_weights/000020"
    assert len(shown) < 15


def test_names_of_the_users_become_no_markup(make_run, make_results, choose):
    run = make_run(FALLING)
    dataset = {"source": "<img src=x>|a.jsonl", "path": "items.jsonl"}
    parent = make_results("final", 50, dataset=dataset).parent
    choose(run, "--results", parent)
    page = (run / "selection/eval-report.md").read_text()
    assert "<img" not in page and "&lt;img" in page and "\\|a.jsonl" in page


def test_the_document_is_what_json_prints(make_run, choose):
    run = make_run(FALLING)
    _, document = choose(run)
    assert document == json.loads((run / "selection/selection.json").read_text())
    assert {Path(name).name for name in document["files"].values()} == {
        "eval-report.md",
        "eval-report.png",
        "selection.json",
    }
