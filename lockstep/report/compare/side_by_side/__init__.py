"""The page of a comparison: `compared_page` puts it together; `render` draws it like a report."""
