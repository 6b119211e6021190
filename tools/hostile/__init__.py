"""Hostile tries: things given to mereo that nobody would mean, drawn at random, each in a process of its own.

A try is a function of (seed, area, number), so that one that fails can be repeated alone; see `tools/try_hostile.py`.
"""
