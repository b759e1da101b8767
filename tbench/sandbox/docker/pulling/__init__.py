"""Published images: their names, who one is at a registry, pulling them, and how large they are."""
