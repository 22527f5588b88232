//! The messages that docs/troubleshooting.md shows consist of texts that the code contains.
//!
//! A message in the code is a format string: text with placeholders. A message on the page is such a text with values for
//! the placeholders, possibly of several strings after one another. So every word of it belongs either to the text of a
//! string in the code, or to a value. A text on the page that the code has no longer is found.
//!
//! Not found: a message in the section of another reason, a combination of texts that the code never prints together, and a
//! text that is missing at a seam, because the strings of one message are in several places and errors are values of others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nfs_operator::api::Reason;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Values in the examples of the page that look like words of a message: names of objects, users and directories, and texts
/// of the machine. Everything with a digit, a capital letter or a punctuation mark inside is a value, too.
const VALUES: [&str; 15] = [
    "a", "b", "c", "data", "default", "fast", "main", "mod", "nfs", "nobody", "route", "safe", "shop", "team", "xfs",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Adds the strings in the code, except those in its documentation and in its tests.
fn strings(code: TokenStream, found: &mut BTreeSet<String>) {
    let mut tokens = code.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let Some(TokenTree::Group(attribute)) = tokens.next_if(|next| matches!(next, TokenTree::Group(_)))
                else {
                    continue;
                };
                let text = attribute.stream().to_string();
                if text.starts_with("cfg") && text.contains("test") {
                    // Also skips the item: up to its body, or to its end.
                    let is_end = |token: &TokenTree| match token {
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        TokenTree::Punct(punct) => punct.as_char() == ';',
                        _ => false,
                    };
                    tokens.by_ref().find(is_end);
                } else if !text.starts_with("doc") {
                    strings(attribute.stream(), found);
                }
            }
            TokenTree::Group(group) => strings(group.stream(), found),
            TokenTree::Literal(literal) => {
                if let syn::Lit::Str(text) = syn::Lit::new(literal) {
                    found.insert(text.value());
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Returns the texts between the placeholders of all strings in the code.
fn texts() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src",
        "crates/nfs-client/src",
        "crates/export-store/src",
        "crates/quota-agent/src",
    ] {
        sources(&root.join(folder), &mut files);
    }
    let mut found = BTreeSet::new();
    for file in files {
        let code = fs::read_to_string(&file).unwrap();
        strings(code.parse().unwrap(), &mut found);
    }
    let found = found.iter().flat_map(|text| text.split(['{', '}']).step_by(2));
    found
        .filter(|text| text.contains(char::is_alphabetic))
        .map(str::to_owned)
        .collect()
}

/// Returns the messages of the page: what follows the reason in its blocks, and the code in the tables of messages.
fn messages() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/troubleshooting.md");
    let page = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    // A block of commands names its language.
    for block in page
        .split("```")
        .skip(1)
        .step_by(2)
        .filter(|block| block.starts_with('\n'))
    {
        for line in block.lines().filter(|line| line.contains("  ")) {
            let message = line.rsplit("  ").next().unwrap();
            let begins_with_reason = message
                .split_once(": ")
                .filter(|(reason, _)| Reason::parse(reason).is_some());
            found.push(begins_with_reason.map_or(message, |(_, rest)| rest).to_owned());
        }
    }
    for table in page.split("\n| message | remedy |\n").skip(1) {
        let rows = table.lines().take_while(|line| line.starts_with('|')).skip(1);
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        found.extend(cells.flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        }));
    }
    found
}

/// Returns true if a text that is found there is not a part of a longer word, except of its plural.
fn is_whole(before: &str, text: &str, after: &str) -> bool {
    let ends_word = |rest: &str| !rest.starts_with(char::is_alphanumeric);
    let begins = !text.starts_with(char::is_alphanumeric) || !before.ends_with(char::is_alphanumeric);
    let plural = after.strip_prefix('s').is_some_and(ends_word);
    begins && (!text.ends_with(char::is_alphanumeric) || ends_word(after) || plural)
}

/// Returns the words of a message that are in no text of the code and cannot be values.
fn unknown_words(message: &str, texts: &BTreeSet<String>) -> Vec<String> {
    let mut is_known = vec![false; message.len()];
    for text in texts {
        for (start, _) in message.match_indices(text.as_str()) {
            let (before, rest) = message.split_at(start);
            let after = rest.strip_prefix(text.as_str()).unwrap();
            if is_whole(before, text, after) {
                is_known
                    .iter_mut()
                    .skip(start)
                    .take(text.len())
                    .for_each(|known| *known = true);
            }
        }
    }
    // The page may show only the beginning of a message.
    let shown = message.trim_end_matches([' ', '…', '.']);
    let ends = |start: &usize| {
        texts
            .iter()
            .any(|text| text.starts_with(shown.get(*start..).unwrap_or("…")))
    };
    let beginnings = shown.match_indices([' ', '…']).map(|(at, before)| at + before.len());
    if let Some(start) = std::iter::once(0).chain(beginnings).find(ends) {
        is_known
            .iter_mut()
            .take(shown.len())
            .skip(start)
            .for_each(|known| *known = true);
    }
    let mut unknown = Vec::new();
    let mut start = 0;
    for piece in message.split_inclusive([' ', '…']) {
        let word = piece.trim_end_matches([' ', '…']);
        let word = word.trim_end_matches(|c: char| c.is_ascii_punctuation());
        let skipped = word.len() - word.trim_start_matches(|c: char| c.is_ascii_punctuation()).len();
        let plain = word.get(skipped..).unwrap_or_default();
        let length = plain.strip_suffix('s').unwrap_or(plain).len();
        let known = is_known.iter().skip(start + skipped).take(length).all(|known| *known);
        start += piece.len();
        let is_plain = !plain.is_empty() && plain.chars().all(|c| c.is_ascii_lowercase() || c == '\'');
        if is_plain && !known && !VALUES.contains(&plain) {
            unknown.push(plain.to_owned());
        }
    }
    unknown
}

#[test]
fn a_word_that_no_code_prints_is_found() {
    let texts = ["the server refuses ", "; export it to ", " record"]
        .map(str::to_owned)
        .into();
    let unknown = |message: &str| unknown_words(message, &texts);
    let none: [&str; 0] = [];
    assert_eq!(
        unknown("the server refuses 10.0.0.7; export it to main, 2 records"),
        none
    );
    assert_eq!(
        unknown("the server denies 10.0.0.7; export it to main"),
        ["the", "server", "denies"]
    );
    assert_eq!(unknown("…: the server refuses access to…"), ["access", "to"]);
    assert_eq!(unknown("the recorder"), ["the", "recorder"]);
    assert_eq!(unknown("10.0.0.7: the server …"), none);
    assert_eq!(unknown("the server agrees"), ["the", "server", "agrees"]);
}

#[test]
fn every_message_of_the_guide_consists_of_texts_of_the_code() {
    let (texts, messages) = (texts(), messages());
    assert!(
        texts.len() > 1000 && messages.len() > 100,
        "{} {}",
        texts.len(),
        messages.len()
    );
    let wrong: Vec<String> = messages
        .iter()
        .filter_map(|message| {
            let unknown = unknown_words(message, &texts);
            (!unknown.is_empty()).then(|| format!("no code prints {unknown:?} in {message:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
