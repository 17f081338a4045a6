//! The reference page of the proxy: settings, endpoints, headers and metrics.

use foldline_server::proxy::reference::{self, ProviderEntry, ReferenceEntry};

use crate::settings::table::{SETTINGS, Setting, SettingSources};

/// Returns docs/reference/proxy.md.
pub(crate) fn proxy_page() -> String {
    let mut page = String::from(
        "# Proxy\n\nWritten by `cargo xtask reference`. How to use the proxy: [guide](../guide/proxy.md). The API of the \
         dashboard: [api.md](api.md).\n\n## Settings\n\nA flag overrides a variable, a variable overrides the settings \
         file, and the file overrides the default, separately\nfor each setting. Flags and keys have the same name: \
         `--listen ADDRESS`, `listen = \"ADDRESS\"`. The settings file is in\nTOML; texts are in quotes. Token counts \
         accept `200000`, `32k` and `1M`; sizes accept `64MB`, `1GB` and `64MiB`; times\naccept seconds, `90s` and `10m`. \
         An unknown key or variable is an error.\n\n| setting | variable | default | meaning |\n|---|---|---|---|\n",
    );
    SETTINGS.iter().for_each(|setting| page += &setting_row(setting));
    page += &section("Endpoints", "endpoint", &reference::endpoints());
    page += &providers();
    page += &section("Headers", "header", &reference::headers());
    page += "\nHeaders of requests that begin with `x-foldline-` are not forwarded to the provider.\n";
    page += &section("Metrics", "metric", &reference::metrics());
    page += "\nNo metric contains content or identifies a user.\n";
    page
}

fn setting_row(setting: &Setting) -> String {
    let note = match setting.sources {
        SettingSources::All => "",
        SettingSources::VariableAndFile => " (no flag: arguments are visible to other users)",
        SettingSources::FlagAndVariable => " (not in the file)",
        SettingSources::VariableOnly => " (only a variable)",
    };
    let default = match (setting.default_note, setting.default) {
        (Some(note), _) => note.to_owned(),
        (None, Some(default)) => format!("`{default}`"),
        (None, None) => String::new(),
    };
    format!("| `{}` | `{}` | {default} | {}{note} |\n", setting.name, setting.variable, cell(setting.help))
}

fn providers() -> String {
    let row = |it: &ProviderEntry| {
        let paths: Vec<String> = it.paths.split(", ").map(|path| format!("`{path}`")).collect();
        format!("| {} | {} | {} | {} |\n", it.provider, paths.join(", "), it.dialects, it.tested_with)
    };
    let rows: String = reference::providers().iter().map(row).collect();
    format!(
        "\n## Providers\n\nTested with these clients at servers that imitate the provider; no live provider was reached. Several \
         at once:\n[named upstreams](../guide/proxy.md#several-upstreams).\n\n\
         | provider | path | dialect | tested with |\n|---|---|---|---|\n{rows}"
    )
}

fn section(title: &str, column: &str, entries: &[ReferenceEntry]) -> String {
    let rows: String =
        entries.iter().map(|entry| format!("| `{}` | {} |\n", cell(&entry.name), cell(&entry.meaning))).collect();
    format!("\n## {title}\n\n| {column} | meaning |\n|---|---|\n{rows}")
}

/// Escapes the text of a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
