"""Training: losses, the loop, presets."""
