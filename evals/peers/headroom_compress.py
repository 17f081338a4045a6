"""headroom `compress(messages, model=..)` with its defaults, on the whole request each time, as its quick start
shows."""

from headroom import compress

from pipe import serve


def make(setup):
    def render(messages):
        return compress(messages, model=setup.get("model") or "gpt-4o").messages

    return render


serve(make)
