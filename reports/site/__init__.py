"""A whole site: gathers its content, renders its pages, and writes those that changed."""
