//! A Rust file by lines, once as written and once with comments and the insides of strings blanked, so that a rule
//! about code does not trip over prose. Not a parser: it knows as much of the language as that takes.

/// The lines of a file.
pub(super) struct Source {
    pub(super) raw: Vec<String>,
    /// The same lines without comments, strings and characters; as many lines as `raw`.
    pub(super) code: Vec<String>,
    /// Number of lines before the unit tests.
    pub(super) tests_from: usize,
}

impl Source {
    pub(super) fn read(text: &str) -> Self {
        let raw: Vec<String> = text.lines().map(str::to_owned).collect();
        let code: Vec<String> = code_only(text).lines().map(str::to_owned).collect();
        let is_tests =
            |pair: &[String]| pair[0].trim() == "#[cfg(test)]" && pair[1].trim_start().starts_with("mod ");
        let tests_from = code.windows(2).position(is_tests).unwrap_or(code.len());
        Self { raw, code, tests_from }
    }

    /// Whether the line, or what stands right above it, says why an `unsafe` there is sound. Comments and attributes
    /// in between are passed over, and up to three lines of the statement that it is a part of.
    pub(super) fn says_why_safe(&self, index: usize) -> bool {
        let mut statement = 3;
        for line in self.raw[..=index].iter().rev() {
            if line.contains("SAFETY:") || line.contains("# Safety") {
                return true;
            }
            let text = line.trim_start();
            if !text.starts_with("//") && !text.starts_with("#[") {
                if statement == 0 {
                    return false;
                }
                statement -= 1;
            }
        }
        false
    }
}

/// The text with everything that is not code turned into spaces.
fn code_only(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match skip(rest, out.chars().next_back()) {
            0 => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
            length => length,
        };
        out.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[length..];
    }
    out
}

/// Length of the comment, string or character that `rest` begins with; 0 for code.
fn skip(rest: &str, before: Option<char>) -> usize {
    let to_end = |end: Option<usize>| end.unwrap_or(rest.len());
    if rest.starts_with("//") {
        return to_end(rest.find('\n'));
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix("cr")).or_else(|| rest.strip_prefix('r'));
    if let Some(tail) = raw.filter(|_| !in_word) {
        let hashes = tail.len() - tail.trim_start_matches('#').len();
        if tail[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = rest.len() - tail.len() + hashes + 1;
            return to_end(rest[begin..].find(&end).map(|at| begin + at + end.len()));
        }
    }
    if rest.starts_with('"') {
        return to_end(closing(rest, '"'));
    }
    // A character, or else a lifetime, which has no closing quote right behind its first letter.
    let mut inside = rest.strip_prefix('\'').unwrap_or_default().chars();
    match (inside.next(), inside.next()) {
        (Some('\\'), _) => to_end(closing(rest, '\'')),
        (Some(letter), Some('\'')) => letter.len_utf8() + 2,
        _ => 0,
    }
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Where the quote that `rest` begins with is closed, backslashes respected.
fn closing(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + c.len_utf8()),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_blanked_and_code_stays() {
        for (text, code) in [
            ("a // b", "a     "),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x\"y", 'z', '\'')"#, "f(      ,    ,     )"),
            ("g(r#\"x\"y\"#)", "g(        )"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("attr\"x\"", "attr   "),
            ("\"a\nb\" c", "  \n   c"),
        ] {
            assert_eq!(code_only(text), code, "{text}");
        }
    }

    #[test]
    fn tests_begin_where_their_module_does() {
        assert_eq!(Source::read("a\n#[cfg(test)]\nuse b;\n#[cfg(test)]\nmod tests {\n}\n").tests_from, 3);
        assert_eq!(Source::read("a\nb\n").tests_from, 2);
    }
}
