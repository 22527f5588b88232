//! The versions of Kubernetes that clusters can run.

use crate::error::{Error, Result};

/// Environment variable that selects the version: `oldest`; unset or empty for the newest.
const VARIABLE: &str = "NFS_OPERATOR_RIG_KUBERNETES";
/// The requirement in a module file that has the version.
const MODULE: &str = "k8s.io/kubernetes ";

/// A version of Kubernetes. Each has its own Go module file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubernetes {
    /// The version that `make test` uses.
    Newest,
    /// The oldest supported version: `make test-oldest` uses it, and the chart requires it.
    Oldest,
}

impl Kubernetes {
    /// Returns the version that the environment selects.
    ///
    /// # Errors
    /// [`Error::Usage`] if the value is unknown.
    pub fn from_env() -> Result<Self> {
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::parse(&value.to_string_lossy())
    }

    fn parse(name: &str) -> Result<Self> {
        match name {
            "" => Ok(Self::Newest),
            "oldest" => Ok(Self::Oldest),
            other => Err(Error::Usage(format!(
                "{VARIABLE}={other}: unknown value; set it to `oldest`, or unset it for the newest"
            ))),
        }
    }

    /// Returns the Go module file.
    pub(super) const fn module(self) -> &'static str {
        match self {
            Self::Newest => include_str!("../../control-plane/go.mod"),
            Self::Oldest => include_str!("../../control-plane/oldest.mod"),
        }
    }

    /// Returns the checksums of all modules.
    pub(super) const fn sums(self) -> &'static str {
        match self {
            Self::Newest => include_str!("../../control-plane/go.sum"),
            Self::Oldest => include_str!("../../control-plane/oldest.sum"),
        }
    }

    /// Returns the version, such as `v1.36.3`.
    pub fn release(self) -> &'static str {
        let mut lines = self.module().lines().map(str::trim);
        let required = lines.find_map(|line| line.strip_prefix(MODULE));
        required.unwrap_or("unknown version")
    }

    /// Returns the major and minor version, such as `("1", "36")`.
    pub fn major_and_minor(self) -> (&'static str, &'static str) {
        let mut parts = self.release().trim_start_matches('v').split('.');
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::Kubernetes;

    #[test]
    fn versions_are_parsed_from_the_module_files() {
        let minor = |kubernetes: Kubernetes| {
            assert!(kubernetes.release().starts_with("v1."), "{}", kubernetes.release());
            let (major, minor) = kubernetes.major_and_minor();
            (major, minor.parse::<u32>().ok())
        };
        let (oldest, newest) = (minor(Kubernetes::Oldest), minor(Kubernetes::Newest));
        assert!(oldest < newest, "{oldest:?} {newest:?}");
    }

    #[test]
    fn an_empty_value_selects_the_newest_version_and_an_unknown_one_is_refused() {
        assert!(matches!(Kubernetes::parse(""), Ok(Kubernetes::Newest)));
        assert!(matches!(Kubernetes::parse("oldest"), Ok(Kubernetes::Oldest)));
        let refused = Kubernetes::parse("1.30").map_err(|error| error.to_string());
        assert!(refused.is_err_and(|error| error.contains("NFS_OPERATOR_RIG_KUBERNETES=1.30")));
    }
}
