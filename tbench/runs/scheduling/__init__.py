"""Who may start when: admission by what machines have, slots, the pool, and when a run stops by itself."""
