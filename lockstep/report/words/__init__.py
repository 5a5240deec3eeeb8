"""What a report says: headlines, cards, the next step, and the lines of a terminal."""
