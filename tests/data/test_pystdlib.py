"""The sources of the standard library: which files, in which splits, and that they are what Python runs."""

import inspect
import json

from mereo.data import DATASETS, load_splits
from mereo.data.sets.pystdlib import LEFT_OUT, find_files
from mereo.data.text_splits import SPLITS, split_of


def test_it_has_the_sources_of_python_and_neither_packages_nor_tests() -> None:
    names = [name for name, _, _ in find_files()]
    assert names == sorted(names) and len(names) > 300 and {"json/decoder.py", "inspect.py"} <= set(names)
    assert not any(set(name.split("/")[:-1]) & LEFT_OUT or "_sysconfigdata" in name for name in names)
    assert "torch" not in {name.split("/")[0] for name in names}


def test_every_file_is_in_the_split_of_its_name() -> None:
    splits = load_splits("pystdlib", length=512)
    contents = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    files = {name: contents[name].content.split(b"\0")[:-1] for name in SPLITS}  # type: ignore[union-attr]
    assert sum(map(len, files.values())) == len(find_files())
    source = inspect.getsource(json.decoder).encode()
    assert source in files[split_of("json/decoder.py")]
    for name in SPLITS:
        assert len(contents[name].content) == DATASETS["pystdlib"].splits[name]  # type: ignore[union-attr]
