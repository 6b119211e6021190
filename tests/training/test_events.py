"""TensorBoard gets the metrics of every epoch, the training images and the distribution of the weights."""

import pytest

from mereo.training.trainer import train


@pytest.mark.long
def test_scalars_images_and_histograms_are_written(small_config, silent):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    result = train(small_config(tensorboard=True), silent)
    (path,) = result.folder.tensorboard.iterdir()
    values = {}
    for event in loader.RawEventFileLoader(str(path)).Load():
        from tensorboard.compat.proto.event_pb2 import Event

        parsed = Event.FromString(event)
        for value in parsed.summary.value:
            values.setdefault(value.tag, []).append((parsed.step, value))
    assert [step for step, _ in values["train_loss"]] == [1, 2]
    ((step, shown),) = values["training images"]
    assert step == 0 and shown.image.encoded_image_string == result.folder.train_samples.read_bytes()
    weights = {name: tensor for name, tensor in result.model.named_parameters() if tensor.requires_grad}
    assert {f"weights/{name}" for name in weights} == {name for name in values if name.startswith("weights/")}
    for name, tensor in weights.items():
        step, last = values[f"weights/{name}"][-1]
        assert step == 2 and last.histo.num == sum(last.histo.bucket) == tensor.numel()
        assert last.histo.min <= last.histo.max <= last.histo.bucket_limit[-1] + 1e-6
