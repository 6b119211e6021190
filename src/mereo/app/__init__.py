"""A local web page that shows the prediction of trained networks, its explanation, and how both react to changes."""
