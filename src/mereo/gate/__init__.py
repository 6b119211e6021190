"""Gates: features multiplied by a function of themselves, one file a mechanism."""
