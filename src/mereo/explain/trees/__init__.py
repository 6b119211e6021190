"""Parse trees: which parts a class capsule was made of, grown from one forward pass, in words, pictures and pages."""
