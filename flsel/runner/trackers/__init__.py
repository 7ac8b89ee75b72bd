"""Trackers of a run besides its own files: Weights & Biases, TensorBoard, any Lightning logger."""
