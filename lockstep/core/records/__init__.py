"""What a launch leaves: records, the kinds of their flags and errors, and the journal."""
