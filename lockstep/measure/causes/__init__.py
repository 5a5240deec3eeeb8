"""The causes of a step's time, from turns of its variants to a verdict."""
