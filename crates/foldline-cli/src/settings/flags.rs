//! Flags of settings: clap arguments that are built from the table.

use std::ffi::OsStr;
use std::marker::PhantomData;

use anyhow::Result;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser, ValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueHint};

use crate::settings::layers::{SettingLayers, SettingValues};
use crate::settings::table::{ALIASES, SETTINGS, Setting, SettingGroup, ValueKind};

/// The setting groups of a command.
pub(crate) trait FlagGroups {
    const GROUPS: &'static [SettingGroup];
}

/// Groups of commands that start a proxy: all.
pub(crate) struct ProxyGroups;

/// Groups of commands that count tokens and store originals.
pub(crate) struct FoldGroups;

/// Groups of commands that count tokens.
pub(crate) struct ModelGroups;

/// Groups of commands that read originals.
pub(crate) struct ArchiveGroups;

impl FlagGroups for ProxyGroups {
    const GROUPS: &'static [SettingGroup] = &[SettingGroup::Proxy, SettingGroup::Models, SettingGroup::Archive];
}

impl FlagGroups for FoldGroups {
    const GROUPS: &'static [SettingGroup] = &[SettingGroup::Models, SettingGroup::Archive];
}

impl FlagGroups for ModelGroups {
    const GROUPS: &'static [SettingGroup] = &[SettingGroup::Models];
}

impl FlagGroups for ArchiveGroups {
    const GROUPS: &'static [SettingGroup] = &[SettingGroup::Archive];
}

/// The flags of a command that are settings.
pub(crate) struct SettingFlags<G> {
    values: SettingValues,
    groups: PhantomData<G>,
}

impl<G: FlagGroups> SettingFlags<G> {
    /// Returns the flags with the variables and the settings file.
    pub(crate) fn load(&self) -> Result<SettingLayers> {
        SettingLayers::load(self.values.clone())
    }

    /// Returns the flags that the groups have.
    fn settings() -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().copied().filter(|setting| G::GROUPS.contains(&setting.group) && setting.has_flag())
    }
}

impl<G: FlagGroups> Args for SettingFlags<G> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::settings().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<G: FlagGroups> FromArgMatches for SettingFlags<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |setting: &Setting| matches.get_one::<String>(setting.name).cloned();
        let values = Self::settings().filter_map(|setting| Some((setting.name, value(setting)?))).collect();
        Ok(Self { values, groups: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.values.extend(Self::from_arg_matches(matches)?.values);
        Ok(())
    }
}

/// Returns the argument of a setting.
fn argument(setting: &'static Setting) -> Arg {
    let default = setting.default_text().map_or(String::new(), |default| format!(" [default: {default}]"));
    let help = format!("{}{default} [env: {}]", setting.help, setting.variable);
    let heading = match setting.group {
        SettingGroup::Proxy => Some("Proxy"),
        SettingGroup::Archive => Some("Archive"),
        SettingGroup::Models => None,
    };
    let mut argument = Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.value.placeholder())
        .value_parser(ValueParser::from(SuggestedValues(setting.value.choices())))
        .value_hint(match setting.value {
            ValueKind::File => ValueHint::FilePath,
            ValueKind::Url => ValueHint::Url,
            _ => ValueHint::Other,
        })
        .aliases(ALIASES.iter().filter(|(_, name)| *name == setting.name).map(|(alias, _)| *alias))
        .hide_possible_values(true)
        .help_heading(heading);
    if let Some(details) = setting.details {
        argument = argument.long_help(format!("{help}\n\n{details}"));
    }
    argument.help(help)
}

/// A parser that accepts any text and knows the usual values, for completions. Values are checked when settings of all
/// sources are resolved.
#[derive(Clone)]
struct SuggestedValues(&'static [&'static str]);

impl TypedValueParser for SuggestedValues {
    type Value = String;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        let value = StringValueParser::new().parse_ref(command, argument, value)?;
        match value.is_empty() {
            true => Err(clap::Error::raw(ErrorKind::InvalidValue, "a value must not be empty\n").with_cmd(command)),
            false => Ok(value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        (!self.0.is_empty()).then(|| Box::new(self.0.iter().map(PossibleValue::new)) as _)
    }
}
