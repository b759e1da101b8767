"""Who works in a sandbox: a model, the reference solution, nobody, or an agent of the user's own."""
