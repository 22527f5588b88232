//! nfs-operator.
