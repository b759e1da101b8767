"""Commands in containers: execs of the engine, their streams and outputs, and files that go through them."""
