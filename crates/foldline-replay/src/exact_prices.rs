//! Prices in results of shards. Numbers are texts: JSON numbers with a fraction may lose their last bit when they are
//! parsed.

use std::str::FromStr;
use std::time::Duration;

use foldline::{ModelTable, Prices};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct PriceTexts {
    read: String,
    write: String,
    output: String,
    base_usd: String,
    min_prefix: u64,
    cache_ttl_seconds: Option<u64>,
}

pub(crate) fn serialize<S: Serializer>(prices: &Prices, serializer: S) -> Result<S::Ok, S::Error> {
    PriceTexts {
        read: prices.read.to_string(),
        write: prices.write.to_string(),
        output: prices.output.to_string(),
        base_usd: prices.base_usd.to_string(),
        min_prefix: prices.min_prefix,
        cache_ttl_seconds: prices.cache_ttl.map(|ttl| ttl.as_secs()),
    }
    .serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Prices, D::Error> {
    let texts = PriceTexts::deserialize(deserializer)?;
    let number = |text: &str| f64::from_str(text).map_err(serde::de::Error::custom);
    let mut prices = Prices::for_model(ModelTable::builtin(), None);
    prices.read = number(&texts.read)?;
    prices.write = number(&texts.write)?;
    prices.output = number(&texts.output)?;
    prices.base_usd = number(&texts.base_usd)?;
    prices.min_prefix = texts.min_prefix;
    prices.cache_ttl = texts.cache_ttl_seconds.map(Duration::from_secs);
    Ok(prices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_price_is_restored_to_the_last_bit() {
        let table = ModelTable::builtin();
        for row in table.rows() {
            let mut prices = Prices::from_row(row);
            prices.read /= 3.0;
            prices.base_usd *= 0.7;
            let json = serialize(&prices, serde_json::value::Serializer).unwrap().to_string();
            assert_eq!(deserialize(&mut serde_json::Deserializer::from_str(&json)).unwrap(), prices);
        }
    }
}
