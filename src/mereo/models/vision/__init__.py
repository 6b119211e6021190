"""Vision backbones, one file each with its presets."""
