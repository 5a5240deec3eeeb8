"""What every room may import: records, file formats, sizes and names; neither torch nor pytest."""
