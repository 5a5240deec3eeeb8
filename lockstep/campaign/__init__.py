"""A campaign: its file, its folder, and the ladder that measures it on one machine."""
