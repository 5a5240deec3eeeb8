"""What the time of a step goes to: from turns of its variants to causes and a verdict."""
