//! Sources of settings, and which one wins: a flag overrides a variable, a variable overrides the settings file, and the
//! file overrides the default, separately for each setting.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use foldline_server::proxy::check_secret_file;
use serde::Deserialize;

use crate::environment;
use crate::settings::table::{SETTINGS, SETTINGS_FILE, Setting, UPSTREAM, ValueKind, find_setting, nearest};

/// The key of the tables of tenants, and the keys in them.
const TENANT_TABLES: &str = "tenant";
const TENANT_KEYS: [&str; 3] = ["mode", "policy", "upstream"];

/// Values of one source, by the name of the setting.
pub(crate) type SettingValues = BTreeMap<&'static str, String>;

/// Settings of all sources, the strongest first.
pub(crate) struct SettingLayers {
    layers: Vec<SettingLayer>,
}

/// Settings of one source.
pub(crate) struct SettingLayer {
    pub(crate) source: SettingSource,
    pub(crate) values: SettingValues,
    /// Tables `[upstream.NAME]` of a file.
    pub(crate) upstreams: Vec<UpstreamTable>,
    /// Tables `[tenant.NAME]` of a file.
    pub(crate) tenants: Vec<TenantTable>,
}

/// A table `[upstream.NAME]` of a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamTable {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) dialect: Option<String>,
    pub(crate) auth: Option<String>,
}

/// A table `[tenant.NAME]` of a settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantTable {
    pub(crate) name: String,
    pub(crate) mode: Option<String>,
    pub(crate) policy: Option<String>,
    /// Names of tables `[upstream.NAME]`.
    pub(crate) upstreams: Vec<String>,
}

/// The fields of a table `[upstream.NAME]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamFields {
    url: String,
    dialect: Option<String>,
    auth: Option<String>,
}

/// The contents of a settings file.
#[derive(Default)]
struct FileSettings {
    values: SettingValues,
    upstreams: Vec<UpstreamTable>,
    tenants: Vec<TenantTable>,
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingSource {
    Flags,
    Variables,
    File(PathBuf),
    /// The environment of the command that `foldline run` starts.
    Caller,
}

/// A value and the place where it is set, for messages.
pub(crate) struct SettingValue<'a> {
    pub(crate) text: &'a str,
    pub(crate) place: SettingPlace<'a>,
}

/// The place where a value is set, as a user would write it.
pub(crate) struct SettingPlace<'a> {
    source: &'a SettingSource,
    setting: &'static Setting,
}

impl fmt::Display for SettingPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            SettingSource::Flags => write!(f, "--{}", self.setting.name),
            SettingSource::Variables => write!(f, "${}", self.setting.variable),
            SettingSource::File(path) => write!(f, "{} in {}", self.setting.name, path.display()),
            SettingSource::Caller => write!(f, "{} of the environment", self.setting.name),
        }
    }
}

impl SettingLayer {
    fn new(source: SettingSource, values: SettingValues) -> Self {
        Self { source, values, upstreams: Vec::new(), tenants: Vec::new() }
    }

    fn from_file(path: PathBuf, file: FileSettings) -> Self {
        let FileSettings { values, upstreams, tenants } = file;
        Self { source: SettingSource::File(path), values, upstreams, tenants }
    }
}

impl SettingLayers {
    /// Loads the variables and the settings file below these flags.
    pub(crate) fn load(flags: SettingValues) -> Result<Self> {
        check_variable_names()?;
        let variables = read_variables()?;
        let named = flags.get(SETTINGS_FILE.name).or(variables.get(SETTINGS_FILE.name)).map(PathBuf::from);
        let file = named.or_else(|| default_settings_path().filter(|path| path.exists()));
        let mut layers = vec![
            SettingLayer::new(SettingSource::Flags, flags),
            SettingLayer::new(SettingSource::Variables, variables),
        ];
        if let Some(path) = file {
            let file = read_settings_file(&path)?;
            layers.push(SettingLayer::from_file(path, file));
        }
        Ok(Self { layers })
    }

    #[cfg(test)]
    pub(crate) fn from_toml(files: &[&str]) -> Result<Self> {
        let path = Path::new("proxy.toml");
        let layer = |text: &&str| Ok(SettingLayer::from_file(path.to_owned(), parse_settings(text, path)?));
        Ok(Self { layers: files.iter().map(layer).collect::<Result<_>>()? })
    }

    /// Returns these settings without those of shared proxies, unless they are flags, and with weaker ones of the caller.
    pub(crate) fn for_child(mut self, caller: SettingValues) -> Self {
        for layer in self.layers.iter_mut().filter(|layer| layer.source != SettingSource::Flags) {
            layer.values.retain(|name, _| find_setting(name).is_none_or(|setting| !setting.is_shared));
            layer.tenants.clear();
        }
        self.layers.push(SettingLayer::new(SettingSource::Caller, caller));
        self
    }

    /// Returns the layers, the strongest first.
    pub(crate) fn layers(&self) -> &[SettingLayer] {
        &self.layers
    }

    /// Returns the tables `[upstream.NAME]`.
    pub(crate) fn upstream_tables(&self) -> impl Iterator<Item = &UpstreamTable> {
        self.layers.iter().flat_map(|layer| &layer.upstreams)
    }

    /// Returns the tables `[tenant.NAME]`.
    pub(crate) fn tenant_tables(&self) -> impl Iterator<Item = &TenantTable> {
        self.layers.iter().flat_map(|layer| &layer.tenants)
    }

    /// Returns true if the setting is a flag.
    pub(crate) fn is_flag(&self, setting: &Setting) -> bool {
        self.layers.iter().any(|it| it.source == SettingSource::Flags && it.values.contains_key(setting.name))
    }

    /// Returns the value of the strongest source.
    pub(crate) fn get(&self, setting: &'static Setting) -> Option<SettingValue<'_>> {
        self.get_or(setting, setting)
    }

    /// Returns the value of a setting, or of a more general one in the same or a stronger source.
    pub(crate) fn get_or(&self, setting: &'static Setting, general: &'static Setting) -> Option<SettingValue<'_>> {
        self.layers.iter().find_map(|layer| {
            let value = |setting: &'static Setting| {
                let text = layer.values.get(setting.name)?;
                Some(SettingValue { text, place: SettingPlace { source: &layer.source, setting } })
            };
            value(setting).or_else(|| value(general))
        })
    }

    /// Returns the path that a setting contains.
    pub(crate) fn path(&self, setting: &'static Setting) -> Option<PathBuf> {
        self.get(setting).map(|value| PathBuf::from(value.text))
    }

    /// Parses the value of a setting. An error names the place where it is set.
    pub(crate) fn parse<T, E: fmt::Display>(
        &self,
        setting: &'static Setting,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>> {
        self.get(setting).map(|value| value.parse(parse)).transpose()
    }
}

impl SettingValue<'_> {
    /// Parses the value. An error names the place where it is set.
    pub(crate) fn parse<T, E: fmt::Display>(&self, parse: impl Fn(&str) -> Result<T, E>) -> Result<T> {
        parse(self.text).map_err(|error| anyhow!("{}: {error}", self.place))
    }
}

/// Returns the path of the settings file if none is named.
pub(crate) fn default_settings_path() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "foldline").map(|it| it.config_dir().join("proxy.toml"))
}

/// Rejects variables that look like settings and are none: a misspelled variable would be ignored silently.
fn check_variable_names() -> Result<()> {
    let unknown = environment::foldline_variables()
        .into_iter()
        .find(|name| !SETTINGS.iter().any(|setting| setting.variable == name));
    let Some(name) = unknown else { return Ok(()) };
    let nearest = nearest(&name, SETTINGS.iter().map(|setting| setting.variable)).unwrap_or_default();
    bail!("unknown variable ${name}; did you mean ${nearest}?");
}

fn read_variables() -> Result<SettingValues> {
    let mut values = SettingValues::new();
    for setting in SETTINGS.iter() {
        let Some(value) = environment::read_variable(setting.variable) else { continue };
        let text = value.into_string().map_err(|_| anyhow!("${} is not valid UTF-8", setting.variable))?;
        values.insert(setting.name, text);
    }
    Ok(values)
}

fn read_settings_file(path: &Path) -> Result<FileSettings> {
    let text = std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
    let settings = parse_settings(&text, path)?;
    let is_secret = |name: &&str| find_setting(name).is_some_and(|setting| setting.value == ValueKind::Secret);
    if settings.values.keys().any(is_secret) {
        check_secret_file(path)?;
    }
    Ok(settings)
}

/// Parses a settings file: keys with texts, numbers and booleans, and tables of upstreams and tenants.
fn parse_settings(text: &str, path: &Path) -> Result<FileSettings> {
    let place = path.display();
    let table: toml::Table = text.parse().map_err(|error| syntax_error(text, path, &error))?;
    let FileSettings { mut values, mut upstreams, mut tenants } = FileSettings::default();
    for (key, value) in table {
        if let (true, toml::Value::Table(tables)) = (key == UPSTREAM.name, &value) {
            upstreams = parse_upstream_tables(tables, path)?;
            continue;
        }
        if let (true, toml::Value::Table(tables)) = (key == TENANT_TABLES, &value) {
            tenants =
                tables.iter().map(|(name, table)| parse_tenant_table(name, table, path)).collect::<Result<_>>()?;
            continue;
        }
        let Some(setting) = find_setting(&key) else {
            let names = SETTINGS.iter().filter(|setting| setting.is_in_file()).map(|setting| setting.name);
            let nearest = nearest(&key, names).unwrap_or_default();
            bail!("unknown setting \"{key}\" in {place}; did you mean \"{nearest}\"?");
        };
        if !setting.is_in_file() {
            bail!("{key} cannot be set in {place}; set ${}", setting.variable);
        }
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(_) | toml::Value::Boolean(_) | toml::Value::Float(_) => value.to_string(),
            _ => bail!("{key} in {place} must be a text, a number or true or false"),
        };
        values.insert(setting.name, value);
    }
    Ok(FileSettings { values, upstreams, tenants })
}

/// Parses the tables `[upstream.NAME]`.
fn parse_upstream_tables(tables: &toml::Table, path: &Path) -> Result<Vec<UpstreamTable>> {
    let place = path.display();
    let parse = |(name, table): (&String, &toml::Value)| {
        let fields: UpstreamFields = table.clone().try_into().map_err(|error: toml::de::Error| {
            anyhow!("[upstream.{name}] in {place}: {}; it has url, dialect and auth", error.message())
        })?;
        let UpstreamFields { url, dialect, auth } = fields;
        Ok(UpstreamTable { name: name.clone(), url, dialect, auth })
    };
    tables.iter().map(parse).collect()
}

/// Parses a table `[tenant.NAME]`.
fn parse_tenant_table(name: &str, table: &toml::Value, path: &Path) -> Result<TenantTable> {
    let place = format!("[tenant.{name}] in {}", path.display());
    let toml::Value::Table(fields) = table else { bail!("{place} must be a table with {}", TENANT_KEYS.join(", ")) };
    let mut tenant = TenantTable { name: name.to_owned(), ..TenantTable::default() };
    for (key, value) in fields {
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| anyhow!("{key} of {place} must be a text"));
        match key.as_str() {
            "mode" => tenant.mode = Some(text()?),
            "policy" => tenant.policy = Some(text()?),
            "upstream" => {
                let names = value
                    .as_array()
                    .map_or_else(|| vec![value.as_str()], |names| names.iter().map(toml::Value::as_str).collect());
                let names: Option<Vec<String>> = names.into_iter().map(|name| name.map(str::to_owned)).collect();
                tenant.upstreams =
                    names.ok_or_else(|| anyhow!("upstream of {place} must be a text or a list of texts"))?;
            }
            _ => {
                let nearest = nearest(key, TENANT_KEYS.into_iter()).unwrap_or_default();
                bail!("unknown setting \"{key}\" of {place}; did you mean \"{nearest}\"?");
            }
        }
    }
    Ok(tenant)
}

/// Explains why a settings file is not valid TOML. The usual reason is a text without quotes.
fn syntax_error(text: &str, path: &Path, error: &toml::de::Error) -> anyhow::Error {
    let place = path.display();
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let number = text[..text.floor_char_boundary(at)].matches('\n').count();
    let line = text.lines().nth(number).unwrap_or_default();
    let unquoted = line.split_once('=').map(|(key, value)| (key.trim(), value.trim())).filter(|(key, value)| {
        let is_plain = |c: char| c.is_alphanumeric() || "-_./:\\~ ".contains(c);
        find_setting(key).is_some() && !value.is_empty() && value.chars().all(is_plain)
    });
    match unquoted {
        Some((key, value)) => {
            anyhow!("line {} of {place}: texts need quotes; write {key} = \"{value}\"", number + 1)
        }
        None => anyhow!("{place} is not a settings file: {}", error.to_string().trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::table::{MODE, POLICY, UNFOLD, WINDOW};

    fn parse_error(text: &str) -> String {
        SettingLayers::from_toml(&[text]).err().unwrap().to_string()
    }

    #[test]
    fn stronger_source_wins_for_each_setting() {
        let layers = SettingLayers::from_toml(&["mode = \"off\"", "mode = \"fold\"\nunfold = false\nwindow = 8192"]);
        let layers = layers.unwrap();
        let text = |setting| layers.get(setting).map(|value| value.text.to_owned());
        assert_eq!(text(&MODE).as_deref(), Some("off"));
        assert_eq!(text(&UNFOLD).as_deref(), Some("false"));
        assert_eq!(text(&WINDOW).as_deref(), Some("8192"));
        assert_eq!(text(&POLICY), None);
    }

    #[test]
    fn text_without_quotes_is_explained() {
        assert_eq!(
            parse_error("mode = \"fold\"\npolicy = tight\n"),
            "line 2 of proxy.toml: texts need quotes; write policy = \"tight\""
        );
        assert!(parse_error("listen = 127.0.0.1:8787").ends_with("write listen = \"127.0.0.1:8787\""));
        assert!(parse_error("= 3").contains("is not a settings file"));
    }

    #[test]
    fn unknown_key_names_the_nearest() {
        assert_eq!(
            parse_error("upsteam = \"x\""),
            "unknown setting \"upsteam\" in proxy.toml; did you mean \"upstream\"?"
        );
        assert_eq!(
            parse_error("archive-key = \"secret\""),
            "archive-key cannot be set in proxy.toml; set $FOLDLINE_ARCHIVE_KEY"
        );
        assert!(parse_error("listen = [1]").contains("must be a text"));
    }

    #[test]
    fn unknown_key_of_a_tenant_names_the_nearest() {
        assert_eq!(
            parse_error("[tenant.alice]\npolcy = \"tight\""),
            "unknown setting \"polcy\" of [tenant.alice] in proxy.toml; did you mean \"policy\"?"
        );
        assert!(parse_error("[tenant]\nalice = 1").contains("must be a table with mode, policy, upstream"));
        assert!(
            parse_error("[tenant.alice]\nmode = 1").contains("mode of [tenant.alice] in proxy.toml must be a text")
        );
        assert!(parse_error("[tenant.alice]\nupstream = [1]").contains("a text or a list of texts"));
        assert!(parse_error("tenant = \"alice\"").contains("unknown setting \"tenant\""));
    }

    #[cfg(unix)]
    #[test]
    fn settings_file_with_a_token_must_be_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        for (text, mode, is_accepted) in [
            ("mode = \"fold\"", 0o644, true),
            ("token = \"t1\"", 0o644, false),
            ("tokens = \"a=t1,b=t2\"", 0o660, false),
            ("token = \"t1\"", 0o600, true),
        ] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_settings_file(&path).is_ok(), is_accepted, "{text} with mode {mode:o}");
        }
    }

    #[test]
    fn settings_of_models_and_archive_may_be_in_the_file() {
        let layers = SettingLayers::from_toml(&["models = \"m.csv\"\narchive = \"a.db\"\nnamespace = \"n\""]).unwrap();
        let names: Vec<_> = layers.layers()[0].values.keys().copied().collect();
        assert_eq!(names, ["archive", "models", "namespace"]);
    }
}
