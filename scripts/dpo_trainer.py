#!/usr/bin/env python3
"""Direct preference optimisation (DPO, LoRA) on a Tinker service, from one config file.

Checks the pairs, shows one with its trained tokens marked, trains the chosen replies up and the
rejected ones down against a frozen copy of the start, and compares start and end on held-out
pairs. Interrupted at any moment, the same command goes on exactly where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinkerlab import cli
from tinkerlab.training.command_line import build_parser, this_command

EXAMPLES = """\
examples:
  python scripts/dpo_trainer.py --config templates/dpo-config.yaml train_file=pairs.jsonl
  python scripts/dpo_trainer.py --config c.yaml --dry-run       # check the pairs, train nothing
  python scripts/dpo_trainer.py --config c.yaml load_checkpoint_path=runs/sft dpo_beta=0.05
  python scripts/rehearse.py run -- python scripts/dpo_trainer.py --config c.yaml  # no key needed

exit codes: 0 trained; 1 the loss is not finite or the service stopped; 2 bad config or pairs;
130 interrupted and saved (run it again to go on). templates/dpo-config.yaml explains every key.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(__doc__, EXAMPLES, "check the pairs and the settings")
    arguments = parser.parse_intermixed_args(argv)

    from tinkerlab.training import config as configs
    from tinkerlab.training import outcome
    from tinkerlab.training.dpo.config import ELSEWHERE, DPOConfig

    config = configs.load(DPOConfig, arguments.config, arguments.overrides, ELSEWHERE)
    cli.say(configs.to_yaml(config))

    from tinkerlab.training.dpo.data import prepare
    from tinkerlab.training.dpo.run import DPORun
    from tinkerlab.training.starting import resolve_checkpoint

    checkpoint = resolve_checkpoint(config.load_checkpoint_path)
    data = prepare(config)
    run = DPORun(config, data, command=this_command(__file__, argv), checkpoint=checkpoint)
    cli.say(run.describe())
    if arguments.dry_run:
        if arguments.json:
            cli.emit_json({"status": "checked", **run.resolved(), "data": data.report.to_json()})
        return cli.EXIT_OK

    run.until_step = arguments.until_step
    code, summary = run.train()
    if arguments.json:
        cli.emit_json(summary)
    else:
        print(outcome.sentence(summary, "held_out_margin", "margin"))
        if "results" in summary:
            print(f"preference accuracy on held-out pairs: {summary['results']['verdict']}")
    return code


if __name__ == "__main__":
    cli.run(main)
