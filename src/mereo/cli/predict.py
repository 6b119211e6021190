"""`mereo predict`."""

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.cli.answers import print_summary
from mereo.cli.options import PredictOptions
from mereo.cli.parse import parse
from mereo.cli.show import new_folder, print_table
from mereo.errors import UsageError, check_positive
from mereo.runtime.collection import uncollected
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from mereo.api import Predictions

MOST_NAMED = 8
"""Written files that are named."""
LONGEST_PROMPT = 2**20
"""Most bytes of a file that are continued; only the end of a longer file is read."""
MOST_DRAWN = 288
"""Bytes at the end of a text that are drawn."""


def run(words: list[str], command: str) -> None:
    """Print the classes of images, the continuations of texts, or what a sequence of tokens recalls."""
    options = parse(PredictOptions, words, command)
    check_positive(top=options.top, batch_size=options.batch_size, length=options.length)
    with uncollected():
        from mereo import api
        from mereo.api.networks import load_weights
        from mereo.api.prediction import check_out
        from mereo.cli.weights import split_weights, warn_if_out_of_distribution
        from mereo.inference.predict import find_files, find_images, task_of
        from mereo.tasks import Task

    given, weights = split_weights(options.images, options.weights, command)
    # Files are searched before weights are loaded, so that a missing file is reported at once.
    paths = find_files(given) if given or options.prompt is None else []
    check_out(options.out)
    model, source = trained = load_weights(weights, options.device, ready=True, images=False)
    reads, gives = model.input_kind, model.output_kind
    paths = find_images(given) if given and reads == "images" else paths
    if weights is None:
        say(f"using {source}", file=sys.stderr)
    if (reads, gives) == ("tokens", "tokens"):
        if task_of(model).name == "recall":
            _recall(model, options, paths, source)
            return
        _continue(model, options, paths, source)
        return
    if reads == "rows":
        (_captions if gives == "tokens" else _questions)(model, options, paths, source)
        return
    if reads == "prompts":
        _pictures(model, options, paths, source)
        return
    if reads not in ("images", "points", "regions", "sequences"):
        raise UsageError(f"weights are {str(source)!r}, of a network that reads {reads}; give one of images or text.")
    if options.prompt is not None:
        raise UsageError(f"prompt is {options.prompt!r}, and {source} reads {reads}; give {reads}.")
    if reads == "images":
        warn_if_out_of_distribution(model, source, paths, chosen=weights is None)
    out, task = options.out, task_of(model)
    writes_files = bool(task.cell_names) or type(task).write is not Task.write
    if out is None and writes_files and not options.json:
        out = new_folder("predictions")
    inputs = given if reads == "images" else paths
    predictions = api.predict(
        trained, inputs, top=options.top, labels=options.labels, out=out, tta=options.tta,
        five_crop=options.five_crop, batch_size=options.batch_size, strict=options.strict, quiet=False,
    )  # fmt: skip
    _show(predictions, options)


def _show(predictions: "Predictions", options: PredictOptions) -> None:
    """Print the predictions; for labelled images the accuracy, with a table and a picture of the errors as files."""
    from mereo.inference.answer_report import summary

    answers = predictions.answers
    if options.json:
        about = {} if answers is None else {"summary": summary(answers)}
        say(json.dumps({"weights": str(predictions.source), **about, "predictions": predictions.to_dicts()}, indent=2))
    elif predictions.labelled and answers is not None:
        print_summary(answers, predictions.written or predictions.write(new_folder("predictions")))
        return
    else:
        print_table(*predictions.table())
    for path in predictions.written[:MOST_NAMED]:
        say(f"written: {path}", file=sys.stderr)
    more = len(predictions.written) - MOST_NAMED
    if more > 0:
        say(f"written: {more} more in {predictions.written[0].parent}", file=sys.stderr)


def _unless_json(predictions: list[dict[str, Any]], options: PredictOptions, source: Path) -> list[dict[str, Any]]:
    """The predictions, to print a line of each; none where `--json` asks for all of them as one text, printed here."""
    if not options.json:
        return predictions
    say(json.dumps({"weights": str(source), "predictions": predictions}, indent=2))
    return []


def _picture_paths(options: PredictOptions, names: Collection[str]) -> dict[str, Path]:
    """A path for the picture of each text or file, no two the same, in a folder that is made."""
    from mereo.inference.write_predictions import unique_names

    out, paths = options.out or new_folder("predictions"), [Path(name) for name in names]
    if out.suffix.lower() == ".csv":
        raise UsageError(f"out is {out}, a table, and this network's predictions are drawn; give a folder.")
    out.mkdir(parents=True, exist_ok=True)
    return {name: out / f"{unique}.png" for name, unique in zip(names, unique_names(paths), strict=True)}


def _recall(model: Any, options: PredictOptions, paths: Sequence[Path], source: Path) -> None:
    """Print the answer to each query of each sequence of numbers, and draw the sequences."""
    import torch

    from mereo.data import Batch
    from mereo.inference.predict import task_of
    from mereo.tasks.recall import Recall, draw_recall

    texts = {str(path): path.read_bytes()[:LONGEST_PROMPT].decode(errors="replace") for path in paths}
    if options.prompt is not None:
        texts["prompt"] = options.prompt
    task, sequences = task_of(model), {}
    assert isinstance(task, Recall)
    for name, text in texts.items():
        try:
            sequences[name] = task.read(text, model.vocab_size)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
    pictures = _picture_paths(options, sequences)
    predictions: list[dict[str, Any]] = []
    for name, (tokens, labels) in sequences.items():
        with torch.inference_mode():
            outputs = task.kept(model(tokens.to(next(model.parameters()).device))).cpu()
        for place in (labels[0] >= 0).nonzero().flatten().tolist():
            asked, true = int(tokens[0, place]), int(labels[0, place])
            answer, share = outputs[0, place].tolist()
            predictions.append(
                {"path": name, "asked": asked, "answer": int(answer), "probability": share, "true": true}
            )
        draw_recall(Batch(tokens=tokens, labels=labels), outputs[..., 0].long(), pictures[name])
        say(f"written: {pictures[name]}", file=sys.stderr)
    for each in _unless_json(predictions, options, source):
        share = 100 * each["probability"]
        say(f"{each['path']}: {each['asked']} -> {each['answer']} ({share:.1f} %); it is {each['true']}")


def _questions(model: Any, options: PredictOptions, paths: Sequence[Path], source: Path) -> None:
    """Print the answers to questions, and draw their scenes.

    A question in words gets a scene of its own, drawn with the seed; a file states questions and scenes.
    """
    from mereo.data import Batch
    from mereo.data.questions.files import read_questions
    from mereo.data.questions.scenes import scene_for
    from mereo.tasks import Questions

    found = {str(path): read_questions(path) for path in paths}
    if options.prompt is not None:
        found["prompt"] = scene_for(options.prompt, options.seed)
    task, pictures = Questions(), _picture_paths(options, found)
    predictions: list[dict[str, Any]] = []
    for name, rows in found.items():
        batch = Batch(rows=rows.to(next(model.parameters())))
        predictions += [{"path": name, **answer} for answer in task.answers(model, batch, options.top)]
        task.draw(model, batch, batch, pictures[name])
        say(f"written: {pictures[name]}", file=sys.stderr)
    for each in _unless_json(predictions, options, source):
        share = 100 * each["scores"][each["answer"]]
        say(f"{each['path']}: {each['question']} -> {each['answer']} ({share:.1f} %); it is {each['true']}")


def _pictures(model: Any, options: PredictOptions, paths: Sequence[Path], source: Path) -> None:
    """Draw a picture for each prompt, a line of a file each, and print the glyphs that the judge finds."""
    from mereo.data.glyph_scenes.prompts import understand
    from mereo.runtime.progress import Reporter
    from mereo.tasks.drawing import Drawing, draw_judged, judged, shown

    texts = {str(path): path.read_bytes()[:LONGEST_PROMPT].decode(errors="replace").splitlines() for path in paths}
    if options.prompt is not None:
        texts["prompt"] = [options.prompt]
    prompts = {name: [line for line in lines if line.strip()] for name, lines in texts.items()}
    for prompt in (prompt for lines in prompts.values() for prompt in lines):
        understand(prompt)
    pictures, reporter = _picture_paths(options, prompts), Reporter()
    predictions: list[dict[str, Any]] = []
    for name, lines in prompts.items():
        reporter.begin("drawing", model.steps)
        images = model.draw(lines, seed=options.seed, progress=lambda step: reporter.advance())
        reporter.stop()
        drawn = judged(model, images)
        draw_judged(lines, drawn, pictures[name])
        say(f"written: {pictures[name]}", file=sys.stderr)
        found = zip(lines, drawn.kinds.tolist(), Drawing().predict(drawn), strict=True)
        predictions += [
            {"path": name, "prompt": prompt, "glyphs": glyphs, "right": shown(prompt, kinds)[2]}
            for prompt, kinds, glyphs in found
        ]
    for each in _unless_json(predictions, options, source):
        glyphs = ", ".join(f"{glyph} {quarter}" for quarter, glyph in each["glyphs"].items()) or "no glyph"
        say(f"{each['prompt']}: {glyphs} ({'as asked' if each['right'] else 'not as asked'})")


def _captions(model: Any, options: PredictOptions, paths: Sequence[Path], source: Path) -> None:
    """Print the captions of scenes, and draw them with what was named.

    A prompt names the classes of a scene, which is drawn with the seed; a file holds features of scenes.
    """
    import torch

    from mereo.data import Batch
    from mereo.data.captions import CAPTION, Scenes, ask, read_scene, scene_of
    from mereo.tasks.captions import Captions, draw_captions

    scenes: dict[str, Scenes] = {str(path): read_scene(path) for path in paths}
    if options.prompt is not None:
        scenes["prompt"] = scene_of(options.prompt, options.seed)
    task, pictures = Captions(), _picture_paths(options, scenes)
    predictions: list[dict[str, Any]] = []
    for name, found in scenes.items():
        rows, labels = ask(found, torch.full((len(found.present),), CAPTION))
        batch = Batch(rows=rows.to(next(model.parameters())), labels=labels)
        with torch.inference_mode():
            tokens = task.kept(task.apply(model, batch)).cpu()
        draw_captions(batch.pick(slice(0, task.most_drawn)), tokens[: task.most_drawn], pictures[name])
        say(f"written: {pictures[name]}", file=sys.stderr)
        about = {} if name != "prompt" else {"true": task.titles(batch)[0]}
        predictions += [{"path": name, **each, **about} for each in task.predict(tokens)]
    for each in _unless_json(predictions, options, source):
        say(f"{each['path']}: {each['caption']}" + (f"; it shows {each['true']}" if "true" in each else ""))


def _continue(model: Any, options: PredictOptions, paths: Sequence[Path], source: Path) -> None:
    """Print each text with its continuation; with `--out`, draw the end of it on the bits that each byte needed."""
    import torch

    from mereo.data import Batch
    from mereo.data.text import END
    from mereo.inference.continuation import continue_text
    from mereo.tasks.language import Language

    prompts = {str(path): path.read_bytes()[-LONGEST_PROMPT:] for path in paths}
    if options.prompt is not None:
        prompts["prompt"] = options.prompt.encode()
    predictions, most = [], 0
    pictures = {} if options.out is None else _picture_paths(options, prompts)
    for name, prompt in prompts.items():
        added = continue_text(model, prompt, options.length, temperature=options.temperature, seed=options.seed)
        most = max(most, len(prompt) + len(added))  # the end of a text is read first, and the last byte is not read
        texts = {"text": prompt.decode(errors="replace"), "continuation": added.decode(errors="replace")}
        predictions.append({"path": name, **texts})
        if name in pictures and prompt + added:
            tokens = torch.tensor([[END, *prompt, *added]], device=model.embedding.weight.device)
            end = Batch(tokens=tokens[:, -1 - min(MOST_DRAWN, model.longest or MOST_DRAWN) :])
            Language().draw(model, end, end, pictures[name])
            say(f"written: {pictures[name]}", file=sys.stderr)
    if most > model.context:
        say(
            f"the text goes on to byte {most:,}, and {source} was trained on windows of {model.context:,}; beyond them"
            " it may be worse",
            file=sys.stderr,
        )
    for prediction in _unless_json(predictions, options, source):
        if len(predictions) > 1:
            say(f"{prediction['path']}:")
        whole = (prediction["text"] + prediction["continuation"]).expandtabs()
        say(whole)
