"""Errors of the command line in plain words, and pictures of a comparison with plain titles."""

import pytest

from mereo.cli.main import main
from mereo.cli.parse import plain_words

WRONG = {
    ("compare", "--family", "x"): "--family is 'x'; it must be one of 'capsule', 'vision'.",
    ("compare", "--epochs", "x"): "--epochs is 'x'; it must be a whole number.",
    ("train", "--optimizer", "adamm"): "did you mean 'adam'",
    ("train", "--limit", "1.5"): "--limit is '1.5'; it must be a whole number.",
    ("train", "--clip-norm", "x"): "--clip-norm is 'x'; it must be a number.",
    ("train", "--lr", "x"): "--lr is 'x'; it must be a number.",
    ("train", "--lr"): "--lr has no value; give one.",
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


def test_choices_have_one_order_and_unknown_texts_stay() -> None:
    error = "invalid choice 'x' for argument '--a'. Expected one of ('None', {})"
    one, two = (plain_words(error.format(listed)) for listed in ("'b', 'a'", "'a', 'b'"))
    assert one == two and one.startswith("--a is 'x'")
    assert plain_words("something else") == "something else"
