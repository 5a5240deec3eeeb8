"""Following a campaign: its status as a record, as text and as a page, and events of its jobs."""
