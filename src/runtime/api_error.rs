//! Texts of errors of the API server, for conditions, logs and the command line.

use std::error::Error;

use kube::core::Status;
use kube::runtime::watcher;

/// Returns the API server's message, or the reason why there is no answer. `kube::Error` itself prints the fields of
/// the answer after the message.
pub fn api_error_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status_text(status),
        other => causes(other),
    }
}

/// Returns the text of the error of a watch.
pub fn watch_error_text(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(cause) => format!("cannot list: {}", api_error_text(cause)),
        watcher::Error::WatchStartFailed(cause) => format!("cannot start: {}", api_error_text(cause)),
        watcher::Error::WatchFailed(cause) => api_error_text(cause),
        watcher::Error::WatchError(status) => status_text(status),
        watcher::Error::NoResourceVersion => causes(error),
    }
}

fn status_text(status: &Status) -> String {
    match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("HTTP status {}", status.code),
        ("", reason) => reason.to_owned(),
        (message, _) => message.to_owned(),
    }
}

/// Returns an error and its causes, without those that repeat the text of the one before.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let added = cause.to_string();
        if !text.contains(&added) {
            text += ": ";
            text += &added;
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusSummary;

    use super::*;

    fn answer(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status {
            status: Some(StatusSummary::Failure),
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            metadata: None,
            details: None,
        }))
    }

    #[test]
    fn an_answer_is_its_message_without_its_fields() {
        let message = "storageclasses.storage.k8s.io \"fast\" not found";
        let error = answer(404, "NotFound", message);
        assert_eq!(api_error_text(&error), message);
        assert_eq!(
            api_error_text(&answer(503, "ServiceUnavailable", "")),
            "ServiceUnavailable"
        );
        assert_eq!(api_error_text(&answer(503, "", "")), "HTTP status 503");
        let watch = watcher::Error::WatchStartFailed(error);
        assert_eq!(watch_error_text(&watch), format!("cannot start: {message}"));
    }

    #[test]
    fn a_missing_answer_names_its_causes_once() {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let error = kube::Error::Service(Box::new(std::io::Error::other(refused)));
        let text = api_error_text(&error);
        assert_eq!(text.matches("connection refused").count(), 1, "{text}");
    }
}
