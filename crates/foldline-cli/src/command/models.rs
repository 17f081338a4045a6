//! `foldline models`: what is known of models, and where it comes from.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use foldline::models::{ModelRow, PriceTable};
use foldline::tokens::CountExactness;
use foldline::{Meter, ModelTable, Prices};
use serde_json::{Value, json};

use crate::output::print_stdout;
use crate::render::format_number;
use crate::settings::flags::{ModelGroups, SettingFlags};
use crate::settings::layers::SettingLayers;
use crate::settings::models::model_table;
use crate::settings::table::MODELS;

/// Show what is known of models: windows, prices, and how tokens are counted
///
/// Without a name, all rows of the table are listed; a row applies to all models whose names start with its prefix. With
/// a name, the row that applies is shown, and where its values come from. Values of a --models file override the
/// built-in table. The window that a server reports, or that `--window` sets, overrides both in the proxy.
#[derive(Args)]
pub(crate) struct ModelsCommand {
    /// A model, as it is named in requests.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// List the price tables of `foldline replay --prices` instead.
    #[arg(long, conflicts_with = "name")]
    prices: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingFlags<ModelGroups>,
}

impl ModelsCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let layers = self.settings.load()?;
        let table = model_table(&layers)?;
        let text = match (&self.name, self.prices) {
            (Some(name), _) => self.model_text(&table, name, &layers)?,
            (None, true) => self.prices_text(&table)?,
            (None, false) => self.rows_text(&table)?,
        };
        print_stdout(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn model_text(&self, table: &ModelTable, name: &str, layers: &SettingLayers) -> Result<String> {
        let (row, builtin) = (table.find(Some(name)), ModelTable::builtin().find(Some(name)));
        let file = layers.path(&MODELS).filter(|_| row != builtin);
        let row_name = if row.prefix == "*" { "* (unknown models)".to_owned() } else { row.prefix.clone() };
        let origin = match &file {
            Some(file) => format!("row {row_name} of {} over the built-in table", file.display()),
            None => format!("row {row_name} of the built-in table"),
        };
        let origin = match &row.newer_than {
            Some(newest) => format!("{origin}; newer than {newest}, whose limits and laws it gets"),
            None => origin,
        };
        if self.json {
            let mut object = row_json(&row);
            object["model"] = json!(name);
            object["from"] = json!(origin);
            object["file"] = json!(file);
            return Ok(format!("{object:#}\n"));
        }
        let mut text = format!("{name}: {origin}\n");
        let mut line = |label: &str, value: String| text += &format!("  {label:<14} {value}\n");
        line("provider", row.provider.clone());
        let input = row.max_input.map_or(String::new(), |tokens| format!(", input at most {}", format_number(tokens)));
        line("window", format!("{} tokens{input}", format_number(row.window)));
        line("answer", format!("at most {} tokens", format_number(row.max_output)));
        line("price", describe_price(&row));
        line("cache", describe_cache(&row));
        let meter = Meter::for_model(table, Some(name));
        let counted = match meter.exactness() {
            CountExactness::Exact => format!("exactly, by the vocabulary {}", row.vocabulary),
            _ => format!("by estimate ({}, times {}), calibrated by the provider's reports", row.vocabulary, row.scale),
        };
        line("tokens", counted);
        if !row.laws.is_empty() {
            line("laws", row.laws.join(" "));
        }
        if let Some(file) = &file {
            let changed = changed_fields(&row, &builtin);
            text += &format!("  from {}: {}\n", file.display(), changed.join(", "));
        }
        Ok(text)
    }

    fn rows_text(&self, table: &ModelTable) -> Result<String> {
        let rows: Vec<&ModelRow> = table.rows().into_iter().filter(|row| !row.prefix.starts_with("prices:")).collect();
        if self.json {
            return Ok(format!("{:#}\n", Value::from_iter(rows.iter().map(|row| row_json(row)))));
        }
        let header = ["prefix", "provider", "window", "answer", "$ in", "$ out", "read", "write"];
        let cells = rows.iter().map(|row| {
            let usd = |usd: f64| if row.has_list_price() { usd.to_string() } else { String::new() };
            [
                row.prefix.clone(),
                row.provider.clone(),
                format_number(row.window),
                format_number(row.max_output),
                usd(row.usd_in),
                usd(row.usd_out),
                row.cache_read.to_string(),
                row.cache_write.to_string(),
            ]
        });
        let note = "Dollars per million tokens; cache read and write relative to an input token.";
        Ok(format!("{}\n\n{note}\n", text_table(&header, cells)))
    }

    fn prices_text(&self, table: &ModelTable) -> Result<String> {
        let named = PriceTable::from_models(table);
        let prices: Vec<(&str, Prices)> = named.names().filter_map(|name| Some((name, named.get(name)?))).collect();
        if self.json {
            let object = |(name, prices): &(&str, Prices)| json!({ "name": name, "read": prices.read, "write": prices.write, "output": prices.output, "usd_in": prices.base_usd });
            return Ok(format!("{:#}\n", Value::from_iter(prices.iter().map(object))));
        }
        let header = ["name", "read", "write", "output", "$ in", "cache"];
        let cells = prices.iter().map(|(name, prices)| {
            let lifetime = prices.cache_ttl.map_or(String::new(), |ttl| format!("{} min", ttl.as_secs() / 60));
            let usd = if prices.base_usd > 0.0 { prices.base_usd.to_string() } else { String::new() };
            [
                (*name).to_owned(),
                prices.read.to_string(),
                prices.write.to_string(),
                prices.output.to_string(),
                usd,
                lifetime,
            ]
        });
        let note = "Prices relative to an input token; dollars per million input tokens.";
        Ok(format!("{}\n\n{note}\n", text_table(&header, cells)))
    }
}

fn describe_price(row: &ModelRow) -> String {
    if !row.has_list_price() {
        return "not known".to_owned();
    }
    let long =
        row.long_price_above.map_or(String::new(), |above| format!("; more above {} tokens", format_number(above)));
    format!("${} in, ${} out per million tokens{long}", row.usd_in, row.usd_out)
}

fn describe_cache(row: &ModelRow) -> String {
    let hour = row.cache_write_hour.map_or(String::new(), |price| format!(" ({price} for an hour)"));
    let lifetime = row.cache_ttl.map_or(String::new(), |ttl| format!(", {} min", ttl.as_secs() / 60));
    format!("read {}, write {}{hour} of an input token{lifetime}", row.cache_read, row.cache_write)
}

/// Returns the names of the values that differ.
fn changed_fields(row: &ModelRow, builtin: &ModelRow) -> Vec<String> {
    let (ours, theirs) = (row_json(row), row_json(builtin));
    let fields = ours.as_object().into_iter().flatten();
    fields.filter(|(name, value)| theirs[name.as_str()] != **value).map(|(name, _)| name.clone()).collect()
}

/// Returns the facts of a row, by the names of the columns.
fn row_json(row: &ModelRow) -> Value {
    json!({
        "prefix": row.prefix,
        "newer_than": row.newer_than,
        "provider": row.provider,
        "window": row.window,
        "max_input": row.max_input,
        "max_output": row.max_output,
        "usd_in": row.usd_in,
        "usd_out": row.usd_out,
        "has_list_price": row.has_list_price(),
        "cache_read": row.cache_read,
        "cache_write": row.cache_write,
        "cache_write_1h": row.cache_write_hour,
        "long_price_above": row.long_price_above,
        "min_prefix": row.min_prefix,
        "cache_life": row.cache_ttl.map(|ttl| ttl.as_secs()),
        "vocab": row.vocabulary,
        "scale": row.scale,
        "per_message": row.per_message,
        "per_call": row.per_call,
        "per_request": row.per_request,
        "tool_prompt": row.tool_prompt,
        "signed_history": row.signed_history,
        "laws": row.laws,
    })
}

/// Formats rows with numbers to the right of the first columns.
fn text_table<const N: usize>(header: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(*header);
    rows.for_each(|row| _ = table.add_row(row));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        if !matches!(header[column.index], "prefix" | "provider" | "name") {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
