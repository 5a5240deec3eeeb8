"""From files of results to rows: journals, JSON, tables, and what may not be pooled."""
