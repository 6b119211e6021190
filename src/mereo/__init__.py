"""Capsule networks, capsule routing and attention as one thing: parts that agree on wholes."""
