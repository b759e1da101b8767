"""The pages of a site, one module each: what is shown, as data, and the template that shows it."""
