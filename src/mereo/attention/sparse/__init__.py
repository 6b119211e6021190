"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""
