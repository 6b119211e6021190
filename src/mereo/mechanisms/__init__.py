"""The mechanisms, one file each, in a room for each family; `mereo.catalogue` lists them all."""
