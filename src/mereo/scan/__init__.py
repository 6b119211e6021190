"""Scans: sequences through a state of fixed size, such as linear attention and recurrences, one file a mechanism."""
