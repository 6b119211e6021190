"""One file an attention mechanism: wholes that choose among parts."""
