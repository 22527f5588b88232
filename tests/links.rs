//! Every link in the documentation is valid.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns all pages: those in the root of the repository and in docs/.
fn pages() -> io::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for folder in [root().to_owned(), root().join("docs"), root().join("docs/adr")] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    Ok(pages)
}

/// Returns a page without fenced code blocks, which contain no links or headings.
fn prose(text: &str) -> String {
    let outside = text.split("\n```").step_by(2);
    outside.collect::<Vec<_>>().join("\n")
}

/// Returns the targets of a page's links: the text in `](…)`.
fn targets(prose: &str) -> Vec<&str> {
    let rest = prose.split("](").skip(1);
    rest.filter_map(|rest| rest.split(')').next()).collect()
}

/// Returns the anchors that GitHub creates for the headings of a page. Repeated names get a number.
fn anchors(prose: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose.lines().filter_map(|line| line.strip_prefix('#')) {
        let heading = heading.trim_start_matches('#').trim();
        let chars = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor = chars.collect::<String>().to_lowercase().replace(' ', "-");
        let numbered = (1..).map(|count| format!("{anchor}-{count}"));
        let name = std::iter::once(anchor.clone())
            .chain(numbered)
            .find(|name| !anchors.contains(name));
        anchors.extend(name);
    }
    anchors
}

/// Returns the error of a link, if it has one.
fn check_link(page: &Path, target: &str) -> io::Result<Option<String>> {
    if let Some((scheme, _)) = target.split_once("://") {
        // External links are not followed.
        return Ok((scheme != "https").then(|| format!("{target} is not https")));
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.parent().unwrap_or(root());
    let file = if file.is_empty() {
        page.to_owned()
    } else {
        folder.join(file)
    };
    if !file.exists() {
        return Ok(Some(format!("{target}: no such file")));
    }
    if anchor.is_empty() {
        return Ok(None);
    }
    let exists = anchors(&prose(&fs::read_to_string(&file)?)).contains(anchor);
    Ok((!exists).then(|| format!("{target}: no such heading")))
}

#[test]
fn every_link_is_valid() -> io::Result<()> {
    let (mut errors, mut count) = (Vec::new(), 0);
    for page in pages()? {
        let prose = prose(&fs::read_to_string(&page)?);
        for target in targets(&prose) {
            count += 1;
            errors.extend(check_link(&page, target)?.map(|what| format!("{}: {what}", page.display())));
        }
    }
    assert!(count > 100, "only {count} links were found");
    assert!(errors.is_empty(), "{errors:#?}");
    Ok(())
}

#[test]
fn every_page_of_the_documentation_is_in_its_index() -> io::Result<()> {
    let index = fs::read_to_string(root().join("docs/README.md"))?;
    let listed: BTreeSet<&str> = targets(&index).into_iter().collect();
    let mut missing = Vec::new();
    for entry in fs::read_dir(root().join("docs"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "README.md" && !listed.contains(name.as_str()) {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "docs/README.md lacks {missing:?}");
    Ok(())
}
