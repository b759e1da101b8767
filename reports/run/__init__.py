"""What the page of a run shows, as data: the same for a page in a site and for a page of its own."""
