//! What errors add: where it is, and what may have been meant.

/// `1:7` of a place in the text, given in bytes.
pub(super) fn place(text: &str, at: u32) -> String {
    let mut at = usize::try_from(at).unwrap_or(0).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("{line}:{column}")
}

/// ` (did you mean …?)`, or all there is, or nothing where there is too much.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> String {
    /// Further away is something else.
    const CLOSE: f64 = 0.8;
    let mut known: Vec<&str> = known.collect();
    known.dedup();
    let distance = |other: &&str| strsim::jaro_winkler(name, other);
    let best = known.iter().copied().max_by(|left, right| distance(left).total_cmp(&distance(right)));
    match best {
        Some(best) if distance(&best) >= CLOSE => format!(" (did you mean `{best}`?)"),
        _ if known.is_empty() => String::new(),
        _ => format!(" (there is {})", known.join(", ")),
    }
}
