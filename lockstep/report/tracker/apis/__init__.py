"""What a tracker must do, and the two that do: MLflow, and a plain HTTP interface."""
