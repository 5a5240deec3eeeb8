"""The page: panels of tables and figures, rendered as one HTML file."""
