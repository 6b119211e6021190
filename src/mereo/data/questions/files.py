"""Files of questions: .json with the rows of programs and scenes, as `generate` makes them."""

import json
from pathlib import Path

import torch
from torch import Tensor

from mereo.data.questions.world import NO_ANSWER, RULE, SCENE, SCENE_ROWS, evaluate, join_rows
from mereo.data.regular import open_regular
from mereo.errors import UsageError


def read_questions(path: Path) -> Tensor:
    """The questions of a file {"rule": rows of 8 numbers, "stim": 101 rows of 3}, for one question or a list of each.

    Shapes: -> (questions, rows, 11).

    Raises:
        UsageError: for other files, and a question without an answer.
    """
    form = f'give {{"rule": [[{RULE} numbers], ...], "stim": [{SCENE_ROWS} rows of {SCENE}]}}, or lists of them'
    try:
        with open_regular(path) as file:
            content = json.load(file)
        rule, stim = (torch.tensor(content[name], dtype=torch.float32) for name in ("rule", "stim"))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} has no questions ({type(error).__name__}: {error}); {form}.") from None
    if rule.dim() == stim.dim() == 2:
        rule, stim = rule.unsqueeze(0), stim.unsqueeze(0)
    if rule.dim() != 3 or stim.dim() != 3 or len(rule) != len(stim) or not len(rule):
        raise UsageError(f"{path} has rules {tuple(rule.shape)} and scenes {tuple(stim.shape)}; {form}.")
    if bool((evaluate(rule, stim).target == NO_ANSWER).any()):
        raise UsageError(f"{path} has a question about an object that is not in its scene, which has no answer.")
    return join_rows(rule, stim)
