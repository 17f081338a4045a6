//! The choice of what separates tenants.

use std::fmt;
use std::str::FromStr;

/// Which requests share one part of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tenancy {
    /// All of them. Only where no token is set, and so only on loopback.
    Single,
    /// Those with tokens of the same name. A token without a name is named `default`.
    Token,
    /// Those with tokens of the same name; where the token has none, those with the same API keys. A request without
    /// either, or with a rotating credential, goes out as it came.
    Credential,
}

impl FromStr for Tenancy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "single" => Ok(Tenancy::Single),
            "token" => Ok(Tenancy::Token),
            "credential" => Ok(Tenancy::Credential),
            _ => Err(format!("\"{name}\" is not a tenancy: choose single, token or credential")),
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
