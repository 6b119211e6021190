"""The list of the files of a data set that could not be read, and so serve for nothing."""

import csv
import io

from mereo.data import Splits
from mereo.data.stream.streamed_set import StreamedSet
from mereo.files import write_atomically
from mereo.training.run_folder import RunFolder


def unreadable_files(splits: Splits) -> list[tuple[str, str, str]]:
    """Split, name and reason of each; of streams, those that were met so far."""
    listed = list(splits.unreadable)
    for name, images in (("train", splits.train), ("validation", splits.validation), ("test", splits.test)):
        if isinstance(images, StreamedSet):
            listed += [(name, file, reason) for file, reason in images.unreadable]
    return listed


def write_set_aside(folder: RunFolder, splits: Splits) -> bool:
    """Write the list into the run folder; whether there is anything to list."""
    listed = unreadable_files(splits)
    if listed:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("split", "file", "reason"))
        writer.writerows(listed)
        write_atomically(folder.set_aside, text.getvalue())
    return bool(listed)
