"""What each figure shows, as plain data: `panels` places it, `figures` draws it."""
