"""Results on disk, and what is made of them for people: tables, pictures, pages, comparisons."""
