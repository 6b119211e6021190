"""Data that does not fit in memory: images read one by one from folders, tar files, tables and the Hugging Face hub."""

from mereo.data.encoded import Source, Store, as_source
from mereo.data.stream.open import is_stream, open_stream
from mereo.data.stream.shards import write_shards
from mereo.data.stream.streamed_set import StreamedSet

__all__ = ["Source", "Store", "StreamedSet", "as_source", "is_stream", "open_stream", "write_shards"]
