"""Token selection: which tokens are kept, one file per mechanism."""
