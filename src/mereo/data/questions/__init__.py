"""Questions about a grid of coloured letters (gCOG): their world, programs, scenes and the sets that serve them.

Source: Ito, Dan, Rigotti, Kozloski, Campbell 2024, arXiv:2401.15030.
"""
