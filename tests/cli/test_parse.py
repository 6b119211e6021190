"""Errors of the command line in plain words, and pictures of a comparison with plain titles."""

import pytest

from mereo.cli.main import main

WRONG = {
    ("compare", "--family", "x"): "family is 'x'; it must be one of 'capsule', 'vision'.",
    ("compare", "--epochs", "x"): "epochs is 'x'; it must be a whole number.",
    ("train", "--optimizer", "adamm"): "did you mean 'adam'",
    ("train", "--limit", "1.5"): "limit is '1.5'; it must be a whole number.",
    ("train", "--clip-norm", "x"): "clip_norm is 'x'; it must be a number.",
    ("train", "--lr", "x"): "lr is 'x'; it must be a number.",
    ("train", "--lr"): "lr has no value; give one after --lr.",
    ("train", "--img-size", "x"): "error: img_size is 'x'; it must be",
}


@pytest.mark.parametrize(
    ("words", "message"), WRONG.items(), ids=lambda v: " ".join(v) if isinstance(v, tuple) else None
)
def test_wrong_values_are_argument_value_and_remedy(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert message.lower() in error.lower() and error.count("\n") == 1
    assert "None" not in error and "parsing" not in error
