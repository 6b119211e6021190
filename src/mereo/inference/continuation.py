"""Continues texts by a trained sequence model, byte by byte."""

import torch

from mereo.data.text import BYTES, END
from mereo.errors import UsageError
from mereo.models import SequenceModel


def continue_text(
    model: SequenceModel,
    prompt: bytes,
    count: int,
    *,
    temperature: float = 1.0,
    top: int | None = None,
    seed: int = 0,
) -> bytes:
    """The continuation of a prompt, at most `count` bytes; fewer if the model ends the text.

    Args:
        model: of bytes.
        prompt: the start of a text, maybe empty.
        count: bytes to add.
        temperature, top: see `SequenceModel.generate`.
        seed: of the draws.
    """
    if model.vocab_size != BYTES:
        raise UsageError(f"the model has {model.vocab_size} tokens; text is continued by models of the {BYTES} bytes.")
    device = model.embedding.weight.device
    tokens = torch.tensor([[END, *prompt]], dtype=torch.int64, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    drawn = model.generate(tokens, count, temperature=temperature, top=top, generator=generator)
    return bytes(drawn[0].tolist()).partition(bytes([END]))[0]
