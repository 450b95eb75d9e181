#!/usr/bin/env python3
"""Supervised fine-tuning (LoRA) on a Tinker service, from one config file.

Checks the data, shows three decoded examples with the trained tokens marked, trains, and
leaves a run folder. Interrupted at any moment, the same command goes on exactly where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinkerlab import cli
from tinkerlab.training.command_line import build_parser, this_command

EXAMPLES = """\
examples:
  python scripts/sl_trainer.py --config templates/training-config.yaml train_file=chats.jsonl
  python scripts/sl_trainer.py --config c.yaml --dry-run       # check the data, train nothing
  python scripts/sl_trainer.py base_model=Qwen/Qwen3-8B train_file=chats.jsonl lora_rank=16
  python scripts/rehearse.py run -- python scripts/sl_trainer.py --config c.yaml   # no key needed

exit codes: 0 trained; 1 the loss is not finite or the service stopped; 2 bad config or data;
130 interrupted and saved (run it again to go on). templates/training-config.yaml
explains every key.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(__doc__, EXAMPLES, "check the data and the settings")
    arguments = parser.parse_intermixed_args(argv)

    from tinkerlab.training import config as configs
    from tinkerlab.training import outcome
    from tinkerlab.training.supervised_config import SupervisedConfig

    config = configs.load(SupervisedConfig, arguments.config, arguments.overrides)
    cli.say(configs.to_yaml(config))

    from tinkerlab.training.run import peak_learning_rate
    from tinkerlab.training.supervised import SupervisedRun
    from tinkerlab.training.supervised_data import prepare

    rate = peak_learning_rate(config)  # refused, if it must be, before the slow part
    data = prepare(config)
    run = SupervisedRun(config, data, rate, command=this_command(__file__, argv))
    cli.say(run.describe())
    if arguments.dry_run:
        if arguments.json:
            cli.emit_json({"status": "checked", **run.resolved(), "data": data.report_document()})
        return cli.EXIT_OK

    run.until_step = arguments.until_step
    code, summary = run.train()
    if arguments.json:
        cli.emit_json(summary)
    else:
        print(outcome.sentence(summary))
    return code


if __name__ == "__main__":
    cli.run(main)
