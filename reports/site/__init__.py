"""A whole site: what there is to show, which pages that makes, and what of them has to be written anew."""
