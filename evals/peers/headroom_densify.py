"""headroom `densify(messages, model=..)` with its defaults: its lossless mode for live agents, on the whole request
each time."""

from headroom.compress import densify

from pipe import serve


def make(setup):
    def render(messages):
        return densify(messages, model=setup.get("model") or "gpt-4o").messages

    return render


serve(make)
