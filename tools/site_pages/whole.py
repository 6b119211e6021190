"""All pages of the documentation that are made from the code, by their place in the site."""

from site_pages import api, claims, commands, data, mechanisms, networks, repository, suites, tutorials

MAKERS = (repository, claims, tutorials, commands, suites, mechanisms, networks, data, api)


def pages() -> dict[str, str]:
    """Every such page: place in the site -> Markdown."""
    return {place: text for maker in MAKERS for place, text in maker.pages().items()}


def navigation(listed: list[dict[str, object] | str], made: dict[str, str]) -> list[dict[str, object] | str]:
    """The navigation of mkdocs.yml, each folder (a place that ends in /) replaced by the pages made in it.

    Args:
        listed: entries `title: place`, `title: [entries]`, or a place alone.
        made: the pages, from `pages`.
    """
    whole: list[dict[str, object] | str] = []
    for entry in listed:
        ((title, place),) = entry.items() if isinstance(entry, dict) else (("", entry),)
        if isinstance(place, list):
            whole.append({title: navigation(place, made)})
        elif isinstance(place, str) and place.endswith("/"):
            whole.append({title: [uri for uri in made if uri.startswith(place)]})
        else:
            whole.append(entry)
    return whole
