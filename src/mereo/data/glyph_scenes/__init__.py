"""Scenes of up to three coloured glyphs in the quarters of an image, and prompts that describe them."""
