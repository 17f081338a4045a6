//! The model table that a command uses.

use std::borrow::Cow;

use anyhow::{Context, Result};
use foldline::ModelTable;

use crate::settings::layers::SettingLayers;
use crate::settings::table::MODELS;

/// Returns the built-in table, overlaid by the user's.
pub(crate) fn model_table(layers: &SettingLayers) -> Result<Cow<'static, ModelTable>> {
    let Some(file) = layers.path(&MODELS) else {
        return Ok(Cow::Borrowed(ModelTable::builtin()));
    };
    let name = file.display();
    let csv = std::fs::read_to_string(&file).with_context(|| format!("could not read the model table {name}"))?;
    let table = ModelTable::builtin().overlay(&csv).with_context(|| format!("{name} is not a model table"))?;
    Ok(Cow::Owned(table))
}
