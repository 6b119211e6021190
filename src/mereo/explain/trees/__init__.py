"""Parse trees: the parts that a class capsule is made of, from one forward pass, as text, pictures and HTML pages."""
