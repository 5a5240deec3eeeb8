"""The words of a report: headlines, cards, the next step, and the lines of a terminal."""
