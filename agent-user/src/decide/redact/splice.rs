//! Puts edited parts back into the message that they were borrowed from.

use std::ops::Range;

/// The message with `part`, which is a slice of it, replaced. `None`: it is no slice of it, or empty.
pub fn splice(message: &str, part: &str, replacement: &str) -> Option<String> {
    splice_all(message, &[(part, replacement)])
}

/// The message with several parts of it replaced, in whatever order they are given. `None`: one is no slice of it, or
/// empty, or two overlap.
pub fn splice_all<'a>(message: &str, parts: &[(&str, &'a str)]) -> Option<String> {
    let place = |(part, replacement): &(&str, &'a str)| Some((locate(message, part)?, *replacement));
    let mut places: Vec<(Range<usize>, &str)> = parts.iter().map(place).collect::<Option<_>>()?;
    places.sort_by_key(|(place, _)| place.start);
    let mut text = String::with_capacity(message.len());
    let mut at = 0;
    for (place, replacement) in places {
        // `None` if it begins before the last one ended.
        text.push_str(message.get(at..place.start)?);
        text.push_str(replacement);
        at = place.end;
    }
    text.push_str(message.get(at..)?);
    Some(text)
}

/// Where in `message` the slice of it is. An equal text elsewhere is no slice of it.
pub(super) fn locate(message: &str, part: &str) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(message.as_ptr() as usize)?;
    let end = start.checked_add(part.len())?;
    (!part.is_empty() && message.is_char_boundary(start) && message.is_char_boundary(end))
        .then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_replaced_where_they_are() {
        let message = "{\"a\":1,\"b\":1}".to_owned();
        let (first, second) = (&message[5..6], &message[11..12]);
        assert_eq!(splice(&message, first, "22").as_deref(), Some("{\"a\":22,\"b\":1}"));
        assert_eq!(splice(&message, second, "").as_deref(), Some("{\"a\":1,\"b\":}"));
        assert_eq!(splice(&message, &message, "x").as_deref(), Some("x"));
        let both = splice_all(&message, &[(second, "33"), (first, "22")]);
        assert_eq!(both.as_deref(), Some("{\"a\":22,\"b\":33}"));
        assert_eq!(splice_all(&message, &[]).as_deref(), Some(&*message));
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let message = "[1,2,3]".to_owned();
        let other = "[1,2,3]".to_owned();
        assert_eq!(splice(&message, &other[1..2], "x"), None);
        assert_eq!(splice(&message[..3], &message[1..5], "x"), None);
        assert_eq!(splice(&message[3..], &message[1..2], "x"), None);
        assert_eq!(splice(&message, &message[2..2], "x"), None);
        assert_eq!(splice(&message, "", "x"), None);
        assert_eq!(splice_all(&message, &[(&message[1..4], "x"), (&message[3..6], "y")]), None);
        assert_eq!(splice_all(&message, &[(&message[1..2], "x"), (&message[1..2], "y")]), None);
    }
}
