"""What is measured over HTTP, the same for every server: one module for each kind of load."""
