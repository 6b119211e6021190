"""The end of a run: its weights evaluated on the test images, its probabilities calibrated, its results written."""

from typing import TYPE_CHECKING

from mereo.inference.temperature import KEY
from mereo.models.weights import load_tensors
from mereo.training.batch_norm import restore_batch_norms
from mereo.training.calibrate import calibrate_run, store_calibration
from mereo.training.checkpoint import fitting, restore_model
from mereo.training.learning_curves import draw_curves
from mereo.training.results import RunResult, draw_test_samples, run_results
from mereo.training.rising import still_rising
from mereo.training.set_aside import write_set_aside

if TYPE_CHECKING:
    from mereo.training.engine import Trainer


def finish(trainer: "Trainer") -> RunResult:
    """Evaluate the last and the best weights on the test images and write the results."""
    model, task, splits, folder = trainer.model, trainer.task, trainer.splits, trainer.folder
    restore_batch_norms(model)
    trainer.report.say(f"evaluating {len(splits.test):,} test {task.unit}")
    total = trainer.config.epochs * trainer.steps
    trainer.plain_objective.at_step(total - 1, total)
    test_last = trainer.evaluate(splits.test, final=True)
    trainer.accelerator.wait_for_everyone()
    tensors, _ = load_tensors(folder.best)
    trainer.average = None
    with fitting(folder.best):
        restore_model(trainer.objective, tensors)
    best_is_last = trainer.best is not None and trainer.best["epoch"] == len(trainer.history)
    test_best = test_last if best_is_last else trainer.evaluate(splits.test, final=True)
    results = run_results(trainer, test_best, test_last)
    calibration = calibrate_run(model, task, splits, chosen_on_test=trainer.config.paper_protocol)
    if calibration is not None:
        results[KEY] = calibration.to_dict()
        model.metadata = {**model.metadata, KEY: results[KEY]}
    if trainer.main:
        if calibration is not None:
            store_calibration(folder.best, calibration)
        folder.write_json(folder.results, results)
        write_set_aside(folder, splits)
    if trainer.main and trainer.pictures:
        draw_curves(trainer.history, folder.curves, task.chooses[0], is_share=task.is_share)
        if trainer.processes == 1:
            draw_test_samples(task, model, splits.test, trainer.device, folder.test_samples)
    trainer.accelerator.wait_for_everyone()
    note = still_rising(trainer.history, task, trainer.config, folder.path)
    return RunResult(folder, test_best, test_last, results, model.eval(), trainer.main, task, note)
