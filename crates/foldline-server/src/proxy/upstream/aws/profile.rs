//! Profiles of the AWS files `credentials` and `config`: their sections and keys.

/// The keys of one profile.
#[derive(Default)]
pub(crate) struct ProfileKeys(Vec<(String, String)>);

impl ProfileKeys {
    /// Returns the keys of a profile in a file. Sections of the file `config` begin with the word `profile`, except the
    /// one with the name `default`.
    pub(crate) fn parse(file: &str, profile: &str) -> Self {
        let mut is_inside = false;
        let mut keys = Vec::new();
        // Indented lines belong to the value before them.
        for line in file.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
            if let Some(title) = line.trim_end().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let title = title.trim();
                let name = title.strip_prefix("profile").filter(|rest| rest.starts_with([' ', '\t'])).unwrap_or(title);
                is_inside = name.trim().trim_matches('"') == profile;
            } else if let Some((key, value)) = line.split_once('=').filter(|_| is_inside) {
                keys.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        Self(keys)
    }

    /// Returns the last value of a key that is not empty.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(name, value)| name == key && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_both_files_are_found() {
        let config = "# work\n[default]\nregion = us-east-1\n[profile dev]\nAWS_Access_Key_Id=A=B\ns3 =\n  region = nested\n\
                      [profile \"two words\"]\nx = 1\n[profilex]\nx = 2\n[sso-session dev]\nregion = other\n";
        let get = |profile: &str, key: &str| ProfileKeys::parse(config, profile).get(key).map(str::to_owned);
        assert_eq!(get("default", "region").as_deref(), Some("us-east-1"));
        assert_eq!(get("dev", "aws_access_key_id").as_deref(), Some("A=B"));
        assert_eq!(get("two words", "x").as_deref(), Some("1"));
        assert_eq!(get("profilex", "x").as_deref(), Some("2"));
        for (profile, key) in [("dev", "region"), ("dev", "s3"), ("x", "x"), ("", "region"), ("work", "region")] {
            assert_eq!(get(profile, key), None, "{profile} {key}");
        }
    }
}
