//! The line with which `foldline run` ends.

use std::ffi::OsString;

use foldline_server::proxy::{ProxyMode, ProxyStats, UpstreamErrors};

use crate::clients::base_url::short_path;
use crate::clients::kind::ClientKind;
use crate::clients::launch::{self, CallerEnv};
use crate::command::run::facts::ClientFacts;
use crate::render::{format_number, format_percent, pluralize};
use crate::units::format_dollars;

/// Formats the savings as one line; `None` if there was no request.
pub(crate) fn summary_line(mode: ProxyMode, stats: &ProxyStats) -> Option<String> {
    if stats.requests == 0 {
        return None;
    }
    let requests = pluralize(stats.requests, "request");
    let errors = format_errors(&stats.upstream_errors);
    let less = |to| format_percent(stats.received_tokens.saturating_sub(to), stats.received_tokens);
    // A local or unknown model has no price.
    let saved = |usd: f64| if usd > 0.0 { format!(", about {} saved", format_dollars(usd)) } else { String::new() };
    let text = match mode {
        ProxyMode::Off => "passed through".to_owned(),
        ProxyMode::Observe => {
            let net = stats.would_save_usd - stats.would_crease_cost_usd;
            let money =
                if net > 0.0 { format!(", about {} would be saved", format_dollars(net)) } else { String::new() };
            format!(
                "{} tokens; folding would have sent {} ({} less{money})",
                format_number(stats.received_tokens),
                format_number(stats.would_send_tokens),
                less(stats.would_send_tokens)
            )
        }
        ProxyMode::Fold if stats.sent_tokens == stats.received_tokens && stats.upstream_errors.total() > 0 => {
            format!("{} tokens", format_number(stats.received_tokens))
        }
        ProxyMode::Fold if stats.sent_tokens == stats.received_tokens => {
            format!("{} tokens, nothing to fold", format_number(stats.received_tokens))
        }
        ProxyMode::Fold => {
            let cost = match stats.net_usd() {
                net if net < 0.0 => format!(", about {} lost so far", format_dollars(-net)),
                net => saved(net),
            };
            format!(
                "{} tokens sent of {} ({} less){cost}",
                format_number(stats.sent_tokens),
                format_number(stats.received_tokens),
                less(stats.sent_tokens)
            )
        }
    };
    Some(format!("foldline: {requests}{errors}, {text}{}", format_unfolds(stats)))
}

/// Formats what hidden rounds cost; empty if there were none. The client is shown the last round of each response only.
fn format_unfolds(stats: &ProxyStats) -> String {
    if stats.unfolds == 0 {
        return String::new();
    }
    let originals = pluralize(stats.unfolds, "original");
    let tokens = format_number(stats.unfold_tokens);
    let cost = if stats.unfold_cost_usd > 0.0 {
        format!(", about {}", format_dollars(stats.unfold_cost_usd))
    } else {
        String::new()
    };
    format!("; the model read {originals} again in hidden rounds ({tokens} tokens{cost})")
}

/// Formats the requests that an upstream did not answer with success; empty if there were none.
fn format_errors(errors: &UpstreamErrors) -> String {
    if errors.total() == 0 {
        return String::new();
    }
    let kinds = [
        (errors.client, "refused with 4xx"),
        (errors.server, "failed with 5xx"),
        (errors.no_response, "without a response"),
    ];
    let kinds: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{} {kind}", format_number(*count)))
        .collect();
    format!(" ({})", kinds.join(", "))
}

/// Formats the line for a command that sent no request, with the reason if it can be found.
pub(super) fn no_request_line(client: &ClientFacts, arguments: &[OsString], caller: &CallerEnv) -> String {
    format!("foldline: no request arrived; {}", no_request_reason(client, arguments, caller))
}

fn no_request_reason(client: &ClientFacts, arguments: &[OsString], caller: &CallerEnv) -> String {
    let Some(kind) = client.kind else {
        return "the command called no model, or does not read OPENAI_BASE_URL, ANTHROPIC_BASE_URL or \
                GOOGLE_GEMINI_BASE_URL"
            .to_owned();
    };
    if let (ClientKind::Claude, Some((name, cloud))) = (kind, caller.cloud_variables.first()) {
        return format!("{name} is set: Claude Code connects to {cloud}; {}", launch::cloud_advice(cloud));
    }
    let title = kind.title();
    let overridden = |key: &str| match kind {
        ClientKind::Claude => !launch::has_settings_argument(arguments),
        ClientKind::Codex | ClientKind::Aider | ClientKind::Gemini => true,
        ClientKind::Opencode => {
            ["openai", "anthropic"].iter().any(|it| key == format!("provider.{it}.options.baseURL"))
        }
        ClientKind::Cline | ClientKind::Pi => false,
    };
    if let Some(it) = client.configured.iter().find(|it| !overridden(&it.key)) {
        return format!(
            "{} in {} points {title} at {}, which overrides the proxy",
            it.key,
            short_path(&it.path, &client.home),
            it.url
        );
    }
    match kind {
        ClientKind::Gemini if client.lacks_sign_in => {
            "Gemini CLI may refuse a base URL until a sign-in method is selected: start it and choose the API key, or set \
             security.auth.selectedType to \"gemini-api-key\" in ~/.gemini/settings.json"
                .to_owned()
        }
        ClientKind::Gemini => {
            "Gemini CLI called no model, or is signed in with a Google account, which ignores base URLs: use an API key"
                .to_owned()
        }
        ClientKind::Cline | ClientKind::Pi => {
            let command = kind.command();
            format!(
                "{title} reads base URLs only from its own settings: use `foldline install {command}` and `foldline serve`"
            )
        }
        _ => format!("{title} called no model, or uses a provider that foldline does not override"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::base_url::ConfiguredUrl;

    #[test]
    fn summary_line_reports_savings() {
        let mut stats = ProxyStats::default();
        assert_eq!(summary_line(ProxyMode::Fold, &stats), None, "nothing happened");
        (stats.requests, stats.received_tokens, stats.sent_tokens) = (12, 200_000, 50_000);
        (stats.saved_usd, stats.crease_cost_usd) = (1.5, 0.25);
        assert_eq!(
            summary_line(ProxyMode::Fold, &stats).unwrap(),
            "foldline: 12 requests, 50,000 tokens sent of 200,000 (75 % less), about $1.25 saved"
        );
        stats.would_send_tokens = 100_000;
        assert_eq!(
            summary_line(ProxyMode::Observe, &stats).unwrap(),
            "foldline: 12 requests, 200,000 tokens; folding would have sent 100,000 (50 % less)"
        );
        (stats.requests, stats.sent_tokens) = (1, 200_000);
        assert_eq!(
            summary_line(ProxyMode::Fold, &stats).unwrap(),
            "foldline: 1 request, 200,000 tokens, nothing to fold"
        );
    }

    #[test]
    fn observe_mode_reports_would_be_savings_and_never_spending() {
        let mut stats = ProxyStats::default();
        (stats.requests, stats.received_tokens, stats.would_send_tokens) = (2, 1_000, 500);
        (stats.would_save_usd, stats.would_crease_cost_usd) = (1.5, 0.25);
        let line = summary_line(ProxyMode::Observe, &stats).unwrap();
        assert!(line.ends_with("(50 % less, about $1.25 would be saved)"), "{line}");
        stats.would_crease_cost_usd = 9.0;
        let line = summary_line(ProxyMode::Observe, &stats).unwrap();
        assert!(!line.contains('$') && !line.contains("spent"), "{line}");
    }

    #[test]
    fn upstream_errors_are_in_the_summary_line() {
        let mut stats = ProxyStats::default();
        (stats.requests, stats.received_tokens, stats.sent_tokens) = (8, 80, 80);
        (stats.upstream_errors.client, stats.upstream_errors.no_response) = (7, 1);
        assert_eq!(
            summary_line(ProxyMode::Fold, &stats).unwrap(),
            "foldline: 8 requests (7 refused with 4xx, 1 without a response), 80 tokens"
        );
    }

    #[test]
    fn missing_requests_are_explained() {
        let facts = |kind, urls: &[(&str, &str)]| ClientFacts {
            kind,
            configured: urls
                .iter()
                .map(|(key, url)| ConfiguredUrl { path: "/h/f.json".into(), key: (*key).into(), url: (*url).into() })
                .collect(),
            home: "/h".into(),
            lacks_sign_in: kind == Some(ClientKind::Gemini),
        };
        let reason = |facts: &ClientFacts, arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            no_request_reason(facts, &arguments, &CallerEnv::default())
        };
        let claude = facts(Some(ClientKind::Claude), &[("env.ANTHROPIC_BASE_URL", "https://gw")]);
        assert_eq!(
            reason(&claude, &["--settings", "x"]),
            "env.ANTHROPIC_BASE_URL in ~/f.json points Claude Code at https://gw, which overrides the proxy"
        );
        assert!(reason(&claude, &[]).contains("called no model"), "the setting was overridden");
        let opencode = facts(Some(ClientKind::Opencode), &[("provider.local.options.baseURL", "http://l/v1")]);
        assert!(reason(&opencode, &[]).contains("provider.local.options.baseURL in ~/f.json"));
        assert!(reason(&facts(Some(ClientKind::Pi), &[]), &[]).contains("foldline install pi"));
        assert!(reason(&facts(Some(ClientKind::Gemini), &[]), &[]).contains("security.auth.selectedType"));
        assert!(reason(&facts(None, &[]), &[]).contains("OPENAI_BASE_URL"));
    }
}
