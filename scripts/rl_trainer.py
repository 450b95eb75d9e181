#!/usr/bin/env python3
"""Reinforcement learning (GRPO and its kin, LoRA) on a Tinker service, from one config file.

Samples groups of completions of each task, grades them, and trains on how each differs from
its group. Before it begins, it grades samples of the starting policy and refuses where there is
nothing to learn from. Interrupted at any moment, the same command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinkerlab import cli
from tinkerlab.training.command_line import build_parser, this_command

EXAMPLES = """\
examples:
  python scripts/rl_trainer.py --config templates/rl-config.yaml
  python scripts/rl_trainer.py --config c.yaml --dry-run       # the pre-flight alone
  python scripts/rl_trainer.py base_model=Qwen/Qwen3-8B dataset=tasks.jsonl reward=numeric
  python scripts/rl_trainer.py --config c.yaml reward=my_rewards.py:score group_size=16
  python scripts/rehearse.py run -- python scripts/rl_trainer.py --config c.yaml  # no key needed

exit codes: 0 trained; 1 nothing to learn from, the run collapsed, or the service stopped;
2 bad config, tasks or reward, also one that fails on every completion; 130 interrupted and
saved (run it again to go on). templates/rl-config.yaml explains every key.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(__doc__, EXAMPLES, "sample and grade a few groups of the starting policy")
    arguments = parser.parse_intermixed_args(argv)

    from tinkerlab.training import config as configs
    from tinkerlab.training import outcome
    from tinkerlab.training.rl.config import ELSEWHERE, RLConfig

    config = configs.load(RLConfig, arguments.config, arguments.overrides, ELSEWHERE)
    cli.say(configs.to_yaml(config))

    from tinkerlab.training.rl.data import prepare
    from tinkerlab.training.rl.run import RLRun
    from tinkerlab.training.run import peak_learning_rate
    from tinkerlab.training.starting import resolve_checkpoint

    rate = peak_learning_rate(config)  # refused, if it must be, before the slow part
    checkpoint = resolve_checkpoint(config.load_checkpoint_path)
    data = prepare(config)
    try:
        run = RLRun(config, data, rate, command=this_command(__file__, argv), checkpoint=checkpoint)
        cli.say(run.describe())
        if arguments.dry_run:
            code, preflight = run.dry_run()
            if arguments.json:
                status = "checked" if code == cli.EXIT_OK else "refused"
                cli.emit_json({"status": status, **run.resolved(), "preflight": preflight})
            return code
        run.until_step = arguments.until_step
        code, summary = run.train()
    finally:
        data.grader.close()
    if arguments.json:
        cli.emit_json(summary)
    else:
        print(outcome.sentence(summary, "held_out_reward", "reward"))
    return code


if __name__ == "__main__":
    cli.run(main)
