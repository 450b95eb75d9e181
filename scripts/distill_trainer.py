#!/usr/bin/env python3
"""Distillation (LoRA) from teachers to a student on a Tinker service, from one config file.

On-policy: the student samples, and each of its tokens is judged by the teacher's probability.
Off-policy: the student imitates samples of the teacher. Both measure the KL to the teacher on
held-out prompts. Interrupted at any moment, the same command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinkerlab import cli
from tinkerlab.training.command_line import build_parser, this_command

EXAMPLES = """\
examples:
  python scripts/distill_trainer.py --config templates/distill-config.yaml
  python scripts/distill_trainer.py --config c.yaml --dry-run    # check prompts and settings
  python scripts/distill_trainer.py --config c.yaml teacher=runs/sft method=off_policy
  python scripts/distill_trainer.py base_model=Qwen/Qwen3-8B \\
      teachers='{math.jsonl: Qwen/Qwen3-32B, chat.jsonl: runs/chat}'
  python scripts/rehearse.py run -- python scripts/distill_trainer.py --config c.yaml

exit codes: 0 trained; 1 the KL is not finite or the service stopped; 2 bad config, prompts or
teacher; 130 interrupted and saved (run it again to go on). templates/distill-config.yaml explains
every key.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(__doc__, EXAMPLES, "check the prompts and the settings")
    arguments = parser.parse_intermixed_args(argv)

    from tinkerlab.training import config as configs
    from tinkerlab.training import outcome
    from tinkerlab.training.distill.config import ELSEWHERE, DistillConfig

    config = configs.load(DistillConfig, arguments.config, arguments.overrides, ELSEWHERE)
    cli.say(configs.to_yaml(config))

    from tinkerlab.training.distill.data import prepare
    from tinkerlab.training.distill.run import DistillRun
    from tinkerlab.training.distill.teachers import resolve_teacher
    from tinkerlab.training.run import peak_learning_rate
    from tinkerlab.training.starting import resolve_checkpoint

    rate = peak_learning_rate(config)  # refused, if it must be, before the slow part
    checkpoint = resolve_checkpoint(config.load_checkpoint_path)
    teachers = [
        resolve_teacher(name, config.base_model, checkpoint) for name in config.pairs.values()
    ]
    data = prepare(config)
    run = DistillRun(
        config, data, teachers, rate, command=this_command(__file__, argv), checkpoint=checkpoint
    )
    cli.say(run.describe())
    if arguments.dry_run:
        if arguments.json:
            cli.emit_json({"status": "checked", **run.resolved()})
        return cli.EXIT_OK

    run.until_step = arguments.until_step
    code, summary = run.train()
    if arguments.json:
        cli.emit_json(summary)
    else:
        print(outcome.sentence(summary, "held_out_teacher_kl", "KL to the teacher"))
    return code


if __name__ == "__main__":
    cli.run(main)
