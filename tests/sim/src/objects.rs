//! Reading objects in JSON.

use serde_json::Value;

/// Path of volumes in the API.
pub const VOLUMES_PATH: &str = "/api/v1/persistentvolumes";
/// Path of backends in the API.
pub const BACKENDS_PATH: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends";
/// Path of archives in the API.
pub const ARCHIVES_PATH: &str = "/apis/nfs-operator.io/v1alpha1/nfsarchives";

/// Returns the value at a path, as [`Value::pointer`] does, but without allocations: a run reads objects all the time, so
/// that each field is looked at once.
pub fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut found = object;
    let mut rest = path.strip_prefix('/');
    while let Some(path) = rest {
        let mut is_escaped = false;
        let end = path.bytes().position(|byte| {
            is_escaped |= byte == b'~';
            byte == b'/'
        });
        let (field, next) = match end {
            Some(end) => (path.get(..end)?, path.get(end + 1..)),
            None => (path, None),
        };
        found = match found {
            Value::Object(fields) if is_escaped => fields.get(&field.replace("~1", "/").replace("~0", "~"))?,
            Value::Object(fields) => fields.get(field)?,
            Value::Array(items) => items.get(field.parse::<usize>().ok()?)?,
            _ => return None,
        };
        rest = next;
    }
    Some(found)
}

/// Returns the string at a path, or an empty one.
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the name of an object.
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Returns the namespace of an object.
pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// Returns the UID of an object.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// Returns true if an object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    at(object, "/metadata/deletionTimestamp").is_some()
}

/// Returns true if an object has a finalizer.
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let finalizers = at(object, "/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|found| found == finalizer))
}

/// Returns true if a condition of an object has this reason.
pub fn has_reason(object: &Value, reason: &str) -> bool {
    let conditions = at(object, "/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| text(condition, "/reason") == reason)
}

/// Returns the path of a claim in the API.
pub fn claim_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
}

/// Returns the path of a volume in the API.
pub fn volume_path(name: &str) -> String {
    format!("{VOLUMES_PATH}/{name}")
}

/// Returns the path of a backend in the API.
pub fn backend_path(name: &str) -> String {
    format!("{BACKENDS_PATH}/{name}")
}

/// Returns the path of an archive in the API.
pub fn archive_path(name: &str) -> String {
    format!("{ARCHIVES_PATH}/{name}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_found_as_json_pointers_find_them() {
        let object = json!({"a": {"b/c": [{"d": 1}, "e"], "~": {}}, "": {"": 2}});
        for path in [
            "",
            "/",
            "//",
            "/a",
            "/a/",
            "/a/b~1c",
            "/a/b~1c/0/d",
            "/a/b~1c/1",
            "/a/b~1c/2",
            "/a/b~1c/d",
            "/a/~0",
            "/a/~0/x",
            "/a/b",
            "/b",
            "/a/b~1c/1/x",
        ] {
            assert_eq!(at(&object, path), object.pointer(path), "{path:?}");
        }
    }
}
