"""A network as one HTML file that runs in a browser, without a server."""
