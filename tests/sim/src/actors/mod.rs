//! Everybody but the operator: the controllers of Kubernetes, users, administrators and nodes.

pub mod administrator;
pub mod archives;
pub mod binder;
pub mod namespaces;
pub mod nodes;
pub mod storage;
pub mod users;
pub mod volumes;
