"""What every trainer's command line has."""

from __future__ import annotations

import pytest

from tinkerlab.training.command_line import build_parser, this_command


@pytest.mark.parametrize("pause", [["--until-step", "4"], ["--until-step=4"], ["--until", "4"]])
def test_the_command_that_goes_on_has_no_pause(pause: list[str]) -> None:
    command = this_command("scripts/sl_trainer.py", ["--config", "c.yaml", *pause, "seed=1"])
    assert command == "python scripts/sl_trainer.py --config c.yaml seed=1"


@pytest.mark.parametrize("value", ["0", "-3", "soon"])
def test_a_pause_comes_after_a_step(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        build_parser("x", "y", "z").parse_intermixed_args(["--until-step", value])
    assert end.value.code == 2
    assert "--until-step: must be a whole number of at least 1" in capsys.readouterr().err
