"""Token selection: which tokens go on, one file a mechanism."""
