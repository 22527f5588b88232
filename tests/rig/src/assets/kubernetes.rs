//! Which release of Kubernetes the clusters are of.

use crate::error::{Error, Result};

/// Names the release that is built: `oldest`, or nothing for the newest.
const VARIABLE: &str = "NFS_OPERATOR_RIG_KUBERNETES";
/// The module that says which release a module file is about.
const MODULE: &str = "k8s.io/kubernetes ";

/// A release that the control plane and the node can be built from, each by a module file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubernetes {
    /// What `make test` runs on.
    Newest,
    /// The oldest that the operator works on: what `make test-oldest` runs on, and what the chart asks for.
    Oldest,
}

impl Kubernetes {
    /// The one that the environment asks for.
    ///
    /// # Errors
    /// [`Error::Usage`] when it asks for something else.
    pub fn from_env() -> Result<Self> {
        let asked = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::named(&asked.to_string_lossy())
    }

    fn named(name: &str) -> Result<Self> {
        match name {
            "" => Ok(Self::Newest),
            "oldest" => Ok(Self::Oldest),
            other => Err(Error::Usage(format!(
                "{VARIABLE}={other}: only `oldest` is known; unset it for the newest"
            ))),
        }
    }

    /// Its module file.
    pub(super) const fn module(self) -> &'static str {
        match self {
            Self::Newest => include_str!("../../control-plane/go.mod"),
            Self::Oldest => include_str!("../../control-plane/oldest.mod"),
        }
    }

    /// The checksums of all modules.
    pub(super) const fn sums(self) -> &'static str {
        match self {
            Self::Newest => include_str!("../../control-plane/go.sum"),
            Self::Oldest => include_str!("../../control-plane/oldest.sum"),
        }
    }

    /// The release, such as `v1.36.3`.
    pub fn release(self) -> &'static str {
        let mut lines = self.module().lines().map(str::trim);
        let required = lines.find_map(|line| line.strip_prefix(MODULE));
        required.unwrap_or("of an unknown release")
    }

    /// The numbers that its minor release has, such as `("1", "36")`.
    pub fn major_and_minor(self) -> (&'static str, &'static str) {
        let mut parts = self.release().trim_start_matches('v').split('.');
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::Kubernetes;

    #[test]
    fn the_releases_are_read_from_their_modules_and_the_oldest_is_older() {
        let minor = |kubernetes: Kubernetes| {
            assert!(kubernetes.release().starts_with("v1."), "{}", kubernetes.release());
            let (major, minor) = kubernetes.major_and_minor();
            (major, minor.parse::<u32>().ok())
        };
        let (oldest, newest) = (minor(Kubernetes::Oldest), minor(Kubernetes::Newest));
        assert!(oldest < newest, "{oldest:?} {newest:?}");
    }

    #[test]
    fn nothing_is_the_newest_and_a_release_that_is_not_known_is_refused() {
        assert!(matches!(Kubernetes::named(""), Ok(Kubernetes::Newest)));
        assert!(matches!(Kubernetes::named("oldest"), Ok(Kubernetes::Oldest)));
        let refused = Kubernetes::named("1.30").map_err(|error| error.to_string());
        assert!(refused.is_err_and(|error| error.contains("NFS_OPERATOR_RIG_KUBERNETES=1.30")));
    }
}
