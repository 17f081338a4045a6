//! The setting that selects what separates tenants.

use std::fmt;
use std::str::FromStr;

/// The rule by which requests share one part of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tenancy {
    /// All requests share. Allowed only without tokens, and so only on loopback.
    Single,
    /// Requests with tokens of the same name share. A token without a name is named `default`.
    Token,
    /// Requests with tokens of the same name share; without a name, those with the same API keys. A request with neither,
    /// or with a rotating credential, is forwarded unmodified.
    Credential,
}

impl FromStr for Tenancy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "single" => Ok(Tenancy::Single),
            "token" => Ok(Tenancy::Token),
            "credential" => Ok(Tenancy::Credential),
            _ => Err(format!("unknown tenancy \"{name}\"; choose single, token or credential")),
        }
    }
}

impl fmt::Display for Tenancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tenancy::Single => "single",
            Tenancy::Token => "token",
            Tenancy::Credential => "credential",
        })
    }
}
