"""Results for other programs: runs in a tracker, and TensorBoard's files."""
