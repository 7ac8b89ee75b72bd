"""What follows a run beside its own files: Weights & Biases, TensorBoard, any Lightning logger."""
