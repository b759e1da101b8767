"""Two runs side by side: which tasks moved, which did not, and what of it may be chance."""
