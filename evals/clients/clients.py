"""The commands that start the clients: each is a function from an environment to the commands, one after the other."""

import json
import os

from sdk import TASK

HERE = os.path.dirname(os.path.abspath(__file__))
AIDER_TASK = "Plan the next step, and keep the first one in mind."


class Environment:
    """Folders, variables and programs of one session; the home folder is empty."""

    def __init__(self, installed, folder, base):
        self.folder, self.base, self.installed = folder, base, installed
        self.python = os.path.join(installed, "python", "bin", "python")
        home = os.path.join(folder, "home")
        os.makedirs(home)
        self.variables = {"HOME": home, "TERM": "dumb", "NO_COLOR": "1", "LANG": "C.UTF-8"}
        self.variables["PYTHONDONTWRITEBYTECODE"] = "1"
        # The programs of npm need a newer Node than many systems have.
        self.variables["PATH"] = os.path.join(installed, "node", "node_modules", ".bin") + os.pathsep + os.environ["PATH"]

    def npm(self, name, folder="npm"):
        return os.path.join(self.installed, folder, "node_modules", ".bin", name)

    def write(self, path, content):
        """Writes a file below the home folder."""
        path = os.path.join(self.variables["HOME"], path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path


def sdk(api, way, model):
    return lambda env: [[env.python, os.path.join(HERE, "sdk.py"), api, way, env.base, model]]


def framework(name, api, model):
    def commands(env):
        env.variables["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        python = os.path.join(env.installed, name, "bin", "python")
        return [[python, os.path.join(HERE, "frameworks.py"), name, api, env.base, model]]

    return commands


def package(name, api, model, **variables):
    def commands(env):
        env.variables.update(variables)
        return [["node", os.path.join(HERE, "packages.mjs"), os.path.join(env.installed, "npm"), name, api, env.base, model]]

    return commands


# Claude Code uses message threads if it talks to Anthropic; the second variable turns them on without a login.
CLAUDE_THREADS = {"_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1", "CLAUDE_CODE_TETHER_LIVE": "1"}


def claude(*later, **variables):
    """Claude Code with the task, and then with further prompts in the same session."""

    def commands(env):
        env.variables.update(
            ANTHROPIC_BASE_URL=env.base,
            ANTHROPIC_API_KEY="fake",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
            **variables,
        )
        flags = ["--allowedTools", "Read,Task,Agent", "--model", "claude-opus-4-6", "--output-format", "json"]
        first = [env.npm("claude"), "-p", TASK, *flags]
        return [first] + [[env.npm("claude"), "--continue", "-p", prompt, *flags] for prompt in later]

    return commands


def codex(env):
    home = os.path.dirname(
        env.write(
            ".codex/config.toml",
            'model = "gpt-5.5"\nmodel_provider = "local"\n[model_providers.local]\nname = "local"\n'
            f'base_url = "{env.base}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n',
        )
    )
    env.variables.update(OPENAI_API_KEY="fake", CODEX_HOME=home)
    return [[env.npm("codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK]]


def opencode(package, model):
    def commands(env):
        limit = {"context": 1000000, "output": 4000}
        entry = {"name": model, "tool_call": True, "reasoning": package != "@ai-sdk/openai-compatible", "limit": limit}
        config = {
            "provider": {
                "local": {"npm": package, "options": {"baseURL": env.base + "/v1", "apiKey": "fake"}, "models": {model: entry}}
            },
            "model": "local/" + model,
            "small_model": "local/" + model,
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow", "external_directory": "allow"},
        }
        env.variables.update(OPENCODE_CONFIG=env.write("opencode.json", config), OPENCODE_DISABLE_AUTOUPDATE="1")
        return [[env.npm("opencode"), "run", TASK]]

    return commands


def pi(api, model):
    def commands(env):
        base = env.base if api == "anthropic-messages" else env.base + "/v1"
        entry = {"id": model, "reasoning": True, "contextWindow": 1000000, "maxTokens": 4000}
        provider = {"baseUrl": base, "api": api, "apiKey": "fake", "models": [entry]}
        env.write(".pi/agent/models.json", {"providers": {"local": provider}})
        env.variables.update(PI_OFFLINE="1")
        return [[env.npm("pi", "pi"), "--provider", "local", "--model", model, "-p", TASK]]

    return commands


def cline(provider, model):
    def commands(env):
        base = env.base + ("" if provider == "anthropic" else "/v1")
        settings = {"provider": provider, "apiKey": "fake", "model": model, "baseUrl": base}
        entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
        providers = {"version": 1, "lastUsedProvider": provider, "modes": {}, "providers": {provider: entry}}
        env.write(".cline/data/settings/providers.json", providers)
        return [[env.npm("cline"), "--auto-approve", "true", TASK]]

    return commands


def gemini(env):
    """Gemini CLI. Without a sign-in method in its settings it refuses a base URL."""
    env.write(".gemini/settings.json", GEMINI_SETTINGS)
    env.variables.update(GOOGLE_GEMINI_BASE_URL=env.base, GEMINI_API_KEY="fake")
    return [[env.npm("gemini", "gemini"), *GEMINI_FLAGS, "-p", TASK]]


GEMINI_SETTINGS = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
GEMINI_FLAGS = ["--skip-trust", "--model", "gemini-3-pro-preview"]


def mini(env):
    """mini-swe-agent, with the configuration that it ships for Chat Completions with tools."""
    env.variables.update(
        OPENAI_API_BASE=env.base + "/v1",
        OPENAI_API_KEY="fake",
        MSWEA_CONFIGURED="true",
        MSWEA_COST_TRACKING="ignore_errors",
        MSWEA_SILENT_STARTUP="1",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    program = os.path.join(env.installed, "mini", "bin", "mini")
    output = os.path.join(env.folder, "trajectory.json")
    return [[program, "--yolo", "--exit-immediately", "-m", "openai/gpt-4o", "-t", TASK, "-o", output]]


def aider(turns):
    def commands(env):
        env.variables.update(OPENAI_API_BASE=env.base + "/v1", OPENAI_API_KEY="fake", LITELLM_LOCAL_MODEL_COST_MAP="True")
        flags = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"]
        flags += ["--max-chat-history-tokens", "1000000", "--no-fancy-input", "--no-pretty"]
        prompts = [AIDER_TASK] + [f"Continue with step {at}." for at in range(1, turns)]
        # It reads one prompt per line from standard input, and ends with it.
        path = env.write("prompts", "\n".join(prompts) + "\n")
        program = os.path.join(env.installed, "aider", "bin", "aider")
        redirected = ["sh", "-c", 'input=$1; shift; exec "$@" < "$input"', "sh", path]
        return [[*redirected, program, "--model", "openai/gpt-4o", "--chat-mode", "ask", *flags]]

    return commands
