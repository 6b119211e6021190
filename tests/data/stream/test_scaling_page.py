"""The commands of docs/scaling.md are real: every option is known to the program that it is given to."""

import re
import shlex
from pathlib import Path

import pytest

from mereo.data.stream.__main__ import main
from mereo.training.config import TrainConfig

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


def commands():
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").strip().splitlines()]


def check_training(words):
    import tyro

    config = tyro.cli(TrainConfig, args=words)
    config.check()
    assert config.batch_size % 8 == 0 and config.data.endswith("shards")


@pytest.mark.parametrize("command", commands())
def test_commands(command, folder, tmp_path, monkeypatch, capsys):
    program, *words = shlex.split(command)
    if program == "python":
        assert words[:3] == ["-m", "mereo.data.stream", "my_photos"]
        folder.rename(tmp_path / "my_photos")
        monkeypatch.chdir(tmp_path)
        assert main(words[2:]) == 0 and len(list((tmp_path / "shards").glob("*.tar"))) == 2
        assert "2 shards" in capsys.readouterr().out
        return
    if program == "mereo":
        assert words[0] == "train"
        check_training(words[1:])
        return
    if program == "torchrun":
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(words)
        script = [parsed.training_script, *parsed.training_script_args]
        assert parsed.module
    else:
        assert program == "accelerate" and words[0] == "launch"
        from accelerate.commands.launch import launch_command_parser

        parsed = launch_command_parser().parse_args(words[1:])
        script = [parsed.training_script, *parsed.training_script_args]
        assert parsed.module
    assert script[:2] == ["mereo", "train"]
    check_training(script[2:])


def test_writing_shards_fails_with_a_line(tmp_path, capsys):
    assert main([str(tmp_path / "none"), str(tmp_path / "out")]) in (1, 2)
    assert "none" in capsys.readouterr().err
