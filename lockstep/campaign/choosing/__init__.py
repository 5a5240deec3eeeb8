"""How a user says what is measured: a question, values of factors, names that a shell completes."""
