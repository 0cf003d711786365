"""Results on disk, and what people read of them: tables, pictures, pages, comparisons."""
